"""The charts of a report as SVG, each with a finding and a table of its numbers."""

import io
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.core.wording import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 100              # most epochs of a stage that are drawn and listed
INK, SOFT, LINE, CARD, FIRST, SECOND = "#1b1f24", "#57606a", "#d0d7de", "#f6f8fa", "#0550ae", "#bc4c00"
DARK = {INK: "#e6edf3", SOFT: "#9da7b3", LINE: "#30363d", CARD: "#161b22", FIRST: "#79c0ff", SECOND: "#ffa657"}
STYLE: Any = {
    "svg.hashsalt": "xcflow", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9.5, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": SOFT, "axes.facecolor": CARD, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": LINE,
    "xtick.color": SOFT, "ytick.color": SOFT, "hatch.color": CARD, "hatch.linewidth": 1.5, "lines.linewidth": 1.8,
    "figure.facecolor": CARD, "figure.constrained_layout.use": True, "legend.frameon": False, "legend.borderpad": 0.2,
    "legend.borderaxespad": 0, "legend.loc": "lower left"}


@dataclass(frozen=True)
class Chart:
    """A drawing with its finding in words and its numbers in a table; the same data give the same bytes."""

    name: str
    title: str
    kind: str                      # alternative text: what is drawn
    finding: str                   # a sentence computed from the data
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    svg: bytes

    @property
    def address(self) -> str:
        """The drawing as a data: URL."""
        return "data:image/svg+xml;base64," + b64encode(self.svg).decode()


def draw_deciles(table: list[dict[str, float]], n_labels: int,
                 champion: Sequence[Mapping[str, float]] = ()) -> Chart:
    """Draw what each decile of labels adds to P@5 and PSP@5, and below it the decile's recall@5.

    champion: the champion's rows, where it was measured on the same test queries.
    """
    before = {row["decile"]: row["recall/5"] for row in champion if row["positives"]}
    shown, places = [row for row in table if row["positives"]], np.array([row["decile"] for row in table])
    rarest, tail, head = table[:3], shown[0], shown[-1]
    total = {name: sum(row[name] for row in table) for name in ("P/5", "PSP/5", "labels")}
    sums = {name: sum(row[name] for row in rarest) for name in total}
    finding = (
        f"The three rarest deciles, {100 * sums['labels'] / max(n_labels, 1):.0f}% of the labels, give "
        f"{sums['P/5']:.1f} of the {total['P/5']:.1f} points of P@5 and {sums['PSP/5']:.1f} of the "
        f"{total['PSP/5']:.1f} of PSP@5; recall@5 is {tail['recall/5']:.0f}% in decile {tail['decile']:.0f}, the "
        f"rarest labels in the test, and {head['recall/5']:.0f}% in decile {head['decile']:.0f}, the most frequent.")
    with figure_of(4.1) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        above.bar(places - 0.2, [row["P/5"] for row in table], 0.38, color=FIRST, label="P@5")
        above.bar(places + 0.2, [row["PSP/5"] for row in table], 0.38, color=SECOND, hatch="///", label="PSP@5")
        above.set_ylabel("points added")
        above.legend(bbox_to_anchor=(0, 1), ncols=2)
        below.plot([row["decile"] for row in shown], [row["recall/5"] for row in shown], color=INK, marker="o", ms=5,
                   label="this one")
        if before:
            below.plot(list(before), list(before.values()), color=SOFT, linestyle="--", marker="x", label="champion")
            below.legend(bbox_to_anchor=(0, 1), ncols=2)
        below.set(ylim=(0, 103), ylabel="recall@5, %", xticks=range(1, 11),
                  xlabel="decile of labels: 1 rarest, 10 most frequent")
        svg = svg_of(figure)
    rows = [(f"{row['decile']:.0f}", f"{row['labels']:,.0f}",
             "–".join(f"{end:,.0f}" for end in sorted({row["min_frequency"], row["max_frequency"]})),
             f"{row['positives']:,.0f}", f"{row['P/5']:.2f}", f"{row['PSP/5']:.2f}",
             f"{row['recall/5']:.1f}" if row["positives"] else "–",
             f"{before[row['decile']]:.1f}" if row["decile"] in before else "–") for row in table]
    return Chart("deciles", "By label frequency",
                 "Bars: what each decile of labels adds to P@5 and to PSP@5; line: its recall@5", finding,
                 ("Decile", "Labels", "In training", "Test positives", "P@5", "PSP@5", "Recall@5", "Champion's"),
                 rows, svg)


def draw_frequencies(frequencies: np.ndarray) -> Chart:
    """Draw how many labels occur never, once, twice, 3 to 4, 5 to 8 times, ... in the training queries."""
    few, never = (100 * (frequencies <= most).mean() for most in (5, 0))
    return _histogram(
        "frequencies", "How often labels occur", ("labels", "training queries of a label"), frequencies,
        f"{few:.0f}% of the labels have five training queries or fewer, {never:.0f}% none; half have at most "
        f"{np.median(frequencies):,.0f}, the most frequent has {frequencies.max(initial=0):,}.")


def draw_lengths(tokens: np.ndarray) -> Chart:
    """Draw how many tokens the training queries have, after truncation."""
    longest = tokens.max(initial=0)
    return _histogram(
        "lengths", "How long texts are", ("queries", "tokens of a text"), tokens,
        f"Half of the training queries have at most {np.median(tokens):,.0f} tokens, one in ten "
        f"{np.quantile(tokens, 0.9):,.0f} or more; {100 * (tokens == longest).mean():.1f}% have {longest:,}, the most "
        "of any.")


def _histogram(name: str, title: str, units: tuple[str, str], values: np.ndarray, finding: str) -> Chart:
    """Draw a histogram of counts (n,) with bins 0, 1, 2, 3 to 4, 5 to 8, ...; units: (counted things, count)."""
    bins = np.where(values > 0, np.ceil(np.log2(np.maximum(values, 1))).astype(int) + 1, 0)
    counts = np.bincount(bins)
    shares = 100 * counts / max(len(values), 1)
    bin_names = ["0", *(f"{2**i // 2 + 1:,}–{2**i:,}" if i > 1 else f"{2**i}" for i in range(len(counts) - 1))]
    with figure_of(2.6) as figure:
        axes = figure.subplots()
        axes.bar(range(len(counts)), shares, 0.8, color=FIRST)
        axes.set(ylabel=f"{units[0]}, %", xlabel=units[1])
        axes.set_xticks(range(len(bin_names)), bin_names, rotation=45, ha="right")
        svg = svg_of(figure)
    rows = [(label, f"{count:,}", f"{share:.1f}")
            for label, count, share in zip(bin_names, counts, shares, strict=True)]
    return Chart(name, title, f"Bars: share of the {units[0]} by {units[1]}", finding,
                 (units[1].capitalize(), units[0].capitalize(), "%"), rows, svg)


def draw_learning(number: int, stage: str, points: list[dict[str, float]]) -> Chart | None:
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
    with figure_of(2.6 + 1.1 * (len(drawn) - 1)) as figure:
        panels = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=(2, 1, 1)[:len(drawn)])[:, 0]
        for axes, name in zip(panels, drawn, strict=True):
            axes.plot([point["epoch"] for point in points], [point.get(name, np.nan) for point in points],
                      color=FIRST if name == "loss" else SECOND, marker="o", ms=4 if len(points) <= 30 else 0)
            axes.set_ylabel(one_line(name, 20))
        panels[-1].set_xlabel("epoch")
        _tick_epochs(panels[-1], [point["epoch"] for point in points])
        svg = svg_of(figure)
    rows = [(f"{point['epoch']:g}", *(f"{point[name]:.5g}" if name in point else "–" for name in names))
            for point in points]
    return Chart(f"learning-{number}-{_slug(stage)}".strip("-"), stage,
                 f"Line: {', '.join(one_line(name, 20) for name in drawn)} by epoch", finding,
                 ("Epoch", *(one_line(name, 20).capitalize() for name in names)), rows, svg)


def _learning_finding(loss: list[float], epochs: list[float]) -> str:
    """Return how far the loss fell, and whether it was still falling in the last quarter of the epochs."""
    first, last, best = loss[0], loss[-1], int(np.argmin(loss))
    if len(loss) == 1:
        return f"One epoch, loss {last:.4g}."
    moved = f"from {first:.4g} to {last:.4g} over {len(loss)} epochs"
    if last >= first:
        return f"The loss did not fall: {moved}; lowest, {loss[best]:.4g}, at epoch {epochs[best]:g}."
    share = 100 * (loss[-1 - max(1, len(loss) // 4)] - last) / (first - last)
    end = f"{max(share, 0):.0f}% of the fall came in the last {'quarter' if len(loss) >= 4 else 'epoch'}"
    if loss[best] < last - 0.02 * (first - last):
        end = f"it was lowest, {loss[best]:.4g}, at epoch {epochs[best]:g} and rose after"
    elif len(loss) >= 4:
        end = f"it {'had levelled off' if share < 5 else 'was still falling'}: {end}"
    fell = f" {100 * (first - last) / first:.0f}%," if first > 0 else ""
    return f"The loss fell{fell} {moved}; {end}."


def _slug(stage: str) -> str:
    return re.sub("[^a-z0-9]+", "-", stage.lower()).strip("-")


def draw_hardness(number: int, stage: str, points: Sequence[Mapping[str, float]]) -> Chart | None:
    """Draw the similarity of queries to what was mined for them, by epoch, between their positives and random ones.

    points: "epoch" and what `xcmodels.mining.hardness.hardness` returns. Returns None where nothing was mined that it
    measures.
    """
    names = [name for name in ("positives", "same_cluster", "negatives", "random", "any_query")
             if all(np.isfinite(point.get(name, np.nan)) for point in points)]
    if not points or not names:
        return None
    titles = {"positives": "own labels", "negatives": "mined negatives", "random": "any label",
              "same_cluster": "queries of its cluster", "any_query": "any query"}
    first, last = points[0], points[-1]
    finding = "; ".join(
        f"{titles[hard]} score {last[hard]:z.2f} against {last[easy]:z.2f} of {titles[easy]}"
        + (f" and {last['positives']:.2f} of its {titles['positives']}" if hard == "negatives" else "")
        for hard, easy in (("negatives", "random"), ("same_cluster", "any_query")) if hard in names)
    if "negatives" in names:
        finding += (f"; for {last['harder']:.0f}% of the queries one of them scores above one of their own"
                    + (f", {first['harder']:.0f}% at first" if len(points) > 1 else ""))
    with figure_of(2.9) as figure:
        axes = figure.subplots()
        for name, line in zip(names, ("o-", "s--", "^-.", "x:", "+:"), strict=False):
            axes.plot([point["epoch"] for point in points], [point[name] for point in points], line, label=titles[name],
                      color=FIRST if name in ("positives", "same_cluster") else SECOND if name == "negatives" else SOFT)
        axes.set(xlabel="epoch of mining", ylabel="inner product")
        _tick_epochs(axes, [point["epoch"] for point in points])
        axes.legend(bbox_to_anchor=(0, 1), ncols=2)
        svg = svg_of(figure)
    shown = ["epoch", *names, *(["harder"] if "negatives" in names else [])]
    titles |= {"epoch": "epoch", "harder": "mined scores above own, %"}
    rows = [[f"{point[name]:.4g}" for name in shown] for point in points]
    return Chart(f"mined-{number}-{_slug(stage)}".strip("-"), f"What was mined for {stage}",
                 "Lines: how near a query lies to each kind, by epoch", f"At epoch {last['epoch']:g} {finding}.",
                 [titles[name].capitalize() for name in shown], rows, svg)


def _tick_epochs(axes: "Axes", epochs: Sequence[float]) -> None:
    """Put ticks on whole epochs only; a single epoch gets the only tick."""
    axes.locator_params(axis="x", integer=True)
    if len(epochs) == 1:
        axes.set_xticks(epochs)


@contextmanager
def figure_of(height: float) -> "Iterator[Figure]":
    """Yield an empty figure in the report's style, whatever the user's matplotlib settings are."""
    import matplotlib
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"), matplotlib.rc_context(STYLE):
        yield Figure(figsize=(4.7, height))


def svg_of(figure: "Figure") -> bytes:
    """Return the figure as SVG that follows the reader's dark mode; texts stay texts, in the reader's font."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    swap = "".join(f'[style*="{part}: {old}"],[{part}="{old}"]{{{part}:{new}!important}}'
                   for old, new in DARK.items() for part in ("fill", "stroke"))
    css = ("<style>text{font-family:system-ui,sans-serif!important}"
           f"@media screen and (prefers-color-scheme:dark){{{swap}}}</style>")
    return re.sub(rb"(<svg [^>]*>)", lambda match: match[1] + css.encode(), file.getvalue(), count=1)
