"""Pauses before what has ended is started again: the more often it ends, the longer."""

from dataclasses import dataclass

STEADY_SECONDS = 300.0    # of running, after which the pause is the first one again


@dataclass
class Backoff:
    """The pause before a restart, in seconds: it doubles each time, from `first` up to `longest`.

    began: time of the last start. due: time of the next one, None while it runs.
    """

    first: float
    longest: float
    began: float = 0.0
    due: float | None = None

    def __post_init__(self) -> None:
        self.seconds = self.first / 2    # which the first end doubles

    def start(self, now: float) -> None:
        """Record a start."""
        self.began, self.due = now, None

    def end(self, now: float) -> float:
        """Record an end; return when the next start is due."""
        self.seconds = self.first if now - self.began >= STEADY_SECONDS else min(2 * self.seconds, self.longest)
        self.due = now + self.seconds
        return self.due
