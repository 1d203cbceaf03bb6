"""P@1 of validation queries at the end of an epoch, where that is cheap.

No random number is drawn and no weight changed, so training ends with the same bits with or without it.
"""

from typing import Any

import numpy as np

from xcmodels import metrics
from xcmodels.data.corpus import Corpus
from xcmodels.method import Mined, Stage
from xcmodels.nn.row_table import Model

QUERIES = 500       # validation queries of an epoch, at most
LABELS = 200_000    # with more labels, epochs are not validated
P1 = "validation/P@1"
_BLOCK = 64         # queries scored at once: 50 MB for 200,000 labels


def validation_rows(corpus: Corpus) -> np.ndarray:
    """Return the rows of the validation queries that epochs are validated on, evenly spaced; none where that is costly.

    A dual encoder encodes every label's text for it, forward only: with as many labels as training texts, a sixth of
    the epoch's forward and backward passes, and more with more labels. So it is skipped with more than LABELS labels,
    or more labels than training texts.
    """
    rows = corpus.validation[corpus.train_positives.lengths[corpus.validation] > 0]
    if not len(rows) or corpus.n_labels > min(LABELS, len(corpus.training_rows())):
        return rows[:0]
    return rows[np.linspace(0, len(rows) - 1, min(QUERIES, len(rows))).astype(np.int64)]


def precision(stage: Stage[Any], model: Model, corpus: Corpus, mined: Mined, rows: np.ndarray) -> float:
    """Return P@1 of `rows` of the training side, in percent, by exact search without their filter pairs."""
    queries, labels = stage.ranking_vectors(model, corpus, mined, rows)
    filters = corpus.filters["train"]
    best = np.empty((len(rows), 1), np.int64)
    for start in range(0, len(rows), _BLOCK):
        part = rows[start:start + _BLOCK]
        scores = queries[start:start + _BLOCK] @ labels.T
        excluded, lengths = filters.take(part)
        scores[np.repeat(np.arange(len(part)), lengths), excluded] = -np.inf
        best[start:start + _BLOCK, 0] = scores.argmax(1)
    truth = corpus.train_positives.subset(rows)
    return 100 * float(metrics.match(best, truth, None, corpus.n_labels).hits[:, 0].mean())
