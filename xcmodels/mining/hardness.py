"""How hard what was mined is: the mean similarity of queries with their cluster mates, negatives and positives."""

import numpy as np

from xcmodels.data.centroids import unit
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Vectors

DRAWN = 2000    # queries on which the hardness of what was mined is measured


def hardness(mined: Mined, vectors: Vectors, corpus: Corpus, rng: np.random.Generator) -> dict[str, float]:
    """Return how hard what was mined is, on a draw of training queries: mean inner products, and a share in percent.

    Of clusters: "mates", a query and another of its cluster at unit length, and "strangers", any other. Of hard
    negatives: "positives", "negatives" and "random", a query and its own labels, the mined ones, any; "harder", the
    share of queries with a mined negative that scores above one of their own labels.
    """
    rows, found = corpus.training_rows(), dict[str, float]()
    drawn = np.sort(rng.permutation(len(rows))[:DRAWN])
    if mined.clusters is not None:
        queries = unit(vectors["queries"]()[rows])
        order = np.argsort(np.asarray(mined.clusters), kind="stable")
        pairs = order[:-1], order[1:]
        same = mined.clusters[pairs[0]] == mined.clusters[pairs[1]]
        found["mates"] = _alike(queries, pairs[0][same][:DRAWN], pairs[1][same][:DRAWN])
        found["strangers"] = _alike(queries, drawn, rng.permutation(len(rows))[:len(drawn)])
    if mined.negatives is not None:
        queries, labels, rows = vectors["queries"](), vectors["labels"](), rows[drawn]
        scores: dict[str, list[np.ndarray]] = {"positives": [], "negatives": [], "random": []}
        harder = 0
        for row in rows.tolist():
            hard = mined.negatives[row]
            each = {"positives": corpus.positives["train"][row], "negatives": hard[hard >= 0],
                    "random": rng.integers(corpus.n_labels, size=8)}
            told = {name: labels[ids] @ queries[row] for name, ids in each.items()}
            harder += bool(len(told["negatives"])) and told["negatives"].max() > told["positives"].min()
            for name, values in told.items():
                scores[name].append(values)
        found |= {name: float(np.concatenate(values).mean()) for name, values in scores.items()}
        found["harder"] = 100 * harder / len(rows)
    return found


def _alike(vectors: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """Return the mean inner product of pairs of rows, 0 where there is none."""
    return float(np.einsum("nd,nd->n", vectors[left], vectors[right]).mean()) if len(left) else 0.0
