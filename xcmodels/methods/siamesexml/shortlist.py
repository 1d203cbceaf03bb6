"""The three indexes that SiameseXML mines and predicts with."""

from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np
import scipy.sparse as sp

from xcmodels.data.corpus import Corpus
from xcmodels.data.sorted_ids import unique
from xcmodels.methods.siamesexml.config import SiamesexmlConfig
from xcmodels.mining.graph import label_correlation
from xcmodels.mining.label_index import not_excluded
from xcmodels.nn.autograd import normalise
from xcmodels.retrieval import ann
from xcmodels.retrieval.centroids import label_centroids, label_matrix, queries_of
from xcmodels.retrieval.proposers import Proposer, candidates


def shortlists(indexes: Mapping[str, Proposer], queries: np.ndarray, depth: int, excluded: np.ndarray,
               n_labels: int) -> np.ndarray:
    """Return the labels of `depth` from each index for each query, (n, S), -1 = none, without `excluded` pairs."""
    ids = candidates(indexes.values(), queries, depth)
    ids[~not_excluded(ids, excluded, n_labels)] = -1
    return ids


@lru_cache(maxsize=1)
def correlation(corpus: Corpus, seed: int) -> sp.csr_array:
    """Return the label correlation operator of the training queries, (L, L)."""
    return label_correlation(label_matrix(corpus), seed=seed)


def smoothed(config: SiamesexmlConfig, corpus: Corpus, labels: np.ndarray) -> np.ndarray:
    """Return label embeddings averaged over correlated labels, at unit length (module II)."""
    return normalise(correlation(corpus, config.seed) @ labels) if config.correlation else labels


def proposers(config: SiamesexmlConfig, corpus: Corpus, queries: np.ndarray, labels: np.ndarray,
              with_validation: bool = False) -> dict[str, Proposer]:
    """Return the three indexes over intermediate embeddings (N, d) and (L, d).

    with_validation: include the queries of the validation split.
    """
    rows = unique(queries_of(corpus, with_validation).values)
    centroids = label_centroids(corpus, queries, with_validation)
    index = partial(ann.build, kind=config.index)
    return {"texts": Proposer(index(smoothed(config, corpus, labels))), "centroids": Proposer(index(centroids)),
            "queries": Proposer(index(queries[rows]), corpus.train_positives.subset(rows))}
