"""Build a raw data set from texts and labels: clean, merge, split, filter, write, and count; deterministic."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from data_contracts.errors import ProjectError
from tasks.data.sources.point_split import split_points, write_split
from tasks.data.sources.raw import GROUPS
from tasks.data.sources.writing import raw_folder, write_lines
from xcmodels.data.text import clean

TEST_SHARE = 0.2
# of docs/datasets.md: counts and means; "median": texts of the median label; "with one": share of labels with one text
COLUMNS = ("train", "labels", "test", "labels a text", "texts a label", "median", "with one", "words", "words a label")


@dataclass(frozen=True)
class Text:
    """A text with the keys of its labels; texts of one `group` are all in train or all in test."""

    title: str
    content: str
    labels: frozenset[str]
    group: str = ""


@dataclass(frozen=True)
class RawSet:
    """Texts and labels (title, content) by key; source: the packages that they are from.

    A text and a label with the same key are the same thing.
    """

    texts: Mapping[str, Text]
    labels: Mapping[str, tuple[str, str]]
    source: str
    licence: str


def hash_fraction(text: str, purpose: str) -> float:
    """Return a number in [0, 1) that is determined by a text and a purpose."""
    return int(hashlib.sha1(f"{purpose}\0{text}".encode()).hexdigest()[:12], 16) / 16**12


def write(name: str, raw: RawSet, out: Path) -> list[str]:
    """Write a raw data set to `out` and return its COLUMNS.

    Equal texts are merged and get the labels of all. Texts without a label are left out, and so are labels without a
    text or without a training text. Filter pairs, as in WordNet: a text with itself as label, and a test pair whose
    inverse is a training pair. Raises UsageError where `out` has other files, and ProjectError, with `out` as it was,
    where no training text is left.
    """
    labels = {key: (clean(title), clean(content)) for key, (title, content) in raw.labels.items() if clean(title)}
    texts = _merged(raw.texts, labels.keys())
    labels_of = {key: text.labels for key, text in texts.items()}
    split = split_points(labels_of, {
        key for key, text in texts.items()
        if hash_fraction(text.group or f"{text.title}\0{text.content}", "test") < TEST_SHARE})
    if not split.train:
        raise ProjectError(f"{name} has no training text: {len(raw.texts):,} texts and {len(raw.labels):,} labels were "
                           "found", hint="look whether its packages can be fetched, and what they hold")
    about = {"name": name, "propensity": {"a": 0.55, "b": 1.5}, "source": raw.source, "licence": raw.licence}
    with raw_folder(out, about) as folder:
        write_split(folder, split, labels_of, {key: (text.title, text.content) for key, text in texts.items()}, labels)
        if any(texts[key].group for key in split.train):
            write_lines(folder / GROUPS, (texts[key].group for key in split.train))
    return _statistics([f"{texts[key].title} {texts[key].content}" for key in split.train],
                       [labels_of[key] for key in split.train], len(split.test),
                       [" ".join(labels[key]) for key in split.labels])


def _merged(texts: Mapping[str, Text], known: Iterable[str]) -> dict[str, Text]:
    """Return cleaned texts with known labels; equal texts are merged under their first key."""
    known, first = set(known), dict[tuple[str, str], str]()
    merged: dict[str, Text] = {}
    for key in sorted(texts):
        title, content = clean(texts[key].title), clean(texts[key].content)
        labels = (texts[key].labels & known) - {key}
        if not labels or not (title or content):
            continue
        kept = first.setdefault((title, content), key)
        before = merged.get(kept, Text(title, content, frozenset(), texts[key].group))
        merged[kept] = Text(title, content, before.labels | labels, before.group)
    return merged


def _statistics(texts: Sequence[str], rows: Sequence[Set[str]], test: int, labels: Sequence[str]) -> list[str]:
    counts = Counter(label for row in rows for label in row)
    share_with_one, words, label_words = fmean(count == 1 for count in counts.values()), *(
        fmean(len(text.split()) for text in side) for side in (texts, labels))
    return [f"{len(rows):,}", f"{len(labels):,}", f"{test:,}", f"{fmean(map(len, rows)):.1f}",
            f"{fmean(counts.values()):.1f}", f"{median(counts.values()):g}", f"{share_with_one:.0%}", f"{words:.0f}",
            f"{label_words:.0f}"]
