"""Label centroids: where the training queries of a label lie."""

from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from xcmodels.corpus import Corpus, Ragged


@lru_cache(maxsize=1)
def queries_of(corpus: Corpus) -> Ragged:
    """Return the training queries of each label, (L, ...), without the validation split."""
    values, lengths = corpus.positives["train"].take(rows := corpus.training_rows())
    return Ragged.of_pairs(values.astype(np.int64), np.repeat(rows, lengths), corpus.n_labels)


def label_centroids(corpus: Corpus, queries: np.ndarray) -> np.ndarray:
    """Return the mean embedding of each label's training queries at unit length, (L, d); zero where it has none."""
    of = queries_of(corpus)
    shape = corpus.n_labels, len(queries)
    return unit(sp.csr_array((np.ones(len(of.values), np.float32), of.values, of.offsets), shape=shape) @ queries)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows at unit length; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
