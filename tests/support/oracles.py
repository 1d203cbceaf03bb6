"""Naive reference implementations of the fast code, one loop per sum, as in the equations."""

import math
from itertools import pairwise

import numpy as np
import torch

from xcmodels.mining.graph import hashed_uniform


def propensity(frequency: int, n: int, a: float, b: float) -> float:
    """Jain et al. 2016, equation 1."""
    c = (math.log(n) - 1) * (b + 1) ** a
    return 1 / (1 + c * math.exp(-a * math.log(frequency + b)))


def metrics(predictions, truth, filters, weight, *, ks, recall_ks) -> dict[str, float]:
    """Every measure in percent; predictions are lists of ids, truth and filters lists of sets, weight is 1/p."""
    points = [(row, true - drop) for row, true, drop in zip(predictions, truth, filters, strict=True) if true - drop]
    result = {}
    for k in ks:
        p = ndcg = psp = best_psp = psndcg = best_psndcg = 0.0
        for row, true in points:
            ideal = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(true))))
            dearest = sorted((weight[label] for label in true), reverse=True)[:k]
            hits = [(rank, label) for rank, label in enumerate(row[:k]) if label in true]
            p += len(hits) / k
            ndcg += sum(1 / math.log2(rank + 2) for rank, _ in hits) / ideal
            psp += sum(weight[label] for _, label in hits) / k
            best_psp += sum(dearest) / k
            psndcg += sum(weight[label] / math.log2(rank + 2) for rank, label in hits) / ideal
            best_psndcg += sum(value / math.log2(rank + 2) for rank, value in enumerate(dearest)) / ideal
        result[f"P/{k}"] = 100 * p / len(points)
        result[f"nDCG/{k}"] = 100 * ndcg / len(points)
        result[f"PSP/{k}"] = 100 * psp / best_psp
        result[f"PSnDCG/{k}"] = 100 * psndcg / best_psndcg
    for k in recall_ks:
        found = [sum(label in true for label in row[:k]) / len(true) for row, true in points]
        result[f"recall/{k}"] = 100 * sum(found) / len(points)
    return result | {"points": len(points), "left_out": len(predictions) - len(points)}


def drop_filtered(predictions, scores, filters, k):
    """Rows of (ids, scores) without filtered pairs, cut or padded to k."""
    ids, values = [], []
    for row, row_scores, drop in zip(predictions, scores, filters, strict=True):
        kept = [pair for pair in zip(row, row_scores, strict=True) if pair[0] >= 0 and pair[0] not in drop]
        kept = (kept + [(-1, -math.inf)] * k)[:k]
        ids.append([label for label, _ in kept])
        values.append([score for _, score in kept])
    return ids, values


def hashed(seed: int, stream: int, counter: int) -> float:
    """Three rounds of splitmix64 in whole numbers: seed, then stream, then counter; the top 53 bits over 2^53."""

    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return bits ^ bits >> 31

    state = mix(seed % 2**64)
    for part in (stream, counter):
        state = mix((state + (part + 1) * 0x9E3779B97F4A7C15) % 2**64)
    return (state >> 11) / 2**53


def without_hubs(weights: np.ndarray, max_degree: int) -> np.ndarray:
    """A dense graph (nodes x anchors) less the rows and columns of too high a degree."""
    few_anchors = (weights > 0).sum(axis=1) <= max_degree
    few_nodes = (weights > 0).sum(axis=0) <= max_degree
    return weights * few_anchors[:, None] * few_nodes


def walk(weights: np.ndarray, node: int, hops: int, restart: float, seed: int) -> tuple[list[int], list[int]]:
    """The anchors one walk visits and the nodes it lands on, one hop after the other."""

    def draw(row: np.ndarray, uniform: float) -> int:
        return int(np.argmax(np.cumsum(row) / row.sum() > uniform))

    anchors, landed = [], []
    current = node
    for hop in range(hops):
        pick, onward = hashed_uniform(seed, node, np.array([2 * hop, 2 * hop + 1]))
        anchors.append(draw(weights[current], pick))
        back = onward < restart
        rest = onward / restart if back else (onward - restart) / (1 - restart)
        landed.append(draw(weights[:, anchors[-1]], rest))
        current = node if back else landed[-1]
    return anchors, landed


def top_counts(visits: list[int], top: int, first: int | None = None) -> list[tuple[int, float]]:
    """(id, share) of the most frequent ids, ties by id, `first` ahead of all."""
    counts = {id_: visits.count(id_) for id_ in visits}
    kept = sorted(counts, key=lambda id_: (id_ != first, -counts[id_], id_))[:top]
    total = sum(counts[id_] for id_ in kept)
    return [(id_, counts[id_] / total) for id_ in kept]


def expected_visits(weights: np.ndarray, node: int, hops: int, restart: float) -> np.ndarray:
    """Expected visits of each anchor, from powers of the transition matrix; every node and anchor has an edge."""
    to_anchor = weights / weights.sum(axis=1, keepdims=True)
    to_node = (weights / weights.sum(axis=0)).T
    at = start = np.eye(len(weights))[node]
    visits = np.zeros(weights.shape[1])
    for _ in range(hops):
        visits += at @ to_anchor
        at = restart * start + (1 - restart) * at @ to_anchor @ to_node
    return visits


def balanced_kmeans(vectors: np.ndarray, cluster_size: int, seed: int, iterations: int) -> np.ndarray:
    """Hierarchical balanced 2-means by plain recursion, with both centres, in double precision."""
    n = len(vectors)
    clusters = math.ceil(n / cluster_size)
    edges = [j * n // clusters for j in range(clusters + 1)]
    ids = np.empty(n, dtype=np.int32)

    def split(rows: list[int], first: int, last: int) -> None:
        if last - first == 1:
            ids[rows] = first
            return
        middle = (first + last) // 2
        left = edges[middle] - edges[first]
        one, two = hashed_uniform(seed, first, np.array([2 * last, 2 * last + 1]))
        a = int(one * len(rows))
        b = (a + 1 + int(two * (len(rows) - 1))) % len(rows)
        c0, c1 = vectors[rows[a]].astype(float), vectors[rows[b]].astype(float)
        for _ in range(iterations + 1):
            ranked = sorted(range(len(rows)), key=lambda i: (-float(vectors[rows[i]] @ (c0 - c1)), i))
            halves = [rows[i] for i in sorted(ranked[:left])], [rows[i] for i in sorted(ranked[left:])]
            c0, c1 = (vectors[half].astype(float).mean(axis=0) for half in halves)
        split(halves[0], first, middle)
        split(halves[1], middle, last)

    split(list(range(n)), 0, clusters)
    return ids


def search(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest inner products of each query, equal ones by rising id."""
    scores = queries.astype(float) @ vectors.astype(float).T
    ids = np.array([sorted(range(len(vectors)), key=lambda label: (-row[label], label))[:k] for row in scores])
    return np.take_along_axis(scores, ids, axis=1), ids


def softmax(scores, positives, weights, decoupled):
    """-1/|P| sum_p w_p log(e^s_p / sum_l e^s_l) a row, l over all labels, or over p and the negatives alone."""
    rows = []
    for r in range(scores.shape[0]):
        present = [c for c in range(scores.shape[1]) if weights is None or weights[r, c] > 0]
        pulled = [c for c in present if positives[r, c]]
        if not pulled:
            continue
        row = 0.0
        for p in pulled:
            below = [c for c in present if c == p or not (decoupled and positives[r, c])]
            worth = 1.0 if weights is None else float(weights[r, p])
            chance = torch.exp(scores[r, p]) / sum(torch.exp(scores[r, c]) for c in below)
            row = row - worth * torch.log(chance) / len(pulled)
        rows.append(row)
    return sum(rows) / len(rows) if rows else 0 * scores.sum()


def calibration_error(confidences, right, bins):
    """The mean gap between confidence and share right, over answers in order of confidence, in bins of equal size.

    Answers of equal confidence are taken as equal: each counts as right by the share of them that is.
    """
    answers = sorted(zip(confidences, right, strict=True), key=lambda answer: answer[0])
    n = len(answers)
    shares = {sure: np.mean([hit for other, hit in answers if other == sure]) for sure, _ in answers}
    gap = 0.0
    for i in range(bins):
        part = answers[n * i // bins:n * (i + 1) // bins]
        gap += abs(sum(sure - shares[sure] for sure, _ in part))
    return 100 * gap / n


def at_threshold(confidences, right, positives, threshold):
    """What is said of a threshold: its share right, its share of the true labels, answers a text, silent texts."""
    kept = [[hit for sure, hit in zip(*row, strict=True) if sure >= threshold]
            for row in zip(confidences, right, strict=True)]
    said, hits = sum(map(len, kept)), sum(map(sum, kept))
    return (hits / said if said else math.nan, hits / sum(positives), said / len(kept),
            sum(not row for row in kept) / len(kept))


def held_out_answers(corpus, rows, labels, scores, most):
    """The best answers to each validation query, as (score, whether it is right).

    Not judged are a label that no training query has, a filter pair, and a pair whose inverse a training query has
    (a filter pair says which query is which label); a query without another label is left out.
    """
    train = set(corpus.training_rows().tolist())
    own = [set(corpus.filters["train"][row].tolist()) for row in range(len(corpus.filters["train"]))]
    has = [set(corpus.positives["train"][row].tolist()) for row in range(len(corpus.positives["train"]))]
    known = set().union(*(has[row] for row in train if row < corpus.n_queries))
    out = []
    for place, query in enumerate(corpus.validation.tolist()):
        inverse = set().union(*(own[row] for row in train if has[row] & own[query]), set())
        unjudged = own[query] | inverse
        if not (has[query] & known) - unjudged:
            continue
        said = [(-score, label) for row, label, score in zip(rows, labels, scores, strict=True)
                if row == place and label in known and label not in unjudged]
        out += [(-score, label in has[query]) for score, label in sorted(said)[:most]]
    return out


def confidence(scores, log_odds, score):
    """The chance at a score, by the line between the two knots around it, or the first or last line drawn on."""
    place = min(max(sum(knot < score for knot in scores), 1), len(scores) - 1)
    left, right = scores[place - 1], scores[place]
    slope = (log_odds[place] - log_odds[place - 1]) / (right - left)
    return 1 / (1 + math.exp(-(log_odds[place - 1] + slope * (score - left))))


def misfit(scores, log_odds, answers, right, stiffness):
    """What a fitted calibration has the least of: the log loss of Platt's targets, and how much its slopes differ."""
    hits, spread = sum(right), np.std(answers)
    loss = 0.0
    for score, hit in zip(answers, right, strict=True):
        target = (hits + 1) / (hits + 2) if hit else 1 / (len(right) - hits + 2)
        chance = confidence(scores, log_odds, score)
        loss -= target * math.log(chance) + (1 - target) * math.log(1 - chance)
    slopes = spread * np.diff(log_odds) / np.diff(scores)
    return loss + stiffness / 2 * sum((b - a)**2 for a, b in pairwise(slopes))
