"""Digests of a retriever's training texts, to leave them out of its evaluation, and of its labels' texts.

They are of the tokens that the encoder reads: texts of the same tokens count as one text, whatever their case, where
the title ends, and what follows the tokens that are kept.
"""

from hashlib import blake2b
from itertools import pairwise

import numpy as np

from xcmodels.data.corpus import Corpus, Side
from xcmodels.data.sorted_ids import unique
from xcmodels.data.tokens import Tokens

FILE, OF_LABELS = "trained.npy", "label.read.npy"
_CHUNK = 1 << 16    # texts whose tokens are held at once


def digests(tokens: Tokens) -> np.ndarray:
    """Return a digest of each text, (n,) uint64; among a million texts two collide with a chance of 3e-8."""
    ids, offsets = tokens.ids.numpy(), tokens.offsets.tolist()
    return np.frombuffer(b"".join(blake2b(ids[start:end].tobytes(), digest_size=8).digest()
                                  for start, end in pairwise(offsets)), np.uint64)


def trained_on(corpus: Corpus) -> np.ndarray:
    """Return the digests of a corpus' training queries that have a positive, sorted, each once.

    Queries held out to fit the fusion are included; label texts are not.
    """
    rows = np.flatnonzero(corpus.positives["train"].lengths[:corpus.n_queries] > 0)
    return unique(of_rows(corpus.sides["train"], rows))


def of_labels(corpus: Corpus) -> np.ndarray:
    """Return the digest of each label's text, (L,)."""
    return of_rows(corpus.sides["label"], np.arange(corpus.n_labels))


def of_rows(side: Side, rows: np.ndarray) -> np.ndarray:
    """Return the digest of each of a side's texts in `rows`, (n,)."""
    parts = [digests(side.tokens(rows[start:start + _CHUNK])) for start in range(0, len(rows), _CHUNK)]
    return np.concatenate([np.empty(0, np.uint64), *parts])
