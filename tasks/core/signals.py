"""What signals do while a block lasts; in another thread than the main one, where no signal acts, nothing changes."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handled(handler: Callable[[int, Any], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Have `handler` called, or one of `signal.Handlers` act, at signals of these numbers."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if main}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act once the block has ended, a second one at once: Dask closes only what has started."""
    caught: list[int] = []

    def note(number: int, frame: Any) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)

    with handled(note, signal.SIGINT, signal.SIGTERM):
        yield
    for number in caught:
        signal.raise_signal(number)
