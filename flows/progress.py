"""Terminal output of a run: its plan, its steps and the progress of training.

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

from tasks.core.signals import handled
from tasks.core.wording import duration

LINE_EVERY = 30.0      # seconds between progress lines where there is no terminal
REDRAW_EVERY = 0.5     # seconds between redraws of a terminal's line


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C or SIGTERM: raise KeyboardInterrupt, here and, should that be lost, at the next step.

    Python drops what is raised inside a callback of the garbage collector, such as Dask's.
    """
    Terminal.interrupted = True
    raise KeyboardInterrupt


class Terminal:
    """Prints the lines of one run; under_way: its present step, to name it where the run fails."""

    under_way: ClassVar[str] = ""
    interrupted: ClassVar[bool] = False

    def __init__(self) -> None:
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def line(self, text: str) -> None:
        """Print one line, over the one that is being redrawn."""
        print(f"\r\x1b[2K{text}" if self.live else text, file=sys.stderr, flush=True)

    def begin(self, step: str) -> None:
        """Show which step is under way; without a terminal, only `step` prints it.

        Raises KeyboardInterrupt, as `step` does, where the run was interrupted before.
        """
        self._stop_if_interrupted()
        Terminal.under_way = step
        if self.live:
            print(f"\r\x1b[2K… {step}", end="\r", file=sys.stderr, flush=True)

    def step(self, step: str, reused: bool, seconds: float) -> None:
        """Print that a step is done; seconds: how long it took."""
        Terminal.under_way = f"after {step}"
        self.line(f"{'reused' if reused else duration(seconds):>12}  {step}")
        self._stop_if_interrupted()

    def _stop_if_interrupted(self) -> None:
        if Terminal.interrupted:
            raise KeyboardInterrupt

    @contextmanager
    def training(self, name: str) -> Iterator[tuple[Callable[[Any], None], Callable[[], bool]]]:
        """Show a round's progress and stop it at the first Ctrl-C or SIGTERM; the second ends the program."""
        stop = threading.Event()

        def handle(number: int, frame: FrameType | None) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()
            again = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
            self.line(f"\nstopping after this step; {again} again ends at once")

        bar = _Bar(self)
        with handled(handle, signal.SIGINT, signal.SIGTERM):
            yield bar.report, stop.is_set


class _Bar:
    """One line redrawn on a terminal, a line every 30 s elsewhere."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.began = self.shown = time.monotonic()
        self.first: int | None = None
        self.loss = 0.0

    def report(self, progress: Any) -> None:
        """Record one step (an `xcmodels.training.loop.Progress`); print a line when one is due."""
        now = time.monotonic()
        if self.first is None:    # loading a model and the first step, which sets much up, say nothing of the pace
            self.first, self.began, self.loss = progress.done, now, progress.loss
        self.loss += 0.05 * (progress.loss - self.loss)
        if now - self.shown < (REDRAW_EVERY if self.terminal.live else LINE_EVERY):
            return
        self.shown = now
        line = (f"{progress.stage} epoch {progress.epoch + 1}: step {progress.done:,} of {progress.steps:,}, "
                f"loss {self.loss:.4f}")
        if progress.done > self.first and now > self.began:
            rate = (progress.done - self.first) / (now - self.began)
            line += f", {rate:.1f} steps/s, {duration((progress.steps - progress.done) / rate)} left"
        if self.terminal.live:
            print(f"\r\x1b[2K  {line}", end="", file=sys.stderr, flush=True)
        else:
            self.terminal.line(f"    {line}")
