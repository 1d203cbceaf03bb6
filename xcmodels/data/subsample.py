"""A smaller corpus out of a large one: some labels, and the queries that have them."""

import json
import shutil
from collections import deque
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged, Side, Texts


def sample(corpus: Corpus, out: Path, *, labels: int, queries: int = 0, together: bool = False, augment: bool = False,
           seed: int = 0) -> Corpus:
    """Write to `out`, and open, the corpus of some labels and of every query that has one of them (ASTRA, 3.1).

    labels: how many are drawn among those that a training query has; all of them where there are fewer.
    together: labels are drawn with those that stand beside them, so that queries keep most of their labels and labels
    most of those that are hard to tell from them; otherwise uniformly, which leaves an easy data set. queries: the most
    training queries that are kept, drawn uniformly; 0 = all. The validation split is what it was, as far as it is kept.
    augment: each label's text becomes a training query of that label.
    """
    out.mkdir(parents=True)
    rng = seeds.generator(seed, "sample", "labels")
    used = rng.permutation(np.flatnonzero(corpus.frequencies()))
    kept = {"label": np.sort(_together(corpus, used, labels) if together else used[:labels])}
    place = np.full(corpus.n_labels, -1)
    place[kept["label"]] = np.arange(len(kept["label"]))
    for split in ("train", "test"):
        every = np.arange(corpus.n_queries if split == "train" else len(corpus.sides["test"]))
        positives = _within(corpus.positives[split].subset(every), place)
        rows = np.flatnonzero(positives.lengths)
        if split == "train" and queries:
            rows = np.sort(seeds.generator(seed, "sample", "queries").permutation(rows)[:queries])
        kept[split] = rows
        positives = positives.subset(rows)
        if split == "train" and augment:
            positives = _end_to_end(positives, Ragged(np.arange(len(kept["label"]) + 1), np.arange(len(kept["label"]))))
        positives.save(out, f"positives.{split}")
        _within(corpus.filters[split].subset(rows), place).save(out, f"filters.{split}")
    for name, side in corpus.sides.items():
        more = corpus.sides["label"], kept["label"]
        _write_side(out, name, (side, kept[name]), *([more] if augment and name == "train" else []))
    for text in ("label.uid", "label.title", "train.text", "test.uid", "test.title", "test.content"):
        Texts.load(corpus.folder, text).bytes.subset(kept[text.split(".")[0]]).save(out, text)
    for anchor, graph in corpus.graphs.items():
        _write_side(out, f"anchors.{anchor}", (graph.anchors, np.arange(len(graph.anchors))))
        edges = {side: graph.edges[side].subset(kept[side]) for side in ("train", "label")}
        if augment:
            edges["train"] = _end_to_end(edges["train"], edges["label"])
        for end, of in edges.items():
            of.save(out, f"walks.{anchor}.{end}")
    shutil.copytree(corpus.folder / "tokenizer", out / "tokenizer")
    np.save(out / "idf.npy", corpus.idf)
    np.save(out / "validation.npy", np.flatnonzero(np.isin(kept["train"], corpus.validation)))
    facts = corpus.facts | {name: len(rows) for name, rows in kept.items()}
    facts["augmented"] = len(kept["label"]) if augment else 0
    (out / "corpus.json").write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return Corpus(out)


def _together(corpus: Corpus, order: np.ndarray, count: int) -> np.ndarray:
    """Return `count` labels: the first of `order`, the labels of its queries, theirs, and so on (a snowball).

    Where a part of the data ends, the next label of `order` begins another.
    """
    of_query = corpus.positives["train"].subset(np.arange(corpus.n_queries))
    owners = np.repeat(np.arange(corpus.n_queries), of_query.lengths)
    of_label = Ragged.of_pairs(of_query.values, owners, corpus.n_labels)
    drawn = dict.fromkeys(order[:1].tolist())
    starts, reached, asked = iter(order.tolist()), deque(drawn), set[int]()
    while len(drawn) < min(count, len(order)):
        if not reached:
            reached.append(next(starts))
        label = reached.popleft()
        drawn[label] = None
        for query in of_label[label].tolist():
            new = [] if query in asked else [each for each in of_query[query].tolist() if each not in drawn]
            asked.add(query)
            drawn |= dict.fromkeys(new)
            reached.extend(new)
    return np.array(list(drawn)[:count])


def _within(pairs: Ragged, place: np.ndarray) -> Ragged:
    """Return the pairs whose label is kept, by its new number."""
    rows, labels = np.repeat(np.arange(len(pairs)), pairs.lengths), place[pairs.values]
    return Ragged.of_pairs(rows[labels >= 0], labels[labels >= 0].astype(np.int32), len(pairs))


def _end_to_end(first: Ragged, second: Ragged) -> Ragged:
    """Return the rows of both."""
    return Ragged(np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
                  np.concatenate([first.values, second.values.astype(first.values.dtype)]))


def _write_side(out: Path, name: str, *parts: tuple[Side, np.ndarray]) -> None:
    """Write rows of sides, one part after the other."""
    tokens = [side.ragged.subset(rows) for side, rows in parts]
    (tokens[0] if len(tokens) == 1 else _end_to_end(*tokens)).save(out, f"{name}.tokens")
    np.save(out / f"{name}.titles.npy", np.concatenate([side.titles[rows] for side, rows in parts]))
