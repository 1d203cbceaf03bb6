"""What SiameseXML mines and predicts from: indexes that propose labels, and what its labels look like to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.sparse as sp

from xcmodels.data.centroids import label_matrix
from xcmodels.data.corpus import Corpus
from xcmodels.mining.graph import label_correlation
from xcmodels.mining.negatives import may_be_pushed
from xcmodels.retrieval.proposers import Proposer, best_of, candidates
from xcmodels.retrieval.scorers import InnerProduct


@dataclass(frozen=True)
class Shortlist:
    """What proposes labels for a query's intermediate embedding, and how they are ranked before module IV."""

    proposers: Mapping[str, Proposer]
    scores: InnerProduct

    def best(self, queries: np.ndarray, spared: np.ndarray, depth: int, k: int) -> np.ndarray:
        """Return the k best labels (n, k) of the `depth` that each index proposes, less `spared` pairs, -1 padded."""
        n_labels = len(self.scores.vectors)
        ids = candidates(self.proposers.values(), queries, depth)
        ids[~may_be_pushed(ids, spared, n_labels)] = -1
        found, _ = best_of(ids, self.scores(queries, ids), k)
        return np.pad(found, ((0, 0), (0, k - found.shape[1])), constant_values=-1)


@lru_cache(maxsize=1)
def correlation(corpus: Corpus, seed: int) -> sp.csr_array:
    """Return the label correlation operator of the training queries, (L, L)."""
    return label_correlation(label_matrix(corpus).T.tocsr(), seed=seed)
