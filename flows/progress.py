"""What a run shows on the terminal: its plan, its steps, the progress of training, and how it ended.

Everything goes to stderr; stdout is for data. No boxes and no redrawn lines unless stderr is a terminal.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from tasks.core.wording import span

LINE_EVERY = 30.0      # seconds between progress lines where there is no terminal
REDRAW_EVERY = 0.5     # seconds between redraws of a terminal's line


class Terminal:
    """The lines of one run; under_way: its step, for whoever has to say where it failed."""

    under_way: ClassVar[str] = ""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def line(self, text: str) -> None:
        """Print one line, in the place of one that is being redrawn."""
        print(f"\r\x1b[2K{text}" if self.live else text, file=sys.stderr, flush=True)

    def begin(self, step: str) -> None:
        """Say which step is under way; it is said once, at its end, where nobody watches."""
        Terminal.under_way = step
        if self.live:
            print(f"\r\x1b[2K… {step}", end="\r", file=sys.stderr, flush=True)

    def step(self, step: str, reused: bool, seconds: float) -> None:
        """Say that a step is done."""
        Terminal.under_way = f"after {step}"
        self.line(f"{'reused' if reused else span(seconds):>12}  {step}")

    def plan(self, pipeline: Any, store: Any, until: int) -> None:
        """Say, before any work, on what data and how, what will be run and why, and how long that took before."""
        from flows.preview import look

        for line in look(pipeline, store, until).lines():
            self.line(line)

    @contextmanager
    def training(self, name: str) -> Iterator[tuple[Callable[[Any], None], Callable[[], bool]]]:
        """Show a round's progress and stop it at the first Ctrl-C or SIGTERM; the second ends the program."""
        asked = threading.Event()

        def handle(number: int, frame: FrameType | None) -> None:
            if asked.is_set():
                raise KeyboardInterrupt
            asked.set()
            again = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
            self.line(f"\nstopping after this step; {again} again ends at once")

        bar = _Bar(self)
        if threading.current_thread() is not threading.main_thread():
            yield bar.report, asked.is_set
            return
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield bar.report, asked.is_set
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Bar:
    """One line redrawn on a terminal, a line every 30 s elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.began = self.told = time.monotonic()
        self.first: int | None = None
        self.loss = 0.0

    def report(self, progress: Any) -> None:
        """Take note of one step (an `xcmodels.training.loop.Progress`); tell when it is time to."""
        if self.first is None:
            self.first, self.loss = progress.done - 1, progress.loss
        self.loss += 0.05 * (progress.loss - self.loss)
        now = time.monotonic()
        if now - self.told < (REDRAW_EVERY if self.terminal.live else LINE_EVERY):
            return
        self.told = now
        rate = (progress.done - self.first) / (now - self.began)
        line = (f"{progress.stage} epoch {progress.epoch + 1}: step {progress.done:,} of {progress.steps:,}, "
                f"loss {self.loss:.4f}, {rate:.1f} steps/s, {span((progress.steps - progress.done) / rate)} left")
        if self.terminal.live:
            print(f"\r\x1b[2K  {line}", end="", file=sys.stderr, flush=True)
        else:
            self.terminal.line(f"    {line}")
