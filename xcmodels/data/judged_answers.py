"""Which answers to validation queries count: those by which a test would judge."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Corpus, Ragged
from xcmodels.data.sorted_ids import isin_sorted, unique


@dataclass(frozen=True)
class JudgedAnswers:
    """The answers by which validation queries can be judged; a pair is a key, place in the split * L + label.

    truth: the true pairs, sorted. unjudged (n, ...): labels that count neither as right nor as wrong for a query: its
    filter pairs, and pairs whose inverse is a training pair (a filter pair says which query is which label). Benchmarks
    remove these from their test splits. has_query (L,): whether a training query has the label; a label without one is
    known from the validation query alone.
    """

    truth: np.ndarray
    unjudged: Ragged
    has_query: np.ndarray

    @classmethod
    def of(cls, corpus: Corpus) -> "JudgedAnswers":
        """Return the judged answers of a corpus's validation split."""
        rows, own, has = corpus.training_rows(), corpus.filters["train"], corpus.positives["train"]
        itself, labels = (_matrix(own.subset(part), corpus.n_labels) for part in (corpus.validation, rows))
        matrix = (itself + itself @ _matrix(has.subset(rows), corpus.n_labels).T @ labels).tocsr()
        matrix.sort_indices()
        unjudged, has_query = Ragged(matrix.indptr, matrix.indices), corpus.frequencies(rows) > 0
        truth = unique(has.subset(corpus.validation).keys(corpus.n_labels))
        truth = truth[has_query[truth % corpus.n_labels]]
        return cls(truth[~isin_sorted(truth, unjudged.keys(corpus.n_labels))], unjudged, has_query)


def _matrix(rows: Ragged, n_labels: int) -> sp.csr_array:
    return sp.csr_array((np.ones(len(rows.values), np.int32), rows.values, rows.offsets), shape=(len(rows), n_labels))
