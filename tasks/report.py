"""The report of one trained model: a single page that says whether it is better, where, and how sure that is.

`build` gives the page, `plots` its charts alone, `verdict` its first sentence. The page loads nothing from anywhere
and runs no script. Its size does not grow with the data: bins are fixed, tables are cut, texts are shortened. Texts
come from anybody, so each is made inert and then escaped. Nothing tells the time: the same inputs give the same bytes.
"""

import io
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_contracts.page import inert
from xcmodels import metrics, seeds
from xcmodels.corpus import Corpus, Ragged, Texts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Z = 1.959963984540054     # half the width of a 95% interval, in standard errors
NUMBERS = ("P/1", "P/5", "PSP/1", "PSP/5", "nDCG/5", "recall/100")
CHARTS = 8                # stages that get a learning curve
EXAMPLES = 8              # test queries shown, half of them right where there are enough of both
LABELS = 8                # labels shown as over-predicted, and as under-predicted
POINTS = 100              # epochs drawn and listed of a stage
BINS = 10                 # of scores
ROWS = 200                # rows of a table of settings or steps
INK, SOFT, LINE, CARD, FIRST, SECOND = "#1b1f24", "#57606a", "#d0d7de", "#f6f8fa", "#0550ae", "#bc4c00"
DARK = {INK: "#e6edf3", SOFT: "#9da7b3", LINE: "#30363d", CARD: "#161b22", FIRST: "#79c0ff", SECOND: "#ffa657"}
STYLE: Any = {
    "svg.hashsalt": "xcflow", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9.5, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": SOFT, "axes.facecolor": CARD, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": LINE,
    "xtick.color": SOFT, "ytick.color": SOFT, "hatch.color": CARD, "hatch.linewidth": 1.5, "lines.linewidth": 1.8,
    "figure.facecolor": CARD, "figure.constrained_layout.use": True, "legend.frameon": False, "legend.borderpad": 0.2,
    "legend.borderaxespad": 0, "legend.loc": "lower left"}
JOINERS = re.compile("([\u200c\u200d])")     # zero-width, but Persian, Hindi and emoji are wrong without them


@dataclass(frozen=True)
class ReportFacts:
    """What the evaluation folder does not know: where the model comes from and what was decided about it."""

    title: str                             # "ngame · wordnet"
    run_id: str
    version: str | None                    # in the registry
    command: str                           # reproduces the run
    data: dict[str, Any]                   # name, train, test, labels, digest
    settings: dict[str, Any]               # flat
    changed: dict[str, Any]                # the settings that differ from the preset
    curves: dict[str, list[dict[str, float]]]  # stage -> {"epoch", "loss", ...} an epoch
    champion: dict[str, Any] | None        # {"version", "metrics"} of the champion before this run
    promoted: bool
    reason: str                            # why it was not promoted
    seconds: dict[str, float]              # step -> seconds
    date: str


@dataclass(frozen=True)
class Chart:
    """A drawing with what it says in words and in numbers."""

    name: str
    title: str
    kind: str                      # what is drawn, for who cannot see it
    finding: str                   # a sentence computed from the data
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    svg: bytes

    @property
    def address(self) -> str:
        """The drawing as a data: URL."""
        return "data:image/svg+xml;base64," + b64encode(self.svg).decode()


@dataclass(frozen=True)
class Found:
    """An evaluation folder joined with the truth of its corpus."""

    measured: dict[str, float]     # as `metrics.evaluate` returns it
    deciles: list[dict[str, float]]
    judged: metrics.Judged
    scores: np.ndarray             # (m, K) of judged.labels
    inverse: np.ndarray            # (L,) 1 / propensity

    @classmethod
    def load(cls, corpus: Corpus, evaluation: Path) -> "Found":
        """Read the folder. Raises ValueError where its predictions are of another test split."""
        read = {name: json.loads((evaluation / f"{name}.json").read_text()) for name in ("metrics", "deciles")}
        truth, filters = ((part.offsets, part.values) for part in (corpus.positives["test"], corpus.filters["test"]))
        judged = metrics.judge(np.load(evaluation / "predictions.npy"), truth, filters, corpus.n_labels)
        scores = np.load(evaluation / "scores.npy", mmap_mode="r")[judged.rows]
        propensity = metrics.propensity(corpus.frequencies(), corpus.n_queries, *corpus.facts["propensity"])
        return cls(read["metrics"], read["deciles"], judged, scores, 1 / propensity)


def build(corpus: Corpus, evaluation: Path, facts: ReportFacts) -> str:
    """Return the page of the model whose `evaluation` folder this is, below 1 MB."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
                              lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters.update(clean=clean, count=_count, span=_span)
    found = Found.load(corpus, evaluation)
    drawn = _charts(found, facts)
    return environment.get_template("report.html").render(
        facts=facts, verdict=verdict(found.measured, facts), numbers=_numbers(found, facts),
        points=len(found.judged.rows), left_out=found.judged.left_out,
        quality=[chart for chart in drawn if not chart.name.startswith("learning")],
        learning=[chart for chart in drawn if chart.name.startswith("learning")], stages=len(facts.curves),
        labels=_labels(corpus, found), sample=_sample(corpus, found), copies=_copies(corpus), settings=_settings(facts),
        rows=ROWS, command="\n".join(inert(line, 2000) for line in facts.command.splitlines()[:50]))


def plots(corpus: Corpus, evaluation: Path, facts: ReportFacts) -> dict[str, bytes]:
    """Return the page's charts as SVG files by name: `deciles`, `calibration`, `learning-<number>-<stage>`."""
    return {chart.name: chart.svg for chart in _charts(Found.load(corpus, evaluation), facts)}


def verdict(measured: Mapping[str, float], facts: ReportFacts) -> str:
    """Return one sentence: how P@1 compares with the champion's, and whether the model was promoted.

    measured: as `metrics.evaluate` returns it; the champion's metrics have the same keys.
    """
    decision = "promoted" if facts.promoted else f"not promoted: {clean(facts.reason) or 'no reason given'}"
    if facts.champion is None:
        return "first model: now champion" if facts.promoted else f"first model; {decision}"
    champion = "champion " + _version(facts.champion["version"])
    if "P/1" not in facts.champion["metrics"]:
        return f"{champion} has no P@1 to compare with; {decision}"
    return f"{_signed(measured['P/1'] - facts.champion['metrics']['P/1'])} P@1 over {champion}; {decision}"


def intervals(found: Found) -> dict[str, tuple[float, float]]:
    """Return the 95% intervals, in percent, of what the ten best predictions decide, around `found.measured`.

    P and nDCG are means over queries: the normal interval. PSP is a ratio of means, sum g / sum b (gain over best
    attainable gain of a query): the delta method, with the standard error of the mean of (g - PSP b) / mean(b).
    """
    judged, discount = found.judged, 1 / np.log2(np.arange(2, 7))
    ideal = np.cumsum(discount)[np.minimum(judged.positives, 5) - 1]
    hits = judged.hits[:, :5]
    spread = {"P/1": hits[:, 0], "P/5": hits.mean(1), "nDCG/5": hits @ discount / ideal}
    truth = found.inverse[judged.truth_labels]
    order = np.lexsort((-truth, judged.truth_rows))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(judged.positives) - judged.positives, judged.positives)
    for k in (1, 5):
        gain = np.where(hits[:, :k], found.inverse[judged.labels[:, :k]], 0).sum(1)
        best = np.bincount(judged.truth_rows[rank < k], truth[order][rank < k], len(judged.rows))
        spread[f"PSP/{k}"] = (gain - gain.sum() / best.sum() * best) / best.mean()
    half = {name: 100 * Z * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 100.0
            for name, values in spread.items()}
    out = {name: (max(0.0, found.measured[name] - h), min(100.0, found.measured[name] + h)) for name, h in half.items()}
    if "P/1/low" in found.measured:
        out["P/1"] = found.measured["P/1/low"], found.measured["P/1/high"]
    return {name: (float(low), float(high)) for name, (low, high) in out.items()}


def clean(value: object, limit: int = 240) -> str:
    """Return a text on one line, of at most `limit` characters, whose unprintable characters are spelt out."""
    text = " ".join(str(value)[:4 * limit].split())
    text = text if len(text) <= limit else text[:limit - 1] + "…"
    return "".join(part if JOINERS.fullmatch(part) else inert(part, limit) for part in JOINERS.split(text))


def _charts(found: Found, facts: ReportFacts) -> list[Chart]:
    """Draw what there is data for."""
    top = found.judged.labels[:, 0] >= 0
    drawn = [_draw_deciles(found.deciles, len(found.inverse)),
             _draw_calibration(found.scores[top, 0].astype(np.float64), found.judged.hits[top, 0])]
    drawn += [_draw_learning(number, clean(stage, 40), points)
              for number, (stage, points) in enumerate(list(facts.curves.items())[:CHARTS], 1)]
    return [chart for chart in drawn if chart is not None]


def _draw_deciles(table: list[dict[str, float]], n_labels: int) -> Chart:
    """Draw what each decile of labels adds to P@5 and PSP@5, over how much of its positives is found."""
    shown, places = [row for row in table if row["positives"]], np.array([row["decile"] for row in table])
    rarest, tail, head = table[:3], shown[0], shown[-1]
    total = {name: sum(row[name] for row in table) for name in ("P/5", "PSP/5", "labels")}
    sums = {name: sum(row[name] for row in rarest) for name in total}
    finding = (
        f"The three rarest deciles, {100 * sums['labels'] / max(n_labels, 1):.0f}% of the labels, give "
        f"{sums['P/5']:.1f} of the {total['P/5']:.1f} points of P@5 and {sums['PSP/5']:.1f} of the "
        f"{total['PSP/5']:.1f} of PSP@5; recall@5 is {tail['recall/5']:.0f}% in decile {tail['decile']:.0f}, the "
        f"rarest labels in the test, and {head['recall/5']:.0f}% in decile {head['decile']:.0f}, the most frequent.")
    with _figure(4.1) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.bar(places - 0.2, [row["P/5"] for row in table], 0.38, color=FIRST, label="P@5")
        above.bar(places + 0.2, [row["PSP/5"] for row in table], 0.38, color=SECOND, hatch="///", label="PSP@5")
        above.set_ylabel("points added")
        above.legend(bbox_to_anchor=(0, 1), ncols=2)
        below.plot([row["decile"] for row in shown], [row["recall/5"] for row in shown], color=INK, marker="o", ms=5)
        below.set(ylim=(0, 103), ylabel="recall@5, %", xticks=range(1, 11),
                  xlabel="decile of labels: 1 rarest, 10 most frequent")
        svg = _svg(figure)
    rows = [(f"{row['decile']:.0f}", f"{row['labels']:,.0f}",
             "–".join(f"{end:,.0f}" for end in sorted({row["min_frequency"], row["max_frequency"]})),
             f"{row['positives']:,.0f}", f"{row['P/5']:.2f}", f"{row['PSP/5']:.2f}",
             f"{row['recall/5']:.1f}" if row["positives"] else "–") for row in table]
    return Chart("deciles", "By label frequency",
                 "Bars: what each decile of labels adds to P@5 and to PSP@5; line: its recall@5", finding,
                 ("Decile", "Labels", "In training", "Test positives", "P@5", "PSP@5", "Recall@5"), rows, svg)


def _draw_calibration(scores: np.ndarray, hits: np.ndarray) -> Chart | None:
    """Draw how often the first prediction is right, by its score, in bins of equally many; None without predictions.

    Equal scores share a bin, so there may be fewer bins. Intervals are Wilson's, which hold in small bins.
    """
    if not len(scores):
        return None
    edges = np.unique(np.quantile(scores, np.arange(1, BINS) / BINS))
    parts = [part for part in (np.searchsorted(edges, scores, side="right") == i for i in range(BINS)) if part.any()]
    n, means, right = (np.array([of(part) for part in parts]) for of in (
        np.sum, lambda part: scores[part].mean(), lambda part: hits[part].mean()))
    middle = (right + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(right * (1 - right) / n + (Z / (2 * n)) ** 2)
    with _figure(3.2) as figure:
        axes = figure.subplots()
        if probable := bool(scores.min() >= 0 and scores.max() <= 1):
            axes.plot((0, 100), (0, 100), color=SOFT, linestyle="--", linewidth=1, label="score = precision")
        scale = 100 if probable else 1
        arms = 100 * np.array([right - middle + half, middle + half - right]).clip(0)
        axes.errorbar(scale * means, 100 * right, arms, color=FIRST, ecolor=SOFT, elinewidth=1.2, marker="o", ms=5,
                      label="measured, 95% interval")
        axes.set(ylim=(0, 103), ylabel="right, %", xlabel="mean score" + (" x 100" if probable else ""))
        axes.legend(bbox_to_anchor=(0, 1), ncols=2)
        svg = _svg(figure)
    rows = [(f"{scores[part].min():.3f} to {scores[part].max():.3f}", f"{count:,}", f"{100 * share:.1f}",
             f"{100 * max(m - h, 0):.1f} to {100 * min(m + h, 1):.1f}")
            for part, count, share, m, h in zip(parts, n, right, middle, half, strict=True)]
    return Chart("calibration", "Does the score tell?", "Line: share of right first predictions in each bin of scores",
                 _calibration_finding(scores, hits, parts), ("Score", "Queries", "Right, %", "95% interval"), rows, svg)


def _calibration_finding(scores: np.ndarray, hits: np.ndarray, parts: list[np.ndarray]) -> str:
    """Say how far apart the outer bins are, and, of scores between 0 and 1, how far from precision they lie."""
    low, high = (100 * hits[parts[place]].mean() for place in (0, -1))
    if len(parts) == 1:
        return f"Every first prediction has about the same score; {high:.0f}% are right."
    told = ("Scores tell right from wrong" if high - low >= 20 else "Scores tell little" if high - low >= 5 else
            "Scores do not tell right from wrong")
    finding = (f"{told}: of the first predictions {high:.0f}% are right where the score is highest "
               f"(from {scores[parts[-1]].min():.2f}), {low:.0f}% where it is lowest (to {scores[parts[0]].max():.2f})")
    if scores.min() < 0 or scores.max() > 1:
        return finding + "."
    gaps = [(part.sum(), scores[part].mean() - hits[part].mean()) for part in parts]
    error, bias = (100 * sum(n * of(gap) for n, gap in gaps) / len(scores) for of in (abs, float))
    way = "too much" if bias > 0.4 * error else "too little" if bias < -0.4 * error else "now too much, now too little"
    return f"{finding}; read as probabilities they promise {way}, by {error:.1f} points on average."


def _draw_learning(number: int, stage: str, points: list[dict[str, float]]) -> Chart | None:
    """Draw the loss of a stage, and up to two more series, by epoch; None where no epoch has a finite loss."""
    numbers = [{name: value for name, value in point.items() if isinstance(value, int | float) and np.isfinite(value)}
               for point in points]
    points = [{"epoch": i, **point} for i, point in enumerate(numbers) if "loss" in point]
    if not points:
        return None
    finding = _learning_finding([point["loss"] for point in points], [point["epoch"] for point in points])
    points = [points[i] for i in np.unique(np.linspace(0, len(points) - 1, POINTS).astype(int))]
    names = ["loss", *sorted({name for point in points for name in point} - {"epoch", "loss"})][:6]
    drawn = names[:3]
    with _figure(2.6 + 1.1 * (len(drawn) - 1)) as figure:
        panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=(2, 1, 1)[:len(drawn)])[:, 0]
        for axes, name in zip(panels, drawn, strict=True):
            axes.plot([point["epoch"] for point in points], [point.get(name, np.nan) for point in points],
                      color=FIRST if name == "loss" else SECOND, marker="o", ms=4 if len(points) <= 30 else 0)
            axes.set_ylabel(clean(name, 20))
        panels[-1].set_xlabel("epoch")
        panels[-1].xaxis.get_major_locator().set_params(integer=True)
        svg = _svg(figure)
    rows = [(f"{point['epoch']:g}", *(f"{point[name]:.5g}" if name in point else "–" for name in names))
            for point in points]
    slug = re.sub("[^a-z0-9]+", "-", stage.lower()).strip("-")
    return Chart(f"learning-{number}-{slug}".strip("-"), stage,
                 f"Line: {', '.join(clean(name, 20) for name in drawn)} by epoch", finding,
                 ("Epoch", *(clean(name, 20).capitalize() for name in names)), rows, svg)


def _learning_finding(loss: list[float], epochs: list[float]) -> str:
    """Say how far the loss fell and whether it was still falling in the last quarter of the epochs."""
    first, last, best = loss[0], loss[-1], int(np.argmin(loss))
    if len(loss) == 1:
        return f"One epoch, loss {last:.4g}."
    moved = f"from {first:.4g} to {last:.4g} over {len(loss)} epochs"
    if last >= first:
        return f"The loss did not fall: {moved}; lowest, {loss[best]:.4g}, at epoch {epochs[best]:g}."
    share = 100 * (loss[-1 - max(1, len(loss) // 4)] - last) / (first - last)
    end = f"{max(share, 0):.0f}% of the fall came in the last quarter"
    if loss[best] < last - 0.02 * (first - last):
        end = f"it was lowest, {loss[best]:.4g}, at epoch {epochs[best]:g} and rose after"
    elif len(loss) >= 4:
        end = f"it {'had levelled off' if share < 5 else 'was still falling'}: {end}"
    fell = f" {100 * (first - last) / first:.0f}%," if first > 0 else ""
    return f"The loss fell{fell} {moved}; {end}."


@contextmanager
def _figure(height: float) -> "Iterator[Figure]":
    """Give an empty figure of the report's style, whatever the user's own matplotlib settings are."""
    import matplotlib
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"), matplotlib.rc_context(STYLE):
        yield Figure(figsize=(4.7, height))


def _svg(figure: "Figure") -> bytes:
    """Return the figure as SVG that turns dark where its reader does; texts stay texts, in the reader's font."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    swap = "".join(f'[style*="{part}: {old}"],[{part}="{old}"]{{{part}:{new}!important}}'
                   for old, new in DARK.items() for part in ("fill", "stroke"))
    css = ("<style>text{font-family:system-ui,sans-serif!important}"
           f"@media screen and (prefers-color-scheme:dark){{{swap}}}</style>")
    return re.sub(rb"(<svg [^>]*>)", lambda found: found[1] + css.encode(), file.getvalue(), count=1)


def _numbers(found: Found, facts: ReportFacts) -> list[dict[str, str]]:
    """Return the six numbers with their intervals and the champion's."""
    bounds = intervals(found)
    before = facts.champion["metrics"] if facts.champion else {}
    out = []
    for name in NUMBERS:
        value = found.measured[name]
        low, high = bounds.get(name, (value, value))
        note = f"{_signed(value - before[name])} over the champion" if name in before else ""
        if note and low < before[name] < high:
            note += ", within the interval"
        out.append({"name": name.replace("/", "@"), "value": f"{value:.1f}", "champion": note,
                    "interval": f"{low:.1f} to {high:.1f}" if name in bounds else "no interval: 10 predictions kept"})
    return out


def _labels(corpus: Corpus, found: Found) -> dict[str, list[dict[str, Any]]]:
    """Return the labels that are among the five best more often than they are true, and less often."""
    best, L = found.judged.labels[:, :5], corpus.n_labels
    predicted, true, right = (np.bincount(of, minlength=L) for of in (
        best[best >= 0], found.judged.truth_labels, best[found.judged.hits[:, :5]]))
    surplus, frequencies = predicted - true, corpus.frequencies()
    texts, out = _label_texts(corpus), dict[str, list[dict[str, Any]]]()
    for name, sign in (("over", 1), ("under", -1)):
        worst = np.argsort(-sign * surplus, kind="stable")[:LABELS]
        out[name] = [{"text": texts(label), "predicted": predicted[label], "true": true[label], "right": right[label],
                      "train": frequencies[label]} for label in worst if sign * surplus[label] > 0]
    return out


def _sample(corpus: Corpus, found: Found) -> list[dict[str, Any]]:
    """Return some test queries, drawn with a fixed seed, half of them with a wrong first prediction if possible."""
    judged, draw = found.judged, seeds.generator(0, "report sample")
    right, wrong = (draw.permutation(np.flatnonzero(judged.hits[:, 0] == hit)) for hit in (True, False))
    n = min(len(right), max(EXAMPLES // 2, EXAMPLES - len(wrong)))
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    texts, starts, out = _label_texts(corpus), np.cumsum(judged.positives) - judged.positives, []
    for i in (*sorted(right[:n]), *sorted(wrong[:EXAMPLES - n])):
        true = judged.truth_labels[starts[i]:starts[i] + judged.positives[i]]
        best = zip(judged.labels[i, :5], found.scores[i, :5], judged.hits[i, :5], strict=True)
        row = int(judged.rows[i])
        out.append({"title": titles[row], "content": contents[row], "line": row + 1, "right": bool(judged.hits[i, 0]),
                    "true": [texts(label) for label in true[:6]], "more": max(len(true) - 6, 0),
                    "predicted": [{"text": texts(label), "score": f"{score:.3f}", "hit": bool(hit)}
                                  for label, score, hit in best if label >= 0]})
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
    """Return (name, value, differs from the preset), those that differ first."""
    rows = [(name, value, name in facts.changed) for name, value in {**facts.settings, **facts.changed}.items()]
    return sorted(rows, key=lambda row: (not row[2], row[0]))


def _label_texts(corpus: Corpus) -> Callable[[int], str]:
    """Return what gives a label's text, or its uid where the text is empty."""
    uids, titles = corpus.label_texts()
    return lambda label: titles[label] or uids[label]


def _version(version: object) -> str:
    text = clean(version, 40)
    return f"v{text}" if text.isdigit() else text


def _signed(value: float) -> str:
    text = f"{value:+.1f}".replace("-", "−")
    return "±0.0" if text in ("+0.0", "−0.0") else text


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | np.integer) else clean(value, 80)


def _span(seconds: float) -> str:
    """Return a duration as people write it: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"
