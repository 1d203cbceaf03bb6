"""How long does one query take in process, where does the time go, and how long per query for a batch of 1,000?

    python -m benchmarks.bench_query HOME [PYTHON of an environment with libpecos]

Queries are the first half of a label's text and a word more. WARM_UP others are answered first, if the model has so
many labels, so that mapped files are in memory. The recall of each index is measured against exact search, and what is
served, on test queries, against shortlists of 100 labels by exact search: P@5 and PSP@5 of the k that people ask for.
CPU is processor time, of all threads; where other programs run beside, it says more than the clock. With PYTHON, PECOS'
XR-Linear is trained on the same titles and answers the same queries; its tf-idf counts as our tokeniser does.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.arguments import Folder, Program, run
from benchmarks.measuring import Result, timed
from tasks.core.store import Store
from tasks.registry.comparison import newest_corpus
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels import metrics
from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.retrieval import ann, inner_products
from xcmodels.retrieval.proposers import best_of, candidates
from xcmodels.retrieval.ranker import predict
from xcmodels.retrieval.retriever import Retriever

QUERIES, WARM_UP, K = 1000, 10_000, 10
DEEP = 100    # labels of a shortlist by exact search


def parts(retriever: Retriever, texts: list[str]) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of each part of answering a batch of texts and of the whole: by the clock, of CPU."""
    ms = {}

    def measure(name: str, action: Callable[[], Result]) -> Result:
        before = time.process_time()
        result, seconds = timed(action)
        ms[name] = 1000 * seconds, 1000 * (time.process_time() - before)
        return result

    tokens = measure("tokenise", lambda: retriever.tokenizer(texts))
    queries = measure("embed", lambda: retriever.embed(tokens))
    with inner_products.single_threaded():
        depth = retriever.facts["shortlist"]
        words = measure("words", lambda: retriever.scorer.read(tokens))
        others = measure("propose", lambda: retriever.scorer.propose(words))
        shortlist = measure("shortlist", lambda: candidates(retriever.proposers.values(), queries, depth, K, others))
        scores = measure("score", lambda: retriever.scorer(queries, shortlist, words))
        measure("order", lambda: best_of(shortlist, scores, K))
    measure("whole", lambda: retriever.predict(texts, K))
    return ms


def pecos_ms(python: str, retriever: Retriever, queries: list[str]) -> dict[str, float]:
    """Return the milliseconds that PECOS takes per query, trained on the retriever's training texts."""
    examples, labels = retriever.examples, retriever.examples.labels
    shape = len(examples.texts), len(retriever.uids)
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as name:
        folder = Path(name)
        (folder / "train.txt").write_text("\n".join(examples.texts.take(np.arange(shape[0]))), encoding="utf-8")
        (folder / "queries.txt").write_text("\n".join(queries), encoding="utf-8")
        ones = np.ones(len(labels.values), np.float32)
        sp.save_npz(folder / "labels.npz", sp.csr_matrix((ones, labels.values, labels.offsets), shape=shape))
        command = [python, str(Path(__file__).with_name("pecos_query.py")), name]
        ms: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return ms


def print_served(retriever: Retriever, corpus: Corpus) -> None:
    """Print P@5 and PSP@5 on the test queries, of the K labels that are served and by exact search."""
    everything = replace(retriever.everything, proposers={
        name: replace(proposer, index=ann.Index("exact", proposer.index.vectors))
        for name, proposer in retriever.proposers.items()})
    exact: Retriever = object.__new__(Retriever)    # not by `copy`, which it refuses
    vars(exact).update(vars(retriever), facts={**retriever.facts, "shortlist": DEEP}, everything=everything)
    inverse = inverse_propensity(corpus)
    for name, ranker in (("served", retriever), ("exact", exact)):
        ids, _ = predict(ranker, corpus, K)
        found = metrics.evaluate(ids, corpus.positives["test"], corpus.filters["test"], inverse, recall_ks=())
        print(f"{name}: " + ", ".join(f"{key} {found[key]:.2f}" for key in metrics.SHOWN[:4]), flush=True)


def main(home: Folder, python: Program = "") -> None:
    """Print the milliseconds of one query by parts, alone and in a batch of 1,000."""
    resolved = resolve(Tracker(home), None)
    retriever = Retriever.load(resolved.folder)
    rng = np.random.default_rng(0)
    titles = [retriever.titles[int(row)] for row in rng.permutation(len(retriever.titles))[:QUERIES + WARM_UP]]
    halves = [" ".join(words[:len(words) // 2 + 1]) for words in map(str.split, titles)]
    texts, warm_up = halves[:QUERIES], halves[QUERIES:]
    retriever.predict(warm_up, K)
    for text in warm_up[:QUERIES]:
        retriever.predict([text], K)
    print(f"{resolved.name}/{resolved.version}: {retriever}, {torch.get_num_threads()} threads")
    single = [parts(retriever, [text]) for text in texts]
    batch = [parts(retriever, texts) for _ in range(5)]
    print(f"{'':<12}{'p50 ms':>10}{'p99 ms':>10}{'CPU p50':>10}{'ms in batch':>14}{'CPU in batch':>14}")
    for name in single[0]:
        ms, cpu = np.array([part[name] for part in single]).T
        in_batch = np.array([part[name] for part in batch]).min(0) / len(texts)
        print(f"{name:<12}{np.quantile(ms, .5):>10.3f}{np.quantile(ms, .99):>10.3f}{np.quantile(cpu, .5):>10.3f}"
              f"{in_batch[0]:>14.3f}{in_batch[1]:>14.3f}", flush=True)
    if python:
        pecos = pecos_ms(python, retriever, texts)
        print(f"{'PECOS':<12}{pecos['single']:>10.3f}{'':>20}{pecos['batch']:>14.3f}{pecos['batch CPU']:>14.3f}")
    queries = retriever.embed(retriever.tokenizer(texts))
    for name, proposer in retriever.proposers.items():
        found = proposer.nearest(queries, retriever.facts["shortlist"], 100)
        recall = ann.recall(found, proposer.index.vectors, queries[:, :proposer.index.dim])
        print(f"recall@100 of {name}: {100 * recall:.1f}%")
    if (found := newest_corpus(Store(home), resolved, print)) is not None:
        print_served(retriever, Corpus(found.store.open(found.pack)))


if __name__ == "__main__":
    run(main, __doc__)
