"""A smaller corpus sampled from a large one: some labels and all of their queries."""

import json
import shutil
from collections import deque
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged, Side, Texts
from xcmodels.data.label_branches import Branches


def sample(corpus: Corpus, out: Path, *, labels: int, queries: int = 0, together: bool = False, augment: bool = False,
           seed: int = 0) -> Corpus:
    """Write to `out`, and open, a corpus of some labels and of every query that has one of them (ASTRA, 3.1).

    labels: how many are drawn from those that a training query has; all where there are fewer. together: labels are
    drawn with those that co-occur with them, so that queries keep most of their labels and labels most of those that
    are hard to tell from them; otherwise uniformly, which leaves an easy data set. queries: at most how many training
    queries are kept, drawn uniformly; 0 = all. The validation split keeps those of its queries that are kept.
    augment: each label's text becomes a training query of that label.
    """
    out.mkdir(parents=True)
    rng = seeds.generator(seed, "sample", "labels")
    used = rng.permutation(np.flatnonzero(corpus.frequencies()))
    kept = {"label": np.sort(_snowball(corpus, used, labels) if together else used[:labels])}
    new_ids = np.full(corpus.n_labels, -1)
    new_ids[kept["label"]] = np.arange(len(kept["label"]))
    for split in ("train", "test"):
        queries_in_split = corpus.n_queries if split == "train" else len(corpus.sides["test"])
        positives = _relabelled(corpus.positives[split].head(queries_in_split), new_ids)
        rows = np.flatnonzero(positives.lengths)
        if split == "train" and queries:
            rows = np.sort(seeds.generator(seed, "sample", "queries").permutation(rows)[:queries])
        kept[split] = rows
        texts = np.arange(len(kept["label"]) if augment and split == "train" else 0)    # label i's has label i alone
        _concatenated(positives.subset(rows), Ragged(np.arange(len(texts) + 1), texts)).save(out, f"positives.{split}")
        nothing = Ragged(np.zeros(len(texts) + 1, np.int64), texts[:0])
        judged = {"filters": corpus.filters[split]} | ({"rejected": corpus.rejected} if split == "train" else {})
        for name, pairs in judged.items():
            _concatenated(_relabelled(pairs.subset(rows), new_ids), nothing).save(out, f"{name}.{split}")
        if split == "train" and corpus.weights is not None:
            weights = np.concatenate([_kept_weights(corpus, rows, new_ids), np.ones(len(texts), np.float32)])
            np.save(out / "weights.train.npy", weights)
    Branches.copy(corpus.folder, out)
    for name, side in corpus.sides.items():
        label_texts = corpus.sides["label"], kept["label"]
        _write_side(out, name, (side, kept[name]), *([label_texts] if augment and name == "train" else []))
    for text in ("label.uid", "label.title", "train.text", "test.uid", "test.title", "test.content"):
        Texts.load(corpus.folder, text).bytes.subset(kept[text.split(".")[0]]).save(out, text)
    for anchor, graph in corpus.graphs.items():
        _write_side(out, f"anchors.{anchor}", (graph.anchors, np.arange(len(graph.anchors))))
        edges = {side: graph.edges[side].subset(kept[side]) for side in ("train", "label")}
        if augment:
            edges["train"] = _concatenated(edges["train"], edges["label"])
        for name, ragged in edges.items():
            ragged.save(out, f"walks.{anchor}.{name}")
    shutil.copytree(corpus.folder / "tokenizer", out / "tokenizer")
    np.save(out / "idf.npy", corpus.idf)
    np.save(out / "validation.npy", np.flatnonzero(np.isin(kept["train"], corpus.validation)))
    facts = corpus.facts | {name: len(rows) for name, rows in kept.items()}
    facts["augmented"] = len(kept["label"]) if augment else 0
    (out / "corpus.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return Corpus(out)


def _snowball(corpus: Corpus, order: np.ndarray, count: int) -> np.ndarray:
    """Return `count` labels by snowball sampling: the first of `order`, those that share a query with it, and so on.

    Where a connected component ends, the next label of `order` starts another.
    """
    labels_of = corpus.positives["train"].head(corpus.n_queries)
    owners = np.repeat(np.arange(corpus.n_queries), labels_of.lengths)
    queries_of = Ragged.of_pairs(labels_of.values, owners, corpus.n_labels)
    drawn = dict.fromkeys(order[:1].tolist())
    starts, frontier, visited = iter(order.tolist()), deque(drawn), set[int]()
    while len(drawn) < min(count, len(order)):
        if not frontier:
            frontier.append(next(starts))
        label = frontier.popleft()
        drawn[label] = None
        for query in queries_of[label].tolist():
            new = [] if query in visited else [other for other in labels_of[query].tolist() if other not in drawn]
            visited.add(query)
            drawn |= dict.fromkeys(new)
            frontier.extend(new)
    return np.array(list(drawn)[:count])


def _relabelled(pairs: Ragged, new_ids: np.ndarray) -> Ragged:
    """Return the pairs whose label is kept, with new label ids; -1 in `new_ids` = not kept."""
    rows, labels = np.repeat(np.arange(len(pairs)), pairs.lengths), new_ids[pairs.values]
    return Ragged.of_pairs(rows[labels >= 0], labels[labels >= 0].astype(np.int32), len(pairs))


def _kept_weights(corpus: Corpus, rows: np.ndarray, new_ids: np.ndarray) -> np.ndarray:
    """Return the weights of the training pairs of `rows` whose label is kept, 1 on average."""
    assert corpus.weights is not None
    positives = corpus.positives["train"]
    labels = positives.take(rows)[0]
    weights = Ragged(positives.offsets, corpus.weights).take(rows)[0][new_ids[labels] >= 0]
    return (weights / weights.mean()).astype(np.float32)


def _concatenated(first: Ragged, second: Ragged) -> Ragged:
    """Return the rows of both, one after the other."""
    return Ragged(np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
                  np.concatenate([first.values, second.values.astype(first.values.dtype)]))


def _write_side(out: Path, name: str, *parts: tuple[Side, np.ndarray]) -> None:
    """Write the given rows of each side, concatenated, as one side."""
    tokens = [side.ragged.subset(rows) for side, rows in parts]
    (tokens[0] if len(tokens) == 1 else _concatenated(*tokens)).save(out, f"{name}.tokens")
    np.save(out / f"{name}.titles.npy", np.concatenate([side.titles[rows] for side, rows in parts]))
