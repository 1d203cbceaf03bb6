"""The model card of a version: intended use, data, metrics and measured limits."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.gates import FITTED, UNFITTED, Score
from xcmodels.metrics import SHOWN, name_of


def model_card(title: str, score: Score, *, use: str, data: Mapping[str, Any], command: str,
               threshold: str = "") -> str:
    """Return a version's description in Markdown; its limits follow from the score.

    data: facts by name. threshold: a sentence that recommends one.
    """
    metrics = score.metrics
    facts = [f"- {name}: {value:,}" if isinstance(value, int) else f"- {name}: {value}" for name, value in data.items()]
    shown = [key for key in SHOWN if key in metrics]
    table = ["| " + " | ".join(map(name_of, shown)) + " |", "|" + " --- |" * len(shown),
             "| " + " | ".join(f"{metrics[key]:.2f}" for key in shown) + " |"]
    return "\n".join([
        f"# {title}", "", "## Intended use", "", use, "", "## Data", "", *facts, "", "## Metrics", "",
        "In percent, on the test queries, filter pairs left out.", "", *table, "", "Measured by:", "",
        f"    {command}", "", "## Limits", "", *_limits(metrics, score.deciles, threshold), ""])


def _limits(metrics: Mapping[str, float], deciles: Sequence[Mapping[str, float]], threshold: str) -> list[str]:
    out = ["- It answers every text with labels from its own list, also one that none of them fits, unless a threshold "
           "leaves out those of low confidence."]
    out += [f"- {threshold}"] if threshold else []
    if "calibration/error" in metrics:
        out.append(f"- Its confidences are off by {metrics['calibration/error']:.1f} points on average, over the five "
                   "best labels of each test query.")
    if metrics.get(FITTED) == 0:
        out.append(f"- Its {UNFITTED}.")
    if "P/1" in metrics:
        out.append(f"- The best label is wrong for {100 - metrics['P/1']:.1f}% of the test queries.")
    if {"P/1/low", "P/1/high"} <= metrics.keys():
        out.append(f"- P@1 lies between {metrics['P/1/low']:.2f} and {metrics['P/1/high']:.2f} (95% interval).")
    judged = [decile for decile in deciles if decile["positives"]]
    if judged:
        low, high = judged[0], judged[-1]
        key = next(key for key in low if key.startswith("recall/"))
        out.append(f"- Rare labels: of the true labels seen at most {low['max_frequency']:,.0f} times in training, "
                   f"{low[key]:.1f}% are among the best {key.partition('/')[2]}; "
                   f"of the most frequent ones {high[key]:.1f}%.")
    if metrics.get("left_out"):
        out.append(f"- {metrics['left_out']:,.0f} test queries without a true label were not judged.")
    out += [f"- The index {key.split('/')[1]!r} finds {value:.1f}% of what exact search finds."
            for key, value in metrics.items() if key.startswith("index/") and value < 99.95]
    return out
