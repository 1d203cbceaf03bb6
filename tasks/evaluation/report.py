"""The HTML report of a trained model: is it better than the champion, and where?

`ReportPage` has the page and its charts, `verdict` its first sentence. The page loads no other file and runs no script.
Its size does not grow with the data: bins are fixed, tables are cut, texts are shortened. Texts are untrusted, so each
is made inert and then escaped. The page contains no time: the same inputs give the same bytes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from data_contracts.validate import template
from data_contracts.verdict import escape_text
from tasks.core.wording import duration, one_line, signed, version_name, with_separators
from tasks.evaluation import report_charts, report_confidence
from tasks.evaluation.feedback_effect import FeedbackEffect
from tasks.evaluation.gates import MARGINS, SIGMA, Gate
from tasks.evaluation.thresholds import Answers
from xcmodels import metrics
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.propensity import inverse_propensity
from xcmodels.predictions import Matches, match

CHARTS = 8                # stages that get a learning curve
EXAMPLES = 8              # test queries shown: the surest right ones, and the surest wrong ones
LABELS = 8                # labels shown as over-predicted, and as under-predicted
ROWS = 200                # rows of a table of settings or steps


@dataclass(frozen=True)
class ReportFacts:
    """What the evaluation folder does not hold: the model's origin and the decision about it."""

    title: str                             # "ngame · wordnet"
    run_id: str
    version: str | None                    # in the registry
    command: str                           # reproduces the run
    data: dict[str, Any]                   # name, train, test, labels, digest
    settings: dict[str, Any]               # flat
    changed: dict[str, Any]                # the settings that differ from the preset
    curves: dict[str, list[dict[str, float]]]  # stage -> {"epoch", "loss", ...} per epoch
    champion: dict[str, Any] | None        # the previous champion, as in `PromotionDecision`
    promoted: bool
    reason: str                            # why it was not promoted
    seconds: dict[str, float]              # step -> seconds
    date: str
    memory: Mapping[str, int] = field(default_factory=dict)    # step -> bytes of all processes of the run, at most
    mined: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)    # stage -> hardness per epoch
    gates: Sequence[Gate] = ()
    contract: Mapping[str, Any] = field(default_factory=dict)    # {"rules": how many, "tables": name -> rows}
    reigns: bool = False                   # it was the champion before the run
    note: str = ""                         # on the comparison with the champion
    wanted_precision: float = 0.8          # share of right labels that a threshold is recommended for
    became: str | None = None              # the version that was promoted: this one, or this one with edited labels
    feedback: FeedbackEffect | None = None    # what reviewers' decisions changed, where it learned from any


@dataclass(frozen=True)
class EvaluationFiles:
    """An evaluation folder joined with the truth of its corpus."""

    measured: dict[str, float]     # as `metrics.evaluate` returns it
    deciles: list[dict[str, float]]
    judged: Matches
    scores: np.ndarray             # (m, K) of judged.labels
    answers: Answers               # the confidences of judged.labels
    inverse: np.ndarray            # (L,) 1 / propensity

    @classmethod
    def load(cls, corpus: Corpus, evaluation: Path) -> "EvaluationFiles":
        """Read the folder. Raises ValueError where its predictions are of another test split."""
        content = {name: json.loads((evaluation / f"{name}.json").read_text()) for name in ("metrics", "deciles")}
        truth, filters = corpus.positives["test"], corpus.filters["test"]
        judged = match(np.load(evaluation / "predictions.npy"), truth, filters, corpus.n_labels)
        scores, sure = (np.load(evaluation / f"{name}.npy", mmap_mode="r")[judged.rows]
                        for name in ("scores", "confidences"))
        answers = Answers(np.where(judged.labels >= 0, sure, -1), judged.hits, judged.positives)
        return cls(content["metrics"], content["deciles"], judged, scores, answers, inverse_propensity(corpus))


@dataclass(frozen=True)
class ReportPage:
    """The page of the model of an `evaluation` folder, and its charts, which are drawn once."""

    corpus: Corpus
    evaluation: Path
    facts: ReportFacts

    @cached_property
    def found(self) -> EvaluationFiles:
        """The content of the evaluation folder. Raises ValueError as `EvaluationFiles.load` does."""
        return EvaluationFiles.load(self.corpus, self.evaluation)

    @cached_property
    def charts(self) -> dict[str, list[report_charts.Chart]]:
        """The charts that have data, by section."""
        return _charts(self.corpus, self.found, self.facts)

    def page(self) -> str:
        """Return the page, below 1 MB."""
        corpus, found, facts = self.corpus, self.found, self.facts
        return template(Path(__file__).with_name("report.html"), one_line=one_line,
                        with_separators=with_separators, duration=duration).render(
            facts=facts, verdict=verdict(facts), numbers=_numbers(found, facts), alone=_alone(found),
            alone_points=int(found.measured.get("points/alone", 0)),
            points=len(found.judged.rows), left_out=found.judged.left_out, **self.charts, stages=len(facts.curves),
            labels=_labels(corpus, found), extremes=_extremes(corpus, found), copies=_copies(corpus),
            settings=_settings(facts), rows=ROWS,
            command="\n".join(escape_text(line, 2000) for line in facts.command.splitlines()[:50]))

    def plots(self) -> dict[str, bytes]:
        """Return the charts as SVG files by name: `deciles`, `calibration`, `learning-<number>-<stage>`, ..."""
        return {chart.name: chart.svg for charts in self.charts.values() for chart in charts}


def verdict(facts: ReportFacts) -> str:
    """Return one sentence: how P@1 compares with the champion's, and whether the model was promoted."""
    edited = "" if facts.became in (None, facts.version) else (
        f" as {version_name(facts.became)}, with the labels that were added and removed")
    decision = f"promoted{edited}" if facts.promoted else f"not promoted: {one_line(facts.reason) or 'no reason given'}"
    decision += f"; {one_line(facts.note)}" if facts.note else ""
    if facts.reigns:
        return "it is the champion already"
    if facts.champion is None:
        return f"first model: now champion{edited}" if facts.promoted else f"first model; {decision}"
    champion = "champion " + version_name(facts.champion["version"])
    if "P/1" not in facts.champion["gains"]:
        return f"{champion} has no P@1 to compare with; {decision}" if facts.promoted else decision
    gain = signed(facts.champion["gains"]["P/1"])
    allowed = f", within the {MARGINS[0]:g} points or {SIGMA:g} standard errors that the gates allow" \
        if facts.promoted and gain.startswith("−") else ""
    return f"{gain} P@1 over {champion}{allowed}; {decision}"


def _charts(corpus: Corpus, found: EvaluationFiles, facts: ReportFacts) -> dict[str, list[report_charts.Chart]]:
    before = (facts.champion or {}).get("deciles", ())
    drawn: dict[str, list[report_charts.Chart | None]] = {
        "quality": [report_charts.draw_deciles(found.deciles, len(found.inverse), before),
                    report_confidence.draw_calibration(found.answers),
                    report_confidence.draw_thresholds(found.answers, facts.wanted_precision)],
        "learning": [report_charts.draw_learning(number, one_line(stage, 40), points)
                     for number, (stage, points) in enumerate(list(facts.curves.items())[:CHARTS], 1)]
                    + [report_charts.draw_hardness(number, one_line(stage, 40), points)
                       for number, (stage, points) in enumerate(list(facts.mined.items())[:CHARTS], 1)],
        "profile": [report_charts.draw_frequencies(corpus.frequencies()),
                    report_charts.draw_lengths(corpus.sides["train"].ragged.lengths[:corpus.n_queries])]}
    return {section: [chart for chart in charts if chart is not None] for section, charts in drawn.items()}


def _numbers(found: EvaluationFiles, facts: ReportFacts) -> list[dict[str, str]]:
    """Return the shown metrics with their intervals, for those of the predictions that are kept, and the champion's."""
    bounds = metrics.intervals(found.judged, found.inverse, (1, 5))
    gains = facts.champion["gains"] if facts.champion else {}
    out = []
    for name in metrics.SHOWN:
        value = found.measured[name]
        low, high = bounds.get(name, (value, value))
        note = f"{signed(gains[name])} over the champion" if name in gains else ""
        if note and name in bounds and low <= value - gains[name] <= high:
            note += ", within the interval"
        out.append({"name": metrics.name_of(name), "value": f"{value:.1f}", "champion": note,
                    "interval": f"{low:.1f} to {high:.1f}" if name in bounds else "no interval"})
    return out


def _alone(found: EvaluationFiles) -> list[dict[str, Any]]:
    """Return a row for each score that was measured without the fusion: its name and its metrics."""
    names = dict.fromkeys(key.partition("/by ")[2] for key in found.measured if "/by " in key)
    return [{"name": name, "shown": {metrics.name_of(key): f"{found.measured[f'{key}/by {name}']:.1f}" for key in
                                     metrics.SHOWN if f"{key}/by {name}" in found.measured}} for name in names]


def _labels(corpus: Corpus, found: EvaluationFiles) -> dict[str, list[dict[str, Any]]]:
    """Return the labels that are among the five best more often than they are true, and those less often."""
    best, L = found.judged.labels[:, :5], corpus.n_labels
    predicted, true, right = (np.bincount(labels, minlength=L) for labels in (
        best[best >= 0], found.judged.truth_labels, best[found.judged.hits[:, :5]]))
    surplus, frequencies = predicted - true, corpus.frequencies()
    texts, out = _label_texts(corpus), dict[str, list[dict[str, Any]]]()
    for name, sign in (("over", 1), ("under", -1)):
        worst = np.argsort(-sign * surplus, kind="stable")[:LABELS]
        out[name] = [{"text": texts(label), "predicted": predicted[label], "true": true[label], "right": right[label],
                      "train": frequencies[label]} for label in worst if sign * surplus[label] > 0]
    return out


def _extremes(corpus: Corpus, found: EvaluationFiles) -> list[dict[str, Any]]:
    """Return the test queries with the highest first scores, half right and half wrong ones if possible."""
    judged = found.judged
    by_score = np.argsort(-found.scores[:, 0], kind="stable")
    right, wrong = (by_score[judged.hits[by_score, 0] == hit] for hit in (True, False))
    n = min(len(right), max(EXAMPLES // 2, EXAMPLES - len(wrong)))
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    texts, starts, out = _label_texts(corpus), np.cumsum(judged.positives) - judged.positives, []
    for i in (*right[:n], *wrong[:EXAMPLES - n]):
        true = judged.truth_labels[starts[i]:starts[i] + judged.positives[i]]
        best = zip(judged.labels[i, :5], found.answers.confidences[i, :5], judged.hits[i, :5], strict=True)
        row = int(judged.rows[i])
        out.append({"title": titles[row], "content": contents[row], "line": row + 1, "right": bool(judged.hits[i, 0]),
                    "true": [texts(label) for label in true[:6]], "more": max(len(true) - 6, 0),
                    "predicted": [{"text": texts(label), "confidence": f"{100 * sure:.0f}%", "hit": bool(hit)}
                                  for label, sure, hit in best if label >= 0]})
    return out


def _copies(corpus: Corpus) -> dict[str, Any]:
    """Count the test texts that occur more than once, and those that do with different labels.

    Texts are compared by 64-bit digests: a million different ones collide with a chance of 3e-8.
    """
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    parts = [Ragged(np.asarray(texts.bytes.offsets), np.asarray(texts.bytes.values)) for texts in (titles, contents)]
    filled = np.flatnonzero(parts[0].lengths + parts[1].lengths)
    digests = np.array([_digest(*(part[row] for part in parts)) for row in filled.tolist()], dtype=np.uint64)
    _, group, sizes = np.unique(digests, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    groups = [part for part in np.split(filled[order], np.cumsum(sizes)[:-1]) if len(part) > 1]
    positives = corpus.positives["test"]
    conflicting = [rows for rows in groups if len({positives[row].tobytes() for row in rows}) > 1]
    worst = sorted(conflicting, key=lambda rows: (-len(rows), rows[0]))[:5]
    return {"texts": len(titles), "empty": len(titles) - len(filled), "repeated": sum(map(len, groups)),
            "groups": len(groups), "conflicting": len(conflicting), "conflicting_texts": sum(map(len, conflicting)),
            "worst": [{"text": titles[rows[0]] or contents[rows[0]], "times": len(rows),
                       "lines": [int(row) + 1 for row in rows[:4]],
                       "sets": len({positives[row].tobytes() for row in rows})} for rows in worst]}


def _digest(*parts: np.ndarray) -> int:
    return int.from_bytes(blake2b(b"\xff".join(part.tobytes() for part in parts), digest_size=8).digest(), "little")


def _settings(facts: ReportFacts) -> list[tuple[str, Any, bool]]:
    """Return (name, value, whether it differs from the preset), those that differ first."""
    rows = [(name, value, name in facts.changed) for name, value in {**facts.settings, **facts.changed}.items()]
    return sorted(rows, key=lambda row: (not row[2], row[0]))


def _label_texts(corpus: Corpus) -> Callable[[int], str]:
    """Return a function that gives a label's text, or its uid where the text is empty."""
    uids, titles = corpus.label_texts()
    return lambda label: titles[label] or uids[label]
