"""Synthetic corpora of a given shape: for benchmarks of time and memory, not of quality."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged

CHUNK = 200_000    # rows generated at once
SEED = 0


@dataclass(frozen=True)
class CorpusShape:
    """The size of a data set; positives, tokens: means per query and per text."""

    queries: int
    labels: int
    positives: float
    tokens: float = 10.0
    vocabulary: int = 30_522    # MiniLM's


WORDNET = CorpusShape(queries=82_115, labels=67_892, positives=1.6, tokens=14.0)
AMAZON_TITLES_1_3M = CorpusShape(queries=2_248_619, labels=1_305_265, positives=22.2, tokens=14.0)


def synthetic_corpus(folder: Path, shape: CorpusShape) -> Corpus:
    """Write a corpus of a shape to `folder` and open it.

    Texts have 2 to 2 * tokens - 2 tokens. Frequencies of tokens and labels are as skewed as in real data: a tenth of
    the labels has half of the pairs.
    """
    folder.mkdir(parents=True)
    counts = {"train": shape.queries, "label": shape.labels, "test": min(shape.queries, 1000)}
    for side, count in counts.items():
        _write_texts(folder, side, count, shape)
    for split in ("train", "test"):
        _positives(counts[split], shape, seeds.generator(SEED, "positives", split)).save(folder, f"positives.{split}")
        empty = Ragged(np.zeros(counts[split] + 1, dtype=np.int64), np.empty(0, dtype=np.int64))
        empty.save(folder, f"filters.{split}")
    np.save(folder / "idf.npy", np.ones(2 * shape.vocabulary, dtype=np.float32))
    np.save(folder / "validation.npy", np.arange(min(shape.queries // 20, 1000)))
    (folder / "corpus.json").write_text(json.dumps(
        {"name": "synthetic", "anchors": [], "propensity": [0.55, 1.5], "augmented": 0,
         "vocabulary": shape.vocabulary, **counts}) + "\n")
    return Corpus(folder)


def _write_texts(folder: Path, side: str, count: int, shape: CorpusShape) -> None:
    """Write the texts of a side; they have titles and no contents."""
    rng = seeds.generator(SEED, "texts", side)
    lengths = rng.integers(2, max(int(2 * shape.tokens) - 1, 3), size=count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.save(folder / f"{side}.tokens.offsets.npy", offsets)
    np.save(folder / f"{side}.titles.npy", lengths.astype(np.int32))
    tokens = np.lib.format.open_memmap(folder / f"{side}.tokens.values.npy", "w+", np.int32, (int(offsets[-1]),))
    for start in range(0, count, CHUNK):
        part = slice(offsets[start], offsets[min(start + CHUNK, count)])
        tokens[part] = _skewed_ids(rng, shape.vocabulary, part.stop - part.start)


def _positives(queries: int, shape: CorpusShape, rng: np.random.Generator) -> Ragged:
    """Return the labels of each query, sorted and distinct."""
    offsets, labels = [np.zeros(1, dtype=np.int64)], []
    for start in range(0, queries, CHUNK):
        counts = 1 + rng.poisson(shape.positives - 1, size=min(CHUNK, queries - start))
        rows = np.repeat(np.arange(len(counts)), counts)
        pairs = np.unique(rows * shape.labels + _skewed_ids(rng, shape.labels, len(rows)))
        offsets.append(offsets[-1][-1] + np.cumsum(np.bincount(pairs // shape.labels, minlength=len(counts))))
        labels.append(pairs % shape.labels)
    return Ragged(np.concatenate(offsets), np.concatenate(labels))


def _skewed_ids(rng: np.random.Generator, limit: int, count: int) -> np.ndarray:
    """Return ids below `limit`; half of them are in its first tenth."""
    return (limit * rng.random(count) ** (np.log(0.1) / np.log(0.5))).astype(np.int64)
