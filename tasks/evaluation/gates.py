"""Promotion gates: a version may not be worse than the champion on the same queries.

They are pure functions of measurements, so that a refusal shows each number that led to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xcmodels.metrics import HEADLINE, name_of

CALIBRATION_ERROR, FITTED = "calibration/error", "calibration/queries"
UNFITTED = ("confidences were fitted on no query, as no validation query has a label that another training query has: "
            "they rise with the score, and say no more")
# A metric's loss is refused if it exceeds both its margin and SIGMA standard errors: chance explains a smaller one.
SIGMA = 2.0
MARGINS = (0.5, 0.5)     # percentage points of P@1 and of PSP@5
DECILE_MARGIN = 5.0      # percentage points of the recall@5 of a tenth of the labels
INDEX_RECALL = 90.0      # least recall of each index against exact search; also of a first version
CALIBRATION = 5.0        # points of calibration error that are few enough, whatever the champion's
FIRST_CALIBRATION = 10.0    # points that a first version may have
LATENCY_RATIO = 2.0      # times the champion's milliseconds for one text, once it takes more than FAST
FAST = 20.0              # milliseconds that are fast enough, whatever the champion's latency


@dataclass(frozen=True)
class Score:
    """A version's metrics in percent on some test queries, one row per decile of labels, and its latency."""

    metrics: Mapping[str, float]
    deciles: Sequence[Mapping[str, float]] = ()
    latency: float | None = None    # milliseconds for one text; None where it could not be measured


@dataclass(frozen=True)
class Comparison:
    """The scores of a version and the champion on the same test queries, in this order.

    errors: standard errors of the differences, as `metrics.difference_errors` names them. left_out: how many of
    `queries` were left out, as one of the two was trained on them.
    """

    scores: Sequence[Score]
    queries: int = 0
    left_out: int = 0
    errors: Mapping[str, float] = field(default_factory=dict)

    def note(self, *names: str) -> str:
        """Return a note on the scores; names: the display names of the versions."""
        if not self.left_out:
            return ""
        return (f"{self.left_out:,} of {self.queries:,} test queries are left out: "
                f"{' or '.join(names)} was trained on them")


class Incomparable(ValueError):
    """Raised where no test query can compare two versions."""


@dataclass(frozen=True)
class Gate:
    """One gate: the values of both versions, the bound for the new one, and whether it holds."""

    name: str
    ours: float
    theirs: float | None
    bound: float
    holds: bool
    error: float | None = None    # standard error of ours - theirs, where there is one

    def __str__(self) -> str:
        error = f", standard error {self.error:.2f}" if self.error and math.isfinite(self.error) else ""
        theirs = "" if self.theirs is None else f" against {self.theirs:.2f} ({self.ours - self.theirs:+.2f}{error})"
        return f"{self.name} {self.ours:.2f}{theirs}{'' if self.holds else f', bound {self.bound:.2f}'}"

    def to_json(self) -> dict[str, Any]:
        """Return the gate as plain data, finite numbers only."""
        return {"gate": self.name, "holds": self.holds, **{
            key: round(value, 4) if value is not None and math.isfinite(value) else None
            for key, value in (("ours", self.ours), ("theirs", self.theirs), ("bound", self.bound),
                               ("error", self.error))}}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Gate":
        """Return the gate that `to_json` wrote; a number that was not finite is NaN."""
        ours, bound = (math.nan if told[key] is None else told[key] for key in ("ours", "bound"))
        return cls(told["gate"], ours, told["theirs"], bound, told["holds"], told["error"])


def evaluate_gates(ours: Score, theirs: Score | None, errors: Mapping[str, float] | None = None) -> list[Gate]:
    """Return every gate, in display order; theirs: None where there is no champion to compare with.

    errors: standard errors of the differences, as `metrics.difference_errors` returns them; where they are not known,
    those of two independent samples, which are larger. A missing or NaN value fails its gate; where the
    champion's alone is missing, any value holds.
    """
    absolute = [Gate(f"index {name.split('/')[1]!r} recall", value, None, INDEX_RECALL, value >= INDEX_RECALL)
                for name, value in ours.metrics.items() if name.startswith("index/")]
    absolute += _calibration(ours.metrics, None if theirs is None else theirs.metrics)
    if theirs is None:
        return absolute
    return [*_metrics(ours.metrics, theirs.metrics, errors or {}), *_deciles(ours, theirs, errors or {}),
            *absolute, *_latency(ours, theirs)]


def _metrics(ours: Mapping[str, float], theirs: Mapping[str, float], errors: Mapping[str, float]) -> Iterator[Gate]:
    """Yield the gates of the metrics: neither may lose more than its margin, nor may both be worse at all."""
    points, as_good = theirs.get("points", 0.0), []
    for key, margin in zip(HEADLINE, MARGINS, strict=True):
        new, old = ours.get(key, math.nan), theirs.get(key, math.nan)
        gate = _loss_gate(name_of(key), new, old, margin, errors.get(key, _independent_error(old, points)))
        as_good.append(not new < old)
        yield replace(gate, holds=gate.holds or (math.isnan(old) and not math.isnan(new)))
    if not any(as_good):
        new, old = (sum(values.get(key, math.nan) for key in HEADLINE) / 2 for values in (ours, theirs))
        yield _loss_gate("mean of P@1 and PSP@5, each below the champion's,", new, old, 0.0,
                         errors.get("mean", _independent_error(old, points)))


def _deciles(ours: Score, theirs: Score, errors: Mapping[str, float]) -> Iterator[Gate]:
    """Yield the gates of the deciles: none may lose more recall than the margin."""
    for new, old in zip(ours.deciles, theirs.deciles, strict=False):
        if not new["positives"] or not old["positives"]:
            continue
        key = next(key for key in old if key.startswith("recall/"))
        error = errors.get(f"decile/{old['decile']:.0f}", _independent_error(old[key], old["positives"]))
        name = f"{key.replace('/', '@')} of decile {old['decile']:.0f}"
        yield _loss_gate(name, new[key], old[key], DECILE_MARGIN, error)


def _loss_gate(name: str, new: float, old: float, margin: float, error: float) -> Gate:
    """Return the gate of a value that may be lower by its margin, or by what chance explains."""
    bound = old - max(margin, SIGMA * error)
    return Gate(name, new, old, bound, new >= bound, error)


def _independent_error(percent: float, count: float) -> float:
    """Return the standard error of the difference of two shares near `percent`, of independent samples of `count`.

    0 where there is no count: then nothing is attributed to chance.
    """
    share = min(max(percent / 100, 0.0), 1.0)
    return 100 * math.sqrt(2 * share * (1 - share) / count) if count else 0.0


def _calibration(ours: Mapping[str, float], theirs: Mapping[str, float] | None) -> Iterator[Gate]:
    """Yield the gate of the calibration error: no more than the champion's, than is few enough, and than chance makes.

    Chance: SIGMA standard errors, at most, of the difference between two shares, of the held-out queries that
    confidences were fitted on and of the test queries that they are measured on. Confidences that were fitted on no
    query are judged only beside a champion whose were fitted: chance in the fit explains nothing of their error.
    """
    error, fitted = ours.get(CALIBRATION_ERROR), ours.get(FITTED, 0.0)
    if error is None or (not fitted and not (theirs or {}).get(FITTED)):
        return
    before = None if theirs is None else theirs.get(CALIBRATION_ERROR)
    bound = max(FIRST_CALIBRATION if theirs is None else CALIBRATION, before or 0.0,
                100 * SIGMA * 0.5 * math.sqrt(1 / (fitted or math.inf) + 1 / max(ours.get("points", 0.0), 1.0)))
    yield Gate("calibration error", error, before, bound, error <= bound)


def _latency(ours: Score, theirs: Score) -> Iterator[Gate]:
    if ours.latency is not None and theirs.latency is not None:
        bound = max(FAST, LATENCY_RATIO * theirs.latency)
        yield Gate("milliseconds for one text", ours.latency, theirs.latency, bound, ours.latency <= bound)
