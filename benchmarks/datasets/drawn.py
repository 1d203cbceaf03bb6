"""From texts and labels to a raw data set: drawn, split, filtered, written and counted, the same each time."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from tasks.data.sources.writing import point, raw_folder, write_json_lines, write_pairs
from xcmodels.data.text import clean

TEST_SHARE = 0.2


@dataclass(frozen=True)
class Text:
    """A text with the keys of its labels; texts of one `group` are tested on together or not at all."""

    title: str
    content: str
    labels: frozenset[str]
    group: str = ""


@dataclass(frozen=True)
class Found:
    """What a source gives: texts and labels (title, content) by key, and from which packages under which licences.

    A text and a label of the same key are the same thing.
    """

    texts: Mapping[str, Text]
    labels: Mapping[str, tuple[str, str]]
    source: str
    licence: str


@dataclass(frozen=True)
class Shape:
    """How large a data set is, and how its labels fall; words are those of a training text."""

    train: int
    labels: int
    test: int
    labels_a_text: float
    texts_a_label: float
    median_texts: float
    once: float
    words: float
    label_words: float


@dataclass(frozen=True)
class _Split:
    train: list[str]
    test: list[str]
    labels: list[str]
    filters: dict[str, list[tuple[int, int]]]


def share(text: str, purpose: str) -> float:
    """Return a number in [0, 1) that follows from a text and a purpose alone."""
    return int(hashlib.sha1(f"{purpose}\0{text}".encode()).hexdigest()[:12], 16) / 16**12


def write(name: str, found: Found, out: Path) -> Shape:
    """Write a raw data set to `out` and return its shape.

    Equal texts become one with the labels of all. Left out are labels that no training text has, or without a text,
    and texts without a label. What does not count is WordNet's: the text as its own label, and in test what training
    shows the other way round. Raises UsageError where `out` holds anything else.
    """
    labels = {key: (clean(title), clean(content)) for key, (title, content) in found.labels.items() if clean(title)}
    texts = _merged(found.texts, labels.keys())
    split = _split(texts, labels.keys())
    ids = {key: number for number, key in enumerate(split.labels)}
    about = {"name": name, "propensity": {"a": 0.55, "b": 1.5}, "source": found.source, "licence": found.licence}
    rows: dict[str, list[list[int]]] = {}
    with raw_folder(out, about) as made:
        for side, stem, keys in (("train", "trn", split.train), ("test", "tst", split.test)):
            rows[side] = [sorted(ids[label] for label in texts[key].labels if label in ids) for key in keys]
            write_json_lines(made / f"{stem}.json.gz", (
                point(key, texts[key].title, texts[key].content, own)
                for key, own in zip(keys, rows[side], strict=True)))
            write_pairs(made / f"filter_labels_{side}.txt", split.filters[side])
        write_json_lines(made / "lbl.json.gz", (point(key, *labels[key]) for key in split.labels))
    return _shape([f"{texts[key].title} {texts[key].content}" for key in split.train], rows["train"],
                  len(split.test), [" ".join(labels[key]) for key in split.labels])


def _merged(texts: Mapping[str, Text], known: Iterable[str]) -> dict[str, Text]:
    """Return cleaned texts with known labels, equal ones as one under the first of their keys."""
    known, first = set(known), dict[tuple[str, str], str]()
    merged: dict[str, Text] = {}
    for key in sorted(texts):
        title, content = clean(texts[key].title), clean(texts[key].content)
        own = (texts[key].labels & known) - {key}
        if not own or not (title or content):
            continue
        kept = first.setdefault((title, content), key)
        before = merged.get(kept, Text(title, content, frozenset(), texts[key].group or f"{title}\0{content}"))
        merged[kept] = Text(title, content, before.labels | own, before.group)
    return merged


def _split(texts: Mapping[str, Text], known: Iterable[str]) -> _Split:
    """Return the keys of both halves and of the labels, sorted, and by half the pairs that do not count."""
    tested = {key for key, text in texts.items() if share(text.group, "test") < TEST_SHARE}
    train = [key for key in texts if key not in tested]
    labels = sorted(set().union(*(texts[key].labels for key in train)) & set(known))
    ids, trained = {key: number for number, key in enumerate(labels)}, set(train)
    hidden = {key: ({label for label in texts[key].labels & trained if key in texts[label].labels} | {key}) & ids.keys()
              for key in tested}
    test = [key for key in texts if key in tested and (texts[key].labels & ids.keys()) - hidden[key]]
    shown = [(row, ids[label]) for row, key in enumerate(test) for label in sorted(hidden[key])]
    return _Split(train, test, labels, {
        "train": [(row, ids[key]) for row, key in enumerate(train) if key in ids], "test": shown})


def _shape(texts: Sequence[str], rows: Sequence[Sequence[int]], test: int, labels: Sequence[str]) -> Shape:
    counts = Counter(label for row in rows for label in row)
    return Shape(len(rows), len(labels), test, fmean(map(len, rows)), fmean(counts.values()), median(counts.values()),
                 fmean(count == 1 for count in counts.values()), fmean(len(text.split()) for text in texts),
                 fmean(len(text.split()) for text in labels))
