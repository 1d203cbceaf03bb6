"""Comparison of two retrievers on the same test queries, over their shared labels; evaluation of the champion.

A champion of last month was trained on other labels and measured on other queries. It is judged here as it would
answer today: from the texts, by its own tokenizer, with labels matched by uid. Queries whose text one of the two was
trained on say nothing about new texts, and are left out.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tasks.core.code_digest import code_digests
from tasks.core.store import Artifact, Store, digest_of
from tasks.evaluation.gates import Comparison, Incomparable, Score
from tasks.registry.resolve import Resolved, resolve
from tasks.registry.tags import CHAMPION
from tasks.tracking.tracker import StepMetrics, Tracker
from xcmodels import metrics
from xcmodels.data import seen_texts
from xcmodels.data.corpus import Corpus, Ragged, Texts
from xcmodels.data.propensity import inverse_propensity
from xcmodels.data.sorted_ids import isin_sorted
from xcmodels.data.tokens import Tokens
from xcmodels.predictions import drop_filtered
from xcmodels.retrieval.ranker import by_filters
from xcmodels.retrieval.retriever import Retriever

COMPARED = 10    # predictions per query that are compared
CHUNK = 1024     # queries per search
TIMED = 40       # texts that are tagged one by one to time a retriever


@dataclass(frozen=True)
class ComparisonCorpus:
    """A corpus on whose test queries versions are compared; comparisons in the store are reused."""

    store: Store
    pack: Artifact
    say: Callable[[str], None]

    def __call__(self, ours: Resolved, theirs: Resolved) -> Comparison:
        """Compare a version with the champion.

        Raises Incomparable where no query is left to compare them by, ValueError for a retriever of a format that is no
        longer supported.
        """
        about = {"step": "compare", "settings": {}, "code": code_digests("tasks.registry.comparison")}
        inputs = {"ours": ours.digest, "theirs": theirs.digest, "corpus": self.pack.digest}
        key = digest_of({**about, "inputs": inputs})

        def write(out: Path) -> None:
            corpus = Corpus(self.store.open(self.pack))
            self.say(f"    versions {ours.version} and {theirs.version} answer the test queries of {corpus.name}")
            comparison = compare([Retriever.load(version.folder) for version in (ours, theirs)], corpus)
            (out / "comparison.json").write_text(json.dumps(asdict(comparison)) + "\n")

        with self.store.no_collection():
            artifact = self.store.find(key) or self.store.publish(key, "comparison", inputs, write, about)
            stored = json.loads((self.store.open(artifact) / "comparison.json").read_text())
        return Comparison(**{**stored, "scores": [Score(**score) for score in stored["scores"]]})


def comparison_on_newest(store: Store, version: Resolved,
                         say: Callable[[str], None]) -> Callable[[Resolved, Resolved], Comparison]:
    """Return what compares versions on `newest_corpus`.

    Where the store has none, it raises Incomparable: by recorded metrics, which say nothing of single queries, the
    gates would let more pass.
    """
    return newest_corpus(store, version, say) or partial(_no_test_set, _data_of(version))


def newest_corpus(store: Store, version: Resolved, say: Callable[[str], None]) -> ComparisonCorpus | None:
    """Return the corpus of a version's data set that was made or used last, None where the store has none."""
    data = _data_of(version)
    keys = [key for key, manifest in store.steps() if manifest["kind"] == "corpus"
            and manifest["about"].get("settings", {}).get("facts", {}).get("name") == data]
    pack = store.find(keys[-1]) if keys else None
    return ComparisonCorpus(store, pack, say) if pack else None


def _data_of(version: Resolved) -> str:
    """Return the name of the data set that a version was trained on."""
    return str(json.loads((version.folder / "retriever.json").read_text())["data"])


def _no_test_set(data: str, ours: Resolved, theirs: Resolved) -> Comparison:
    raise Incomparable(f"the test set of {data} is not in this home (xc prepare --data DIR)")


def compare(retrievers: Sequence[Retriever], corpus: Corpus) -> Comparison:
    """Score retrievers on a corpus' test queries that none was trained on, over the labels that all have.

    Raises Incomparable where no such query has such a label.
    """
    seen = np.zeros(len(corpus.sides["test"]), dtype=bool)
    for retriever in retrievers:
        for part, tokens in _tokens(retriever, corpus, np.arange(len(seen))):
            seen[part] |= isin_sorted(seen_texts.digests(tokens), retriever.training_digests)
    rows = np.flatnonzero(~seen)
    uids = Texts.load(corpus.folder, "label.uid")
    places = {uids[label]: label for label in range(corpus.n_labels)}
    own_labels = [np.array([places.get(retriever.uids[label], -1) for label in range(len(retriever.uids))],
                           dtype=np.int64) for retriever in retrievers]    # -> labels of the corpus
    shared = np.ones(corpus.n_labels, dtype=bool)
    for retriever, labels in zip(retrievers, own_labels, strict=True):
        shared &= np.isin(np.arange(corpus.n_labels), np.delete(labels, retriever.removed))
    truth, filters = (pairs["test"].subset(rows).less(np.flatnonzero(~shared))
                      for pairs in (corpus.positives, corpus.filters))
    if not len(truth.values):
        raise Incomparable("no test query has a label that they share" + (
            f", {len(seen) - len(rows):,} of {len(seen):,} being left out as trained on" if seen.any() else ""))
    predicted = [_predict(retriever, np.where((labels >= 0) & shared[labels], labels, -1), corpus, rows, filters)
                 for retriever, labels in zip(retrievers, own_labels, strict=True)]
    frequencies = corpus.frequencies()
    inverse = inverse_propensity(corpus)
    scores = [Score(metrics.evaluate(labels, truth, filters, inverse),
                    metrics.by_decile(labels, truth, filters, frequencies, inverse, 5)) for labels in predicted]
    errors = metrics.difference_errors(predicted, truth, filters, frequencies, inverse) if len(predicted) == 2 else {}
    return Comparison(scores, len(seen), len(seen) - len(rows), errors)


@dataclass(frozen=True)
class ChampionScore:
    """A champion's score on a corpus' test queries, over the labels that it knows, and its run in MLflow.

    note: a remark on the score, such as how many queries were left out.
    """

    name: str
    version: str
    score: Score
    note: str
    run_id: str


def evaluate_champion(tracker: Tracker, name: str, corpus: Corpus, pack: Artifact, command: str = "") -> ChampionScore:
    """Score the champion of `name` on a corpus as it answers today, and log that as a run in MLflow.

    Test queries that it was trained on are left out: a new import may have put them there.
    pack: the artifact of the corpus; the same champion on the same artifact is the same run. Raises
    UsageError where there is no champion, ValueError where the test queries have none of its labels.
    """
    champion = resolve(tracker, f"{name}@{CHAMPION}")
    comparison = compare([Retriever.load(champion.folder)], corpus)
    score, note = comparison.scores[0], comparison.note(f"version {champion.version}")
    tracker.start(digest_of(["champion", champion.digest, pack.digest]), experiment=corpus.name,
                  name=f"champion v{champion.version} · {corpus.name}",
                  params={"model": name, "version": champion.version},
                  config_yaml="", data={corpus.name: {"path": pack.path, "digest": pack.digest}},
                  tags={"xc.champion": champion.version, "xc.retriever": champion.digest})
    tracker.sync([StepMetrics("champion", pack.digest, dict(score.metrics), tables={"decile": list(score.deciles)})])
    result = (f"version {champion.version} on {score.metrics['points']:,.0f} test queries: "
              f"P@1 {score.metrics['P/1']:.2f}, PSP@5 {score.metrics['PSP/5']:.2f}")
    tracker.finish("FINISHED", f"{result}{'; ' if note else ''}{note}\n\n    {command}")
    tracker.close()
    return ChampionScore(name, champion.version, score, note, tracker.run_id or "")


def _tokens(retriever: Retriever, corpus: Corpus, rows: np.ndarray) -> Iterator[tuple[slice, Tokens]]:
    """Yield test queries `rows` as a retriever's tokens, CHUNK at a time, with their slice of `rows`."""
    titles, contents = (Texts.load(corpus.folder, f"test.{part}") for part in ("title", "content"))
    for start in range(0, len(rows), CHUNK):
        part = slice(start, min(start + CHUNK, len(rows)))
        yield part, retriever.tokenizer(titles.take(rows[part]), contents.take(rows[part]))


def _predict(retriever: Retriever, labels: np.ndarray, corpus: Corpus, rows: np.ndarray,
             filters: Ragged) -> np.ndarray:
    """Return a retriever's COMPARED best labels for test queries, as labels of the corpus; -1 is no label.

    labels: the corpus' number of each of the retriever's labels. filters: of the same queries.
    """
    best = np.full((len(rows), COMPARED), -1, np.int64)
    some_are_unshared = (np.delete(labels, retriever.removed) < 0).any()
    selection = retriever.select.among(labels >= 0) if some_are_unshared else retriever.everything
    for some, more in by_filters(filters):
        depth = min(COMPARED + more, selection.count)
        for part, tokens in _tokens(retriever, corpus, rows[some]):
            ids, _ = retriever.search(tokens, depth, selection)
            candidates = np.full((len(ids), max(depth, COMPARED)), -1, np.int64)
            candidates[:, :depth] = np.where(ids >= 0, labels[ids], -1)
            best[some[part]] = drop_filtered(candidates, np.zeros(candidates.shape, np.float32),
                                             filters.subset(some[part]), COMPARED)[0]
    return best


def latencies(retrievers: Sequence[Retriever]) -> list[float]:
    """Return each retriever's milliseconds to tag one text: the lower quartile over TIMED texts.

    The texts are titles of its labels, evenly spread. Retrievers take turns, so that another process on the machine
    slows a few texts, or all retrievers alike.
    """
    texts = [[retriever.titles[len(retriever.titles) * i // TIMED] for i in range(TIMED)] for retriever in retrievers]
    seconds = [[0.0] * TIMED for _ in retrievers]
    for text in (-1, *range(TIMED)):    # the first is a warm-up
        for retriever, titles, times in zip(retrievers, texts, seconds, strict=True):
            began = time.perf_counter()
            retriever.predict([titles[text]])
            times[text] = time.perf_counter() - began
    return [1000 * statistics.quantiles(times, n=4)[0] for times in seconds]
