"""Two retrievers on the same ground: the same test queries, the labels that both know, the same machine.

A champion of last month was trained on other labels and measured on other queries. It is judged here as it would
answer today: by its own tokenizer, from the texts, and with labels told by their uids.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np

from tasks.gates import Score
from xcmodels import metrics
from xcmodels.corpus import Corpus, Ragged, Texts
from xcmodels.retrieval import Retriever

DEPTH = 100      # labels of a query that are looked at, before those that not all retrievers know are left out
KEPT = 10
CHUNK = 1024
TIMED = 40       # texts that are tagged one by one to time a retriever


def on_shared_labels(retrievers: Sequence[Retriever], corpus: Corpus) -> list[Score]:
    """Return each retriever's score on the corpus' test queries, over the labels that it shares with all the others.

    Raises ValueError where no test query has such a label.
    """
    uids = Texts.load(corpus.folder, "label.uid")
    places = {uids[label]: label for label in range(corpus.n_labels)}
    own = [np.array([places.get(each.uids[label], -1) for label in range(len(each.uids))], dtype=np.int64)
           for each in retrievers]
    shared = np.ones(corpus.n_labels, dtype=bool)
    for labels in own:
        shared &= np.isin(np.arange(corpus.n_labels), labels)
    truth, filters = (of["test"].less(np.flatnonzero(~shared)) for of in (corpus.positives, corpus.filters))
    frequencies = corpus.frequencies()
    inverse = 1 / metrics.propensity(frequencies, corpus.n_queries, *corpus.facts["propensity"])
    scores = []
    for retriever, labels in zip(retrievers, own, strict=True):
        predicted = _predict(retriever, np.where((labels >= 0) & shared[labels], labels, -1), corpus, filters)
        measured = metrics.evaluate(predicted, truth, filters, inverse, recall_ks=(1, 3, 5, 10))
        scores.append(Score(measured, metrics.by_decile(predicted, truth, filters, frequencies, inverse, 5)))
    return scores


def _predict(retriever: Retriever, labels: np.ndarray, corpus: Corpus, filters: Ragged) -> np.ndarray:
    """Return the best KEPT of a retriever's labels for every test query, as the corpus' labels; -1 is no label."""
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    depth = min(DEPTH + int(filters.lengths.max(initial=0)), len(labels))
    found = np.full((len(titles), max(depth, KEPT)), -1, np.int64)
    for start in range(0, len(titles), CHUNK):
        rows = range(start, min(start + CHUNK, len(titles)))
        tokens = retriever.tokenizer([titles[row] for row in rows], [contents[row] for row in rows])
        ids, _ = retriever.search(tokens, depth)
        found[start:rows.stop, :depth] = np.where(ids >= 0, labels[ids], -1)
    return metrics.drop_filtered(found, np.zeros(found.shape, np.float32), filters, KEPT)[0]


def latencies(retrievers: Sequence[Retriever]) -> list[float]:
    """Return the milliseconds that tagging one text takes each retriever: the lower quartile over TIMED texts.

    The texts are titles of its labels, evenly spread. They take turns, so that another process on
    the machine slows a few texts, or all retrievers alike.
    """
    texts = [[each.titles[len(each.titles) * part // TIMED] for part in range(TIMED)] for each in retrievers]
    seconds = [[0.0] * TIMED for _ in retrievers]
    for text in (-1, *range(TIMED)):    # the first is a warm-up
        for retriever, own, spent in zip(retrievers, texts, seconds, strict=True):
            began = time.perf_counter()
            retriever.predict([own[text]])
            spent[text] = time.perf_counter() - began
    return [1000 * statistics.quantiles(spent, n=4)[0] for spent in seconds]
