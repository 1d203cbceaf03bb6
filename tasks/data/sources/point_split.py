"""The split of points that may be labels of one another into train and test, and the pairs that must not count."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from tasks.data.sources import writing


@dataclass(frozen=True)
class Split:
    """A data set by keys, each list sorted; filters: of train and of test the pairs of row and label id."""

    train: list[str]
    test: list[str]
    labels: list[str]
    filters: Mapping[str, list[tuple[int, int]]]


def split_points(labels_of: Mapping[str, Set[str]], tested: Set[str]) -> Split:
    """Return who is for training, for testing and a label, and the pairs that must not count.

    labels_of: in the order of the keys, what each point has for labels. tested: the keys of those for testing.
    A pair does not count when the point is the label itself, or, in test, when training shows it the other way round.
    Labels are what training points have; points for which no label is left are dropped.
    """
    train = [key for key, labels in labels_of.items() if labels and key not in tested]
    known = sorted(set().union(*(labels_of[key] for key in train)))
    ids, trained = {key: number for number, key in enumerate(known)}, set(train)
    hidden = {key: ({label for label in labels_of[key] & trained if key in labels_of[label]} | {key}) & ids.keys()
              for key in tested}
    test = [key for key, labels in labels_of.items() if key in tested and (labels & ids.keys()) - hidden[key]]
    return Split(train, test, known, {
        "train": [(row, ids[key]) for row, key in enumerate(train) if key in ids],
        "test": [(row, ids[label]) for row, key in enumerate(test) for label in sorted(hidden[key])]})


def write_split(folder: Path, split: Split, labels_of: Mapping[str, Set[str]], texts: Mapping[str, tuple[str, str]],
                labels: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Write points, labels and filter pairs; return their counts. texts, labels: key -> title and content."""
    ids = {key: number for number, key in enumerate(split.labels)}
    counts = {}
    for name, stem, keys in (("train", "trn", split.train), ("test", "tst", split.test)):
        rows = [sorted(ids[label] for label in labels_of[key] if label in ids) for key in keys]
        counts[name] = writing.write_json_lines(folder / f"{stem}.json.gz", (
            writing.json_row(key, *texts[key], row) for key, row in zip(keys, rows, strict=True)))
        counts[f"positives_{name}"] = sum(map(len, rows))
        counts[f"filters_{name}"] = writing.write_pairs(folder / f"filter_labels_{name}.txt", split.filters[name])
    counts["labels"] = writing.write_json_lines(folder / "lbl.json.gz", (
        writing.json_row(key, *labels[key]) for key in split.labels))
    return counts
