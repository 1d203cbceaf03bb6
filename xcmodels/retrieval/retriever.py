"""The public retriever: predicts the labels of texts by name, and explains them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from xcmodels.data.corpus import Texts
from xcmodels.data.label_branches import Branches
from xcmodels.data.tokens import Tokens
from xcmodels.retrieval.examples import Examples
from xcmodels.retrieval.proposers import Selection
from xcmodels.retrieval.ranker import Ranker, check_finite
from xcmodels.retrieval.selection import Entry, Selector

WORDS_SHOWN = 6    # of a text, for a label


class Label(NamedTuple):
    """One predicted label: `id` is its line in the label file, counted from 0; confidence: the chance that it is right.

    Scores compare labels of one retriever; confidences, which rise with them, also those of others.
    """

    id: int
    uid: str
    text: str
    score: float
    confidence: float

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "uid": self.uid, "text": self.text, "score": self.score, "confidence": self.confidence}


@dataclass(frozen=True)
class SimilarText:
    """A training text of a label: its cosine with the explained text by the query encoder, and its labels' texts."""

    text: str
    similarity: float
    labels: list[str]


@dataclass(frozen=True)
class Explanation:
    """The parts that a label's score is the sum of, its number of training texts, and the most similar of those.

    parts: those that the retriever has of "encoder" (the label's own text), "classifier", "similar texts" (the centroid
    of the label's training texts), "words" (shared with them), "sparse" (the linear classifier over words), "frequent"
    (that of a frequent label over all words), "name" (how much of the label's name the text has), "trees" (what the
    fusion adds to the others). words: those of the text that spoke most for the label or against it, and what they add
    to the log-odds of "sparse"; none without it.
    """

    parts: dict[str, float]
    words: dict[str, float]
    frequency: int
    nearest: list[SimilarText]


class Retriever(Ranker):
    """Tags texts with the best of its labels.

    It is not pickled or copied: another process loads its own, or is forked.

    >>> retriever = Retriever.load(Path("retriever"))
    >>> retriever.predict(["a member of the genus Canis"], k=5)
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.examples = Examples.load(folder / "examples")
        self.titles = Texts.load(folder, "label.title")
        self.select = Selector(self.everything, self.uids, Branches.load(folder))

    @classmethod
    def load(cls, folder: Path | str) -> "Retriever":
        """Open the retriever in `folder`; its matrices are mapped, not read."""
        return cls(Path(folder))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Retriever is not pickled or copied; load it in each process: xcflow.load, Retriever.load")

    def __repr__(self) -> str:
        return f"Retriever({self.facts['method']} on {self.facts['data']}, {len(self):,} labels)"

    def predict(self, texts: Sequence[str], k: int = 10, contents: Sequence[str] | None = None,
                threshold: float = 0.0, *, only: Iterable[Entry] | None = None,
                without: Iterable[Entry] | None = None) -> list[list[Label]]:
        """Return the best `k` labels of each text, best first; none for one of which nothing is read, such as a blank.

        contents: a longer text for each query, where queries have titles and contents; a text alone is read as a title,
        or as a content where training texts are untitled. threshold: the least confidence
        of a label, 0 to 1; a text that no label fits as surely gets none. only, without: the labels to choose from, and
        those to leave out, each by its uid, or {"under": uid} for a concept and all that is narrower.
        Raises ValueError for k < 1, for another threshold, for a single text in place of a list, for what is no text,
        for contents of another number than the texts, and for labels that are unknown.
        """
        return self.predict_among(self.select(only, without), texts, k, contents, threshold)

    def predict_among(self, selection: Selection | None, texts: Sequence[str], k: int = 10,
                      contents: Sequence[str] | None = None, threshold: float = 0.0) -> list[list[Label]]:
        """Return what `predict` does, of the labels of a selection that `select` made, None for all."""
        selection = selection or self.everything
        _check_count("k", k, 1)
        _check_threshold(threshold)
        tokens = self._tokens(texts, contents)
        ids, scores = self.search(tokens, min(k, selection.count), selection)
        read = (tokens.offsets.diff() > 0).numpy()
        confidences = self.calibration(scores).round(6)
        valid = (ids >= 0) & read[:, None] & (confidences >= threshold)
        chosen, rounded = ids[valid], scores[valid].astype(np.float64).round(6)
        labels = map(Label._make, zip(chosen.tolist(), self.uids.take(chosen), self.titles.take(chosen),
                                      rounded.tolist(), confidences[valid].tolist(), strict=True))
        return [list(islice(labels, count)) for count in valid.sum(1).tolist()]

    @cached_property
    def untitled(self) -> bool:
        """Whether most of the training texts that it keeps have a content and no title, as full texts do."""
        titles = np.asarray(self.examples.side.titles)
        return bool(2 * np.count_nonzero(titles == 0) > len(titles))

    def fields(self, texts: list[str], contents: list[str]) -> tuple[list[str], list[str]]:
        """Return the titles and the contents that texts are read as: a text alone as its training texts were.

        A title has embeddings and a length of its own.
        """
        if not self.untitled:
            return texts, contents
        titled = [bool(content) for content in contents or [""] * len(texts)]
        return ([text if both else "" for text, both in zip(texts, titled, strict=True)],
                [contents[i] if both else texts[i] for i, both in enumerate(titled)])

    def ids(self, uids: Sequence[str]) -> np.ndarray:
        """Return the id of each label by its uid, (n,) int64, -1 for one that is not predicted."""
        ids = self.select.index.rows(uids)
        return np.where(np.isin(ids, self.removed), -1, ids)

    def explain(self, text: str, labels: Sequence[Label], nearest: int = 3, content: str = "") -> list[Explanation]:
        """Return why each of the labels that `predict` gave a text fits it.

        nearest: at most how many training texts of a label are shown. The parts are computed for this text alone: in a
        batch, sums differ in their last digit, and at a threshold of a tree by the trees' part.
        Raises ValueError for a label of another retriever, for what is no list of Label, for what is no text, and for
        nearest < 0.
        """
        for name, value in (("text", text), ("content", content)):
            if not isinstance(value, str):
                raise ValueError(f"{name} must be one text, got {value!r}")
        _check_count("nearest", nearest, 0)
        ids = np.array([label.id for label in _checked_labels(labels)], dtype=np.int64)
        if (unknown := ids[(ids < 0) | (ids >= len(self.uids))]).size:
            raise ValueError(f"there is no label {unknown[0]} among {len(self.uids)}; explain what this retriever said")
        if not len(ids):
            return []
        tokens = self.tokenizer(*self.fields([text], [content]))
        query = self.embed(tokens)
        parts = self.scorer.parts(query, tokens, np.zeros(len(ids), np.int64), ids)
        for name, part in parts.items():
            check_finite(f"the part {name!r} of a score", part)
        near = self.examples.nearest(query[0], ids, nearest, self.embed)
        return [Explanation({name: round(float(part[i]), 6) for name, part in parts.items()},
                            self._contributions(tokens, label), int(self.examples.counts[label]),
                            [self._near(*example) for example in near[i]])
                for i, label in enumerate(ids)]

    def _contributions(self, tokens: Tokens, label: int) -> dict[str, float]:
        """Return the WORDS_SHOWN words of one text that add most to a label's log-odds or take most from it.

        Words that are read alike, such as one at the beginning of a text and one after a bracket, are one.
        """
        added: dict[str, float] = {}
        for word, value in self.scorer.contributions(tokens, label).items():
            name = self.tokenizer.backend.decode(list(word), skip_special_tokens=False).strip()    # [UNK] is one
            added[name] = added.get(name, 0.0) + value
        added.pop("", None)    # a space
        most = sorted(added, key=lambda name: (-abs(added[name]), name))[:WORDS_SHOWN]
        return {name: round(added[name], 6) for name in most}

    def _near(self, number: int, cosine: float) -> SimilarText:
        labels = np.setdiff1d(self.examples.labels[number], self.removed)
        return SimilarText(self.examples.texts[number], round(cosine, 6), [self.titles[label] for label in labels])


def _checked_labels(labels: Iterable[Label]) -> list[Label]:
    """Return the labels as a list; raise ValueError for what is none."""
    listed = list(labels) if isinstance(labels, Iterable) else [labels]
    for label in listed:
        if not isinstance(label, Label):
            raise ValueError("labels must be a list of Label, those of one text: predict([text])[0]; got one of type "
                             f"{type(label).__name__}")
    return listed


def _check_count(name: str, count: int, least: int) -> None:
    """Raise ValueError for what is no whole number, and for one below `least`."""
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise ValueError(f"{name} must be a whole number, got {count!r}")
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}")


def _check_threshold(threshold: float) -> None:
    """Raise ValueError for what is no confidence."""
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise ValueError(f"threshold must be a number, got {threshold!r}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be between 0 and 1, got {threshold}")
