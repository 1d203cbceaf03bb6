"""Measures the hardness of mined clusters and negatives."""

import numpy as np

from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Vectors
from xcmodels.nn.autograd import normalise

DRAWN = 2000    # queries, at most


def hardness(mined: Mined, vectors: Vectors, corpus: Corpus, rng: np.random.Generator) -> dict[str, float]:
    """Return the hardness of a mining result on a sample of training queries: mean inner products, a share in percent.

    Of clusters, at unit length: "same_cluster", a query with another of its cluster, and "any_query", with any other.
    Of hard negatives: "positives", "negatives" and "random", a query with its own labels, the mined ones, any;
    "harder", the share of queries with a mined negative that scores above one of their own labels; of none, nothing.
    """
    rows, measured = corpus.training_rows(), dict[str, float]()
    drawn = np.sort(rng.permutation(len(rows))[:DRAWN])
    if mined.clusters is not None:
        queries = vectors["queries"]()
        order = np.argsort(np.asarray(mined.clusters), kind="stable")
        clusters = np.asarray(mined.clusters)[order]
        same = np.flatnonzero(clusters[:-1] == clusters[1:])
        same = same[rng.permutation(len(same))[:DRAWN]]    # not the first: clusters that lie together have close ids
        measured["same_cluster"] = _mean_cosine(queries, rows[order[same]], rows[order[same + 1]])
        measured["any_query"] = _mean_cosine(queries, rows[drawn], rows[rng.permutation(len(rows))[:len(drawn)]])
    # none is mined where every query has every label
    if mined.negatives is not None and (mined.negatives[rows[drawn]] >= 0).any():
        queries, labels, rows = vectors["queries"](), vectors["labels"](), rows[drawn]
        scores: dict[str, list[np.ndarray]] = {"positives": [], "negatives": [], "random": []}
        harder = 0
        for row in rows.tolist():
            hard = mined.negatives[row]
            labels_of = {"positives": corpus.positives["train"][row], "negatives": hard[hard >= 0],
                         "random": rng.integers(corpus.n_labels, size=8)}
            products = {name: labels[ids] @ queries[row] for name, ids in labels_of.items()}
            harder += bool(len(products["negatives"])) and products["negatives"].max() > products["positives"].min()
            for name, values in products.items():
                scores[name].append(values)
        measured |= {name: float(np.concatenate(values).mean()) for name, values in scores.items()}
        measured["harder"] = 100 * harder / len(rows)
    return measured


def _mean_cosine(vectors: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """Return the mean inner product of pairs of rows at unit length, 0 without any."""
    pairs = normalise(vectors[left]), normalise(vectors[right])
    return float(np.einsum("nd,nd->n", *pairs).mean()) if len(left) else 0.0
