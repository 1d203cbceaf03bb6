"""Label vectors of a retriever as safetensors, and the labels' names as JSON lines, in the same order."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.retriever import Retriever
from xcmodels.retrieval.scorers import InnerProduct

VECTORS, NAMES = "labels.safetensors", "labels.jsonl"


@dataclass(frozen=True)
class LabelVectors:
    """Label vectors (L, d), and the first of a query vector's dimensions that they are multiplied with."""

    vectors: np.ndarray
    first: int

    @property
    def span(self) -> tuple[int, int]:
        """The dimensions of a query vector, from and before."""
        return self.first, self.first + self.vectors.shape[1]


def named_vectors(retriever: Retriever) -> dict[str, LabelVectors]:
    """Return the label vectors of a retriever by the name of their score: "encoder", "classifier" or another."""
    scorer = retriever.scorer
    if isinstance(scorer, TreeFusion):
        return {name: LabelVectors(term.matrix, term.first) for name, term in scorer.terms.items()}
    if isinstance(scorer, InnerProduct):
        return {name: LabelVectors(scorer.vectors[:, part], part.start) for name, part in scorer.slices().items()}
    return {name: LabelVectors(proposer.index.vectors, 0) for name, proposer in retriever.proposers.items()
            if proposer.labels is None}


def write_labels(retriever: Retriever, folder: Path) -> dict[str, LabelVectors]:
    """Write VECTORS and NAMES to `folder`, removed labels left out; return what `named_vectors` does.

    VECTORS has a float32 tensor (labels, d) for each name; its metadata has, by the same names, the dimensions
    "from:to" of a query vector that it is multiplied with.
    """
    named, ids = named_vectors(retriever), np.setdiff1d(np.arange(len(retriever.uids)), retriever.removed)
    save_file({name: np.ascontiguousarray(each.vectors[ids], np.float32) for name, each in named.items()},
              folder / VECTORS, {name: "{}:{}".format(*each.span) for name, each in named.items()})
    with (folder / NAMES).open("w", encoding="utf-8") as file:
        for number in ids.tolist():
            label = {"id": number, "uid": retriever.uids[number], "text": retriever.titles[number]}
            file.write(json.dumps(label, ensure_ascii=False) + "\n")
    return named
