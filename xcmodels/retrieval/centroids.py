"""Label centroids: the mean embedding of each label's training queries."""

from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.nn.autograd import normalise


@lru_cache(maxsize=2)
def queries_of(corpus: Corpus, with_validation: bool) -> Ragged:
    """Return the training queries of each label, (L, ...).

    with_validation: include the validation split.
    """
    rows = np.arange(len(corpus.train_positives)) if with_validation else corpus.training_rows()
    values, lengths = corpus.train_positives.take(rows)
    return Ragged.of_pairs(values.astype(np.int64), np.repeat(rows, lengths), corpus.n_labels)


def label_matrix(corpus: Corpus, with_validation: bool = False) -> sp.csr_array:
    """Return `queries_of` as a matrix of ones, (L, N), N the rows of the training side."""
    queries, n = queries_of(corpus, with_validation), len(corpus.sides["train"])
    kind = sp.get_index_dtype(maxval=max(len(queries.values), n))    # products convert the other matrix to the wider
    return sp.csr_array((np.ones(len(queries.values), np.float32), queries.values.astype(kind),
                         queries.offsets.astype(kind)), shape=(corpus.n_labels, n))


def label_centroids(corpus: Corpus, queries: np.ndarray, with_validation: bool = False) -> np.ndarray:
    """Return the mean embedding of each label's training queries at unit length, (L, d); zero where it has none.

    queries: embeddings (N, d) of the training side. with_validation: include the validation split.
    """
    return normalise(label_matrix(corpus, with_validation) @ queries)
