"""Corpora made up, of the shape asked for: for questions of how long and how much, not of how well."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus, Ragged

ROWS = 200_000    # made at once


@dataclass(frozen=True)
class Shape:
    """How large a data set is; positives and tokens: means of a query and of a text."""

    queries: int
    labels: int
    positives: float
    tokens: float = 10.0
    vocabulary: int = 30_522    # MiniLM's


WORDNET = Shape(queries=82_115, labels=67_892, positives=1.6, tokens=14.0)
AMAZON_TITLES_1_3M = Shape(queries=2_248_619, labels=1_305_265, positives=22.2, tokens=14.0)


def made(folder: Path, shape: Shape, *, seed: int = 0) -> Corpus:
    """Write to `folder`, and open, a corpus of a shape.

    Texts are 2 to 2 * tokens - 2 tokens long, tokens and labels fall off as those of real data do: a tenth of the
    labels has half of the pairs.
    """
    folder.mkdir(parents=True)
    counts = {"train": shape.queries, "label": shape.labels, "test": min(shape.queries, 1000)}
    for side, n in counts.items():
        _side(folder, side, n, shape, seed)
    for split in ("train", "test"):
        _positives(counts[split], shape, seeds.generator(seed, "positives", split)).save(folder, f"positives.{split}")
        empty = Ragged(np.zeros(counts[split] + 1, dtype=np.int64), np.empty(0, dtype=np.int64))
        empty.save(folder, f"filters.{split}")
    np.save(folder / "idf.npy", np.ones(2 * shape.vocabulary, dtype=np.float32))
    np.save(folder / "validation.npy", np.arange(min(shape.queries // 20, 1000)))
    (folder / "corpus.json").write_text(json.dumps(
        {"name": "made up", "anchors": [], "propensity": [0.55, 1.5], "augmented": 0, "vocabulary": shape.vocabulary,
         **counts}) + "\n")
    return Corpus(folder)


def _side(folder: Path, side: str, n: int, shape: Shape, seed: int) -> None:
    """Write the texts of a side, titles alone."""
    rng = seeds.generator(seed, "texts", side)
    lengths = rng.integers(2, max(int(2 * shape.tokens) - 1, 3), size=n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    np.save(folder / f"{side}.tokens.offsets.npy", offsets)
    np.save(folder / f"{side}.titles.npy", lengths.astype(np.int32))
    values = np.lib.format.open_memmap(folder / f"{side}.tokens.values.npy", "w+", np.int32, (int(offsets[-1]),))
    for start in range(0, n, ROWS):
        part = slice(offsets[start], offsets[min(start + ROWS, n)])
        values[part] = _skewed(rng, shape.vocabulary, part.stop - part.start)


def _positives(n: int, shape: Shape, rng: np.random.Generator) -> Ragged:
    """Return the labels of `n` queries, sorted, none twice."""
    offsets, values = [np.zeros(1, dtype=np.int64)], []
    for start in range(0, n, ROWS):
        wanted = 1 + rng.poisson(shape.positives - 1, size=min(ROWS, n - start))
        rows = np.repeat(np.arange(len(wanted)), wanted)
        pairs = np.unique(rows * shape.labels + _skewed(rng, shape.labels, len(rows)))
        offsets.append(offsets[-1][-1] + np.cumsum(np.bincount(pairs // shape.labels, minlength=len(wanted))))
        values.append(pairs % shape.labels)
    return Ragged(np.concatenate(offsets), np.concatenate(values))


def _skewed(rng: np.random.Generator, most: int, count: int) -> np.ndarray:
    """Return ids below `most`, of which the first tenth comes up half of the time."""
    return (most * rng.random(count) ** (np.log(0.1) / np.log(0.5))).astype(np.int64)


def most_held() -> int:
    """Return the most bytes that this process held (Linux); `getrusage` begins with what its parent held."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
