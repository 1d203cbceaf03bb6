"""Labels added to and removed from a retriever, without training.

A label's id is its row and never changes: an added label takes the next row, a removed one keeps its row and is no
longer proposed. An added label is scored like one without training queries, with its own text in place of a query, and
a score means the same confidence whichever label it is of; docs/labels.md has measurements of how well that works.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from xcmodels.data import seeds, seen_texts
from xcmodels.data.corpus import Texts
from xcmodels.data.label_branches import Branches
from xcmodels.data.tokens import Tokens
from xcmodels.nn.encoder_config import LABEL, QUERY
from xcmodels.retrieval import ann
from xcmodels.retrieval.folder import REMOVED, write_facts
from xcmodels.retrieval.inner_products import put
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import NewLabels
from xcmodels.retrieval.serving_config import ENCODER

ADD, REMOVE = "add", "remove"
CHUNK = 256                                # texts embedded at once
SCALE_LABELS, SCALE_TEXTS = 1000, 4000     # sampled to measure how high trained classifiers score
QUANTILE = 0.999                           # of their scores


@dataclass(frozen=True)
class Edit:
    """A label added with its text, or removed; content: a longer text, where labels have title and content."""

    op: str
    uid: str
    text: str = ""
    content: str = ""


class EditedLabels:
    """The labels of a retriever after a sequence of edits.

    Edits are idempotent, so that the same ones can be applied to a retriever of other labels: adding a label that is
    there changes nothing, nor does removing one that is not.
    """

    def __init__(self, retriever: Retriever, edits: Iterable[Edit] = ()) -> None:
        self.titles, self.n, self.tokenizer = retriever.titles, len(retriever.uids), retriever.tokenizer
        self.digests = retriever.label_digests
        self.ids = {retriever.uids[label]: label for label in range(self.n)}
        self.before = frozenset(retriever.removed.tolist())
        self.removed = set(self.before)
        self.new: dict[int, Edit] = {}       # row to write -> the edit that it comes from
        for edit in edits:
            self.apply(edit)

    def __contains__(self, uid: str) -> bool:
        return uid in self.ids and self.ids[uid] not in self.removed

    def apply(self, edit: Edit) -> None:
        """Apply one edit; a removed label that is added again with its text is restored as it was.

        It has the text where its name is the same, and its content, if any is given: a training's data may have the
        label with both by now, and then it is trained.
        """
        if edit.op == REMOVE:
            if edit.uid in self:
                self.removed.add(self.ids[edit.uid])
            return
        if edit.uid in self:
            return
        label = self.ids.setdefault(edit.uid, len(self.ids))
        self.removed.discard(label)
        self.new.pop(label, None)
        if label >= self.n or edit.text != self.titles[label] or (edit.content and not self._same_text(edit, label)):
            self.new[label] = edit

    def _same_text(self, edit: Edit, label: int) -> bool:
        """Return whether the tokens that are read of an edit's texts are those of the label's."""
        return bool(seen_texts.digests(self.tokenizer([edit.text], [edit.content]))[0] == self.digests[label])

    def counts(self) -> tuple[int, int]:
        """Return how many labels were added or have a new text, and how many were removed."""
        return (len((self.new.keys() | self.before) - self.removed),
                len({label for label in self.removed - self.before if label < self.n}))


def edit_retriever(folder: Path, edits: Iterable[Edit], out: Path) -> tuple[int, int]:
    """Write the retriever in `folder`, its labels edited, to `out`, an empty folder; return labels added, removed.

    The same edits of the same retriever give the same files. Encoder and tokenizer are hard links to those in `folder`
    where the disk has links, so neither may ever be written to.
    """
    retriever = Retriever.load(folder)
    labels = EditedLabels(retriever, edits)
    for part in ("encoder", "tokenizer"):
        shutil.copytree(folder / part, out / part, copy_function=link_or_copy)
    shutil.copy(folder / seen_texts.FILE, out)
    Branches.copy(folder, out)
    rows = np.array(sorted(labels.new), dtype=np.int64)
    scorer, vectors, digests = retriever.scorer, dict[str, np.ndarray](), labels.digests
    if len(rows):
        new = _new_labels(retriever, rows, labels.new)
        digests = put(digests, rows, seen_texts.digests(new.tokens))
        scorer, vectors = scorer.with_labels(new, retriever.indexes)
    np.save(out / seen_texts.OF_LABELS, digests)
    for name, proposer in retriever.proposers.items():
        index = ann.with_rows(proposer.index, rows, vectors[name]) if name in vectors else proposer.index
        replace(proposer, index=index, labels=proposer.labels and proposer.labels.less(rows)).save(out / "index" / name)
    scorer.save(out)
    retriever.calibration.save(out)
    retriever.examples.without(rows, len(labels.ids)).save(out / "examples")
    np.save(out / REMOVED, np.array(sorted(labels.removed), dtype=np.int64))
    Texts.save(out, "label.uid", list(labels.ids))
    Texts.save(out, "label.title", [labels.new[label].text if label in labels.new else retriever.titles[label]
                                    for label in range(len(labels.ids))])
    write_facts(out, retriever.facts | {"labels": len(labels.ids)})
    return labels.counts()


def link_or_copy(source: str, target: str) -> None:
    """Hard-link a file; copy it where that is impossible, as across disks."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _new_labels(retriever: Retriever, rows: np.ndarray, new: Mapping[int, Edit]) -> NewLabels:
    tokens = retriever.tokenizer([new[row].text for row in rows], [new[row].content for row in rows])
    views = retriever.encoder.layout.views
    # without a view of labels, by the heads that texts are compared by: QUERY may have a classifier's as well
    view = next((name for name in views if name.startswith(LABEL)), ENCODER if ENCODER in views else QUERY)
    return NewLabels(rows, _embedded(retriever, tokens, view), _embedded(retriever, tokens, QUERY), tokens,
                     partial(_score_scale, retriever))


def _embedded(retriever: Retriever, tokens: Tokens, view: str) -> np.ndarray:
    """Return the vectors (n, width) of texts in a view of the encoder."""
    with torch.no_grad():
        return np.concatenate([retriever.encoder(tokens.part(slice(start, start + CHUNK)), view).numpy()
                               for start in range(0, len(tokens), CHUNK)])


def _score_scale(retriever: Retriever, span: slice, classifiers: np.ndarray) -> float:
    """Return the ratio of the scores of the rarest labels' classifiers to those of their texts in the same place.

    Both are scored on training texts, and compared at QUANTILE of their scores.
    """
    examples, rng = retriever.examples, seeds.generator(0, "score_scale")
    seen = np.flatnonzero(examples.counts)
    if not len(seen):
        return 1.0
    rarest = np.sort(seen[np.lexsort((rng.random(len(seen)), examples.counts[seen]))[:SCALE_LABELS]])
    texts = np.sort(rng.permutation(len(examples.texts))[:SCALE_TEXTS])
    queries = _embedded(retriever, examples.side.tokens(texts), QUERY)[:, span]
    label_texts = _embedded(retriever, retriever.tokenizer([retriever.titles[label] for label in rarest]), QUERY)
    by_classifier, by_text = (float(np.quantile(vectors @ queries.T, QUANTILE))
                              for vectors in (classifiers[rarest], label_texts[:, span]))
    return by_classifier / by_text if by_classifier > 0 and by_text > 0 else 1.0
