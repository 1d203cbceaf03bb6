"""The charts of a report on confidence: whether it holds, and what each threshold of it gives."""

import numpy as np

from tasks.evaluation.report_charts import FIRST, INK, SECOND, SOFT, Chart, figure_of, svg_of
from tasks.evaluation.thresholds import SHOWN, Answers, advice, at_threshold
from xcmodels.retrieval.calibration import BEST, calibration_error

Z = 1.959963984540054     # half the width of a 95% interval, in standard errors
BINS = 15                 # of confidences, as in the calibration error
RARER = 10                # right and wrong answers that are needed to say whether confidences hold
CLOSE, FAR = 2.0, 5.0     # points of calibration error within which confidences hold, and nearly hold


def draw_calibration(answers: Answers) -> Chart | None:
    """Draw the share of right answers by confidence, in bins of equal size; None without answers.

    The answers are the BEST labels of each query. Equal confidences share a bin, so there may be fewer bins. Intervals
    are Wilson's, which are valid for small bins.
    """
    given = answers.confidences[:, :BEST] >= 0
    sure, right = (part[:, :BEST][given] for part in (answers.confidences.astype(np.float64), answers.right))
    if not len(sure):
        return None
    edges = np.unique(np.quantile(sure, np.arange(1, BINS) / BINS))
    parts = [part for part in (np.searchsorted(edges, sure, side="right") == i for i in range(BINS)) if part.any()]
    n, means, shares = (np.array([statistic(part) for part in parts]) for statistic in (
        np.sum, lambda part: sure[part].mean(), lambda part: right[part].mean()))
    middle = (shares + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * np.sqrt(shares * (1 - shares) / n + (Z / (2 * n)) ** 2)
    with figure_of(3.2) as figure:
        axes = figure.subplots()
        axes.plot((0, 100), (0, 100), color=SOFT, linestyle="--", linewidth=1, label="as sure as right")
        bars = 100 * np.array([shares - middle + half, middle + half - shares]).clip(0)
        axes.errorbar(100 * means, 100 * shares, bars, color=FIRST, ecolor=SOFT, elinewidth=1.2, marker="o", ms=5,
                      label="measured, 95% interval")
        axes.set(ylim=(0, 103), ylabel="right, %", xlabel="mean confidence, %")
        axes.legend(bbox_to_anchor=(0, 1), ncols=2)
        svg = svg_of(figure)
    rows = [(f"{100 * sure[part].min():.1f} to {100 * sure[part].max():.1f}", f"{count:,}", f"{100 * mean:.1f}",
             f"{100 * share:.1f}", f"{100 * max(m - h, 0):.1f} to {100 * min(m + h, 1):.1f}")
            for part, count, mean, share, m, h in zip(parts, n, means, shares, middle, half, strict=True)]
    return Chart("calibration", "Does the confidence hold?", "Line: share of right labels in each bin of confidence",
                 _finding(sure, right), ("Confidence, %", "Labels", "Mean, %", "Right, %", "95% interval"), rows, svg)


def _finding(sure: np.ndarray, right: np.ndarray) -> str:
    """Return by how much confidences are off, and in which direction."""
    rarer, error, bias = min(right.sum(), len(right) - right.sum()), calibration_error(sure, right), \
        100 * float(sure.mean() - right.mean())
    if rarer < RARER:
        kind = "wrong" if right.mean() > 0.5 else "right"
        return (f"Only {rarer} of {len(right):,} labels {'is' if rarer == 1 else 'are'} {kind}, too few to say whether "
                "confidences hold.")
    verdict = "hold" if error <= CLOSE else "nearly hold" if error <= FAR else "do not hold"
    way = "too high" if bias > 0.4 * error else "too low" if bias < -0.4 * error else "now too high, now too low"
    return (f"Confidences {verdict}: of the {BEST} best labels of each query {100 * sure.mean():.1f}% are said to be "
            f"right, and {100 * right.mean():.1f}% are; they are off by {error:.1f} points on average, {way}.")


def draw_thresholds(answers: Answers, wanted: float) -> Chart | None:
    """Draw the share of right labels, and of true labels given, by threshold; None without answers.

    wanted: the share of right labels that a threshold is recommended for.
    """
    if not (answers.confidences >= 0).any():
        return None
    table = [at_threshold(answers, threshold) for threshold in SHOWN]
    with figure_of(3.2) as figure:
        axes = figure.subplots()
        axes.axhline(100 * wanted, color=SOFT, linestyle="--", linewidth=1, label="wanted")
        for name, color, mark in (("right", FIRST, "o-"), ("found", SECOND, "s-"), ("silent", INK, "x:")):
            label = {"right": "labels right", "found": "true labels given", "silent": "texts without one"}[name]
            axes.plot(SHOWN, [100 * getattr(row, name) for row in table], mark, color=color, ms=4, label=label)
        axes.set(ylim=(0, 103), ylabel="%", xlabel="threshold")
        axes.legend(bbox_to_anchor=(0, 1), ncols=2)
        svg = svg_of(figure)
    rows = [(f"{row.threshold:.2f}", "–" if np.isnan(row.right) else f"{100 * row.right:.1f}", f"{100 * row.found:.1f}",
             f"{row.labels:.2f}", f"{100 * row.silent:.1f}") for row in table]
    return Chart("thresholds", "What a threshold gives", "Lines: labels right, true labels given and texts without a "
                 "label, by threshold", advice(answers, wanted),
                 ("Threshold", "Right, %", "True labels given, %", "Labels a text", "Texts without, %"), rows, svg)
