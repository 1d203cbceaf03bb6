"""The gates that a version passes before it serves: not worse than the champion, on the same test queries.

Pure decisions over measurements, so that who reads a refusal can see each number that led to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIGMA = 2.0        # standard errors that the fall of a decile has to exceed
FAST = 20.0        # milliseconds: an answer within them is fast enough whatever the champion does


@dataclass(frozen=True)
class Gates:
    """How much worse than the champion a version may be; in points of percent, but the latency."""

    precision: float = 0.5     # of P@1
    propensity: float = 0.5    # of PSP@5
    decile: float = 5.0        # of the recall@5 of a tenth of the labels, where chance does not explain it
    index: float = 90.0        # recall of each index against exact search, at least; also of a first version
    latency: float = 2.0       # times the champion's milliseconds for one text, once it takes more than 20


GATES = Gates()


@dataclass(frozen=True)
class Score:
    """What a version reached on some test queries: metrics in percent, a row a decile of labels, milliseconds."""

    metrics: Mapping[str, float]
    deciles: Sequence[Mapping[str, float]] = ()
    latency: float | None = None    # milliseconds for one text; None where it could not be measured


@dataclass(frozen=True)
class Gate:
    """One gate: what was measured of both, the bound for the new one, and whether it holds."""

    name: str
    ours: float
    theirs: float | None
    bound: float
    holds: bool

    def __str__(self) -> str:
        theirs = "" if self.theirs is None else f" against {self.theirs:.2f} ({self.ours - self.theirs:+.2f})"
        return f"{self.name} {self.ours:.2f}{theirs}{'' if self.holds else f', bound {self.bound:.2f}'}"

    def to_json(self) -> dict[str, Any]:
        """Return the gate as plain data, finite numbers only."""
        return {"gate": self.name, "holds": self.holds, **{
            key: round(value, 4) if value is not None and math.isfinite(value) else None
            for key, value in (("ours", self.ours), ("theirs", self.theirs), ("bound", self.bound))}}


def weigh(ours: Score, theirs: Score | None, gates: Gates = GATES) -> list[Gate]:
    """Return every gate, in the order in which they are told; theirs: None where there is no champion to compare with.

    A number that is missing or is no number does not hold, unless the champion's is none either.
    """
    weighed = [Gate(f"index {name.split('/')[1]!r} recall", value, None, gates.index, value >= gates.index)
               for name, value in ours.metrics.items() if name.startswith("index/")]
    if theirs is None:
        return weighed
    return [*_metrics(ours.metrics, theirs.metrics, gates), *_deciles(ours, theirs, gates), *weighed,
            *_latency(ours, theirs, gates)]


def _metrics(ours: Mapping[str, float], theirs: Mapping[str, float], gates: Gates) -> Iterator[Gate]:
    """Neither metric falls by more than its margin, and not both fall: a version worse in each should not serve."""
    as_good = []
    for key, margin in (("P/1", gates.precision), ("PSP/5", gates.propensity)):
        new, old = ours.get(key, math.nan), theirs.get(key, math.nan)
        holds = new >= old - margin or (math.isnan(old) and not math.isnan(new))
        as_good.append(not new < old)
        yield Gate(key.replace("/", "@"), new, old, old - margin, holds)
    if not any(as_good):
        new, old = (sum(of.get(key, math.nan) for key in ("P/1", "PSP/5")) / 2 for of in (ours, theirs))
        yield Gate("mean of P@1 and PSP@5, each below the champion's,", new, old, old, False)


def _deciles(ours: Score, theirs: Score, gates: Gates) -> Iterator[Gate]:
    """No decile of labels loses more of its recall than the margin, and than chance would."""
    for new, old in zip(ours.deciles, theirs.deciles, strict=False):
        if not new["positives"] or not old["positives"]:
            continue
        key = next(key for key in old if key.startswith("recall/"))
        share = old[key] / 100
        chance = 100 * SIGMA * math.sqrt(2 * share * (1 - share) / old["positives"])
        bound = old[key] - max(gates.decile, chance)
        yield Gate(f"{key.replace('/', '@')} of decile {old['decile']:.0f}", new[key], old[key], bound,
                   new[key] >= bound)


def _latency(ours: Score, theirs: Score, gates: Gates) -> Iterator[Gate]:
    if ours.latency is not None and theirs.latency is not None:
        bound = max(FAST, gates.latency * theirs.latency)
        yield Gate("milliseconds for one text", ours.latency, theirs.latency, bound, ours.latency <= bound)
