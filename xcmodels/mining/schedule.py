"""Schedules of a stage: its epochs, its refreshes, and the size of query clusters."""

from dataclasses import dataclass
from itertools import pairwise

from xcmodels import checks
from xcmodels.method import Round

MAX_EPOCHS = 10_000    # each may be a round of its own, which a plan lists


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The epochs of a stage, and when clusters and negatives are mined anew (a refresh)."""

    epochs: int           # of the stage, each one pass over the texts, or several by least_steps
    refresh_from: int     # tau_s: epochs with random batches before the first refresh
    refresh_every: int    # tau, tau_r: epochs between two refreshes
    least_steps: int = 0  # of an epoch: of fewer texts, one is several passes over them
    most_steps: int = 0   # of an epoch, whatever else is set: of more texts, one is a part of a pass; 0 = any number

    def __post_init__(self) -> None:
        checks.at_least(self, 1, "epochs", "refresh_every")
        checks.at_least(self, 0, "refresh_from", "least_steps", "most_steps")
        if self.epochs > MAX_EPOCHS:
            raise ValueError(f"epochs must be at most {MAX_EPOCHS}, got {self.epochs}")

    @property
    def epochs_per_refresh(self) -> int:
        """How many epochs the negatives of a refresh are for: those until the next refresh, at most all epochs."""
        return min(self.refresh_every, self.epochs)

    def cluster_size_at(self, epoch: int) -> int:
        """Return the cluster size of a refresh at `epoch`; 0 = no clusters."""
        return 0


@dataclass(frozen=True, kw_only=True)
class ClusterSchedule(Schedule):
    """A schedule with query clusters, whose size C doubles."""

    double_every: int     # epochs after which C doubles, at the next refresh
    cluster_size: int     # C at the first refresh; 0 = no clusters
    cluster_max: int      # where C stops doubling

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(self, 1, "double_every")
        checks.at_least(self, 0, "cluster_size", "cluster_max")
        if self.cluster_max < self.cluster_size:
            raise ValueError(f"cluster_max must be at least cluster_size, {self.cluster_size}, got {self.cluster_max}")

    @property
    def mines(self) -> bool:
        """Whether a refresh has anything to mine."""
        return self.cluster_size > 0

    def cluster_size_at(self, epoch: int) -> int:
        """Return C of a refresh at `epoch`."""
        # the exponent is capped, too: 2**1000 is no size
        doubled = min((epoch - self.refresh_from) // self.double_every, 32)
        return min(self.cluster_size * 2**doubled, self.cluster_max)


def rounds(stage: str, schedule: Schedule, n_negatives: int = 0, ahead: int = 0) -> list[Round]:
    """Return the rounds of a stage: random epochs first, then a round for every refresh.

    n_negatives: hard negatives to mine for each query at every refresh.
    ahead: how many epochs before a refresh the model that mines for it is taken, so that mining can overlap training
    (ASTRA, section 3.2: 2). A round ends there, too.
    """
    first = min(schedule.refresh_from, schedule.epochs)
    if not schedule.cluster_size_at(first) and not n_negatives:
        return [Round(stage, 0, 0, schedule.epochs)]
    refreshes = range(first, schedule.epochs, schedule.refresh_every)
    taken = [max(epoch - ahead, min(epoch, 1)) for epoch in refreshes]
    edges = sorted({0, *refreshes, *taken, schedule.epochs})
    ending_at = {epoch: index for index, epoch in enumerate(edges[1:])} | {0: -1}    # rounds; -1 = before any
    out: list[Round] = []
    for start, end in pairwise(edges):
        if start < first:
            out.append(Round(stage, len(out), start, end))
            continue
        refresh = (start - first) // schedule.refresh_every
        out.append(Round(stage, len(out), start, end, schedule.cluster_size_at(refreshes[refresh]), n_negatives,
                         ending_at[taken[refresh]]))
    return out
