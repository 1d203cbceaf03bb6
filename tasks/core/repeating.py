"""An action that a thread does again and again, while a block lasts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(act: Callable[[], float], name: str) -> Iterator[None]:
    """Call `act` in a thread while the block runs; it returns the seconds until the next call. name: of the thread."""
    over = threading.Event()

    def repeat() -> None:
        pause = 0.0
        while not over.wait(pause):
            pause = act()

    thread = threading.Thread(target=repeat, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
