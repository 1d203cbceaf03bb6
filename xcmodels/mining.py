"""What a refresh mines from vectors, for whichever method asks, and when: clusters of queries, hard negative labels."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from xcmodels import ann, limits, seeds
from xcmodels.centroids import unit
from xcmodels.clustering import balanced_kmeans
from xcmodels.corpus import Corpus
from xcmodels.method import Mined, Round, Vectors
from xcmodels.sets import among

CHUNK = 8192    # queries searched at once
DRAWN = 2000    # queries on which the hardness of what was mined is measured
ASKED = 256     # queries on which an index is compared with exact search


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long a stage is, and when it is refreshed."""

    epochs: int           # of the stage, each one pass over the texts, or several by least_steps
    refresh_from: int     # tau_s: epochs before it draw random batches: easy negatives first
    refresh_every: int    # tau, tau_r: epochs between two refreshes
    least_steps: int = 0  # of an epoch: of fewer texts, one is several passes over them

    def __post_init__(self) -> None:
        limits.at_least(self, 1, "epochs", "refresh_every")
        limits.at_least(self, 0, "refresh_from", "least_steps")

    def cluster_size_at(self, epoch: int) -> int:
        """Return the size of the clusters that a refresh at `epoch` makes; 0 = none."""
        return 0


@dataclass(frozen=True, kw_only=True)
class ClusterSchedule(Schedule):
    """A schedule that clusters queries, too, and doubles the size C of their clusters."""

    double_every: int     # epochs after which C doubles, at the next refresh
    cluster_size: int     # C at the first refresh; 0 = no clusters
    cluster_max: int      # where C stops doubling

    def __post_init__(self) -> None:
        super().__post_init__()
        limits.at_least(self, 1, "double_every")
        limits.at_least(self, 0, "cluster_size", "cluster_max")

    def cluster_size_at(self, epoch: int) -> int:
        """Return C of a refresh at `epoch`."""
        # The power is cut as well: 2**1000 is no size.
        doubled = min((epoch - self.refresh_from) // self.double_every, 32)
        return min(self.cluster_size * 2**doubled, self.cluster_max)


def rounds(stage: str, schedule: Schedule, negatives: int = 0, ahead: int = 0) -> list[Round]:
    """Return the rounds of a stage: random epochs first, then a round for every refresh.

    negatives: hard negatives to mine for each query at every refresh.
    ahead: epochs before a refresh at whose end the model is taken that it mines with, so that mining can go on while
    training does (ASTRA, section 3.2: 2). A round ends there too.
    """
    first = min(schedule.refresh_from, schedule.epochs)
    if not schedule.cluster_size_at(first) and not negatives:
        return [Round(stage, 0, 0, schedule.epochs)]
    refreshes = range(first, schedule.epochs, schedule.refresh_every)
    taken = [max(epoch - ahead, min(epoch, 1)) for epoch in refreshes]
    edges = sorted({0, *refreshes, *taken, schedule.epochs})
    out: list[Round] = []
    for start, end in pairwise(edges):
        if start < first:
            out.append(Round(stage, len(out), start, end))
            continue
        place = (start - first) // schedule.refresh_every
        source = edges.index(taken[place]) - 1
        out.append(Round(stage, len(out), start, end, schedule.cluster_size_at(refreshes[place]), negatives, source))
    return out


def mine(vectors: Vectors, corpus: Corpus, round_: Round, *, seed: int, index: str = "auto") -> Mined:
    """Return the clusters and the hard negatives that `round_` asks for.

    vectors: "queries", of every row of the training side, and "labels". Clusters are balanced (NGAME, Algorithm 1);
    negatives are the labels of highest inner product that are neither positives nor filter pairs of the query
    (UniDEC, section 3.2; ANCE), best first.
    """
    rows, queries = corpus.training_rows(), vectors["queries"]()
    clusters, negatives, measured = None, None, dict[str, float]()
    if round_.cluster_size:
        clusters = balanced_kmeans(queries[rows], round_.cluster_size, seed=seeds.key_of(seed, round_.name))
    if round_.negatives:
        labels = ann.build(vectors["labels"](), index)
        negatives = hard_negatives(labels, queries, corpus, rows, round_.negatives)
        drawn = rows[seeds.generator(seed, "recall", round_.name).permutation(len(rows))[:ASKED]]
        measured["recall"] = 100.0 if labels.kind == "exact" else 100 * ann.recall(
            labels.search(queries[drawn], round_.negatives)[1], labels.vectors, queries[drawn], round_.negatives)
    return Mined(clusters, negatives, measured=measured)


def hard_negatives(index: ann.Index, queries: np.ndarray, corpus: Corpus, rows: np.ndarray, k: int) -> np.ndarray:
    """Return (N, k) int32: the k nearest labels that each of `rows` may be pushed from, -1 padded; -1 for other rows.

    queries (N, d) are the vectors of the training side. Rows are gathered as they are searched: a copy of them all
    would be as large as what there is.
    """
    out = np.full((len(queries), k), -1, dtype=np.int32)
    for start in range(0, len(rows), CHUNK):
        part = rows[start:start + CHUNK]
        spared = spared_pairs(corpus, part)
        deepest = k + int(np.bincount(spared // corpus.n_labels).max(initial=0))
        ids = index.search(queries[part], deepest)[1]
        allowed = may_be_pushed(ids, spared, corpus.n_labels)
        place = np.cumsum(allowed, axis=1) - 1
        row, slot = np.nonzero(allowed & (place < k))
        out[part[row], place[row, slot]] = ids[row, slot]
    return out


def spared_pairs(corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return i * L + label for every positive and filter pair of rows[i]."""
    # Label texts added as queries come after the queries that filters speak of.
    known = np.flatnonzero(rows < len(corpus.filters["train"]))
    return np.concatenate([corpus.positives["train"].subset(rows).keys(corpus.n_labels),
                           corpus.filters["train"].subset(rows[known]).keys(corpus.n_labels, known)])


def may_be_pushed(ids: np.ndarray, spared: np.ndarray, n_labels: int) -> np.ndarray:
    """Return which of the label ids (n, k), -1 = none, are a label and no pair of `spared_pairs`."""
    return (ids >= 0) & ~among(np.arange(len(ids))[:, None] * n_labels + ids, np.sort(spared))


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
