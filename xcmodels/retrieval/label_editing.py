"""Labels added to and removed from a retriever, without training.

A label's id is its row and stays so: an added label takes the next row, a removed one keeps its row and is proposed no
more. An added label has what one without training queries would have, but that its own text stands in for the query
that it lacks; what that is worth was measured (docs/labels.md).
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seeds, seen_texts
from xcmodels.data.corpus import Texts
from xcmodels.data.tokens import Tokens
from xcmodels.nn.backbones import LABEL, QUERY
from xcmodels.retrieval import ann
from xcmodels.retrieval.folder import REMOVED, write_facts
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import NewLabels

ADD, REMOVE = "add", "remove"
CHUNK = 256                                # texts embedded at once
QUIET_LABELS, QUIET_TEXTS = 1000, 4000     # sampled to tell how high trained classifiers score
QUANTILE = 0.999                           # of their scores


@dataclass(frozen=True)
class Edit:
    """One label added with its text, or removed; content: a longer text of it, where labels have both."""

    op: str
    uid: str
    text: str = ""
    content: str = ""


class Labels:
    """The labels of a retriever as a sequence of edits leaves them.

    What an edit asks for and finds so already is left as it is, so that the same edits can be made on a retriever of
    other labels: to add a label that is there changes nothing, nor does it to remove one that is not.
    """

    def __init__(self, retriever: Retriever, edits: Iterable[Edit] = ()) -> None:
        self.titles, self.n = retriever.titles, len(retriever.uids)
        self.ids = {retriever.uids[label]: label for label in range(self.n)}
        self.before = frozenset(retriever.removed.tolist())
        self.removed = set(self.before)
        self.new: dict[int, Edit] = {}       # of rows that are written, the edit that they come from
        for edit in edits:
            self.apply(edit)

    def __contains__(self, uid: str) -> bool:
        return uid in self.ids and self.ids[uid] not in self.removed

    def apply(self, edit: Edit) -> None:
        """Make one edit. A removed label that is added with the text it had is what it was before."""
        if edit.op == REMOVE:
            if edit.uid in self:
                self.removed.add(self.ids[edit.uid])
            return
        if edit.uid in self:
            return
        label = self.ids.setdefault(edit.uid, len(self.ids))
        self.removed.discard(label)
        self.new.pop(label, None)
        if label >= self.n or edit.text != self.titles[label] or edit.content:
            self.new[label] = edit

    def counts(self) -> tuple[int, int]:
        """Return how many labels are there that were not, or not with that text, and how many are there no more."""
        return (len((self.new.keys() | self.before) - self.removed),
                len({label for label in self.removed - self.before if label < self.n}))


def edit_retriever(folder: Path, edits: Iterable[Edit], out: Path) -> tuple[int, int]:
    """Write the retriever in `folder` with its labels edited to `out`, an empty folder; -> labels added, removed.

    The same edits of the same retriever give the same files. Encoder and tokenizer are links to those in `folder` where
    the disk has links: neither is ever to be written to.
    """
    retriever = Retriever.load(folder)
    labels = Labels(retriever, edits)
    for part in ("encoder", "tokenizer"):
        shutil.copytree(folder / part, out / part, copy_function=_link)
    if retriever.trained is not None:
        shutil.copy(folder / seen_texts.FILE, out)
    rows = np.array(sorted(labels.new), dtype=np.int64)
    scorer, vectors = retriever.scorer, {}
    if len(rows):
        scorer, vectors = scorer.with_labels(_new_labels(retriever, rows, labels.new), retriever.indexes)
    for name, proposer in retriever.proposers.items():
        index = ann.with_rows(proposer.index, rows, vectors[name]) if name in vectors else proposer.index
        replace(proposer, index=index, labels=proposer.labels and proposer.labels.less(rows)).save(out / "index" / name)
    scorer.save(out)
    retriever.examples.without(rows, len(labels.ids)).save(out / "examples")
    np.save(out / REMOVED, np.array(sorted(labels.removed), dtype=np.int64))
    Texts.save(out, "label.uid", list(labels.ids))
    Texts.save(out, "label.title", [labels.new[label].text if label in labels.new else retriever.titles[label]
                                    for label in range(len(labels.ids))])
    write_facts(out, retriever.facts | {"labels": len(labels.ids)})
    return labels.counts()


def _link(source: str, target: str) -> None:
    """Give a file a second name; copy it where that cannot be done, as on another disk."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _new_labels(retriever: Retriever, rows: np.ndarray, new: Mapping[int, Edit]) -> NewLabels:
    tokens = retriever.tokenizer([new[row].text for row in rows], [new[row].content for row in rows])
    view = next((each for each in retriever.encoder.layout.views if each.startswith(LABEL)), QUERY)

    def score_scale(span: slice, classifiers: np.ndarray) -> float:
        return _score_scale(retriever, span, classifiers)

    return NewLabels(rows, _embedded(retriever, tokens, view), _embedded(retriever, tokens, QUERY), tokens, score_scale)


def _embedded(retriever: Retriever, tokens: Tokens, view: str) -> np.ndarray:
    """Return the vectors (n, width) of texts in a view of the encoder."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(tokens), CHUNK):
            ends = tokens.offsets[start:start + CHUNK + 1]
            parts.append(retriever.encoder(Tokens(tokens.ids[ends[0]:ends[-1]], ends - ends[0],
                                                  tokens.titles[start:start + CHUNK]), view).numpy())
    return np.concatenate(parts)


def _score_scale(retriever: Retriever, span: slice, classifiers: np.ndarray) -> float:
    """Return how high the rarest labels' classifiers score, beside their own texts in the classifiers' place.

    Both are asked for training texts, and compared where few labels score higher: QUANTILE.
    """
    examples, rng = retriever.examples, seeds.generator(0, "score_scale")
    seen = np.flatnonzero(examples.counts)
    if not len(seen):
        return 1.0
    rarest = np.sort(seen[np.lexsort((rng.random(len(seen)), examples.counts[seen]))[:QUIET_LABELS]])
    texts = np.sort(rng.permutation(len(examples.texts))[:QUIET_TEXTS])
    asked = _embedded(retriever, examples.side.tokens(texts), QUERY)[:, span]
    read = _embedded(retriever, retriever.tokenizer([retriever.titles[label] for label in rarest]), QUERY)[:, span]
    trained, own = (float(np.quantile(each @ asked.T, QUANTILE)) for each in (classifiers[rarest], read))
    return trained / own if trained > 0 and own > 0 else 1.0
