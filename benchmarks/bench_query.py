"""How long does one query take in process, where does the time go, and how much less does each of a thousand take?

    python -m benchmarks.bench_query HOME [PYTHON of an environment with libpecos]

Queries are the labels' own texts, cut in the middle; WARM others are asked first, so that what is mapped is in memory.
Recall is of what the index proposes, against exact search. Given a Python, PECOS' XR-Linear is trained on the same
titles and answers the same queries; its tf-idf counts as its tokeniser does.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.asked import Folder, Program, answer
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval import ann, inner_products
from xcmodels.retrieval.proposers import best_of, candidates
from xcmodels.retrieval.retriever import Retriever

QUERIES, WARM, K = 1000, 10_000, 10


def spent(action: Callable[[], Any]) -> tuple[Any, float]:
    """Return what an action makes, and its milliseconds."""
    began = time.perf_counter()
    made = action()
    return made, 1000 * (time.perf_counter() - began)


def parts(retriever: Retriever, texts: list[str]) -> dict[str, float]:
    """Return the milliseconds of each part of answering texts together."""
    took = {}
    tokens, took["tokenise"] = spent(lambda: retriever.tokenizer(texts))
    queries, took["embed"] = spent(lambda: retriever.embed(tokens))
    with inner_products.single_threaded():
        depth = retriever.facts["shortlist"]
        found, took["shortlist"] = spent(lambda: candidates(retriever.proposers.values(), queries, depth, K))
        scores, took["score"] = spent(lambda: retriever.scorer(queries, found, tokens))
        _, took["order"] = spent(lambda: best_of(found, scores, K))
    _, took["whole"] = spent(lambda: retriever.predict(texts, K))
    return took


def of_pecos(python: str, retriever: Retriever, queries: list[str]) -> dict[str, float]:
    """Return the milliseconds that PECOS takes, trained on the retriever's training texts."""
    known, labels = retriever.examples, retriever.examples.labels
    shape = len(known.texts), len(retriever.uids)
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as name:
        folder = Path(name)
        (folder / "train.txt").write_text("\n".join(known.texts.take(np.arange(shape[0]))), encoding="utf-8")
        (folder / "queries.txt").write_text("\n".join(queries), encoding="utf-8")
        ones = np.ones(len(labels.values), np.float32)
        sp.save_npz(folder / "labels.npz", sp.csr_matrix((ones, labels.values, labels.offsets), shape=shape))
        child = [python, str(Path(__file__).with_name("pecos_query.py")), name]
        found: dict[str, float] = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main(home: Folder, python: Program = "") -> None:
    """Print the time of one query by parts, and of each query of a thousand."""
    resolved = resolve(Tracker(home), None)
    retriever = Retriever.load(resolved.folder)
    rng = np.random.default_rng(0)
    titles = [retriever.titles[int(row)] for row in rng.permutation(len(retriever.titles))[:QUERIES + WARM]]
    halves = [" ".join(title.split()[:max(1, len(title.split()) // 2 + 1)]) for title in titles]
    texts, others = halves[:QUERIES], halves[QUERIES:]
    retriever.predict(others, K)
    for other in others[:QUERIES]:
        retriever.predict([other], K)
    print(f"{resolved.name}/{resolved.version}: {retriever}, {torch.get_num_threads()} threads")
    singly = [parts(retriever, [text]) for text in texts]
    together = [parts(retriever, texts) for _ in range(5)]
    print(f"{'':<12}{'p50 ms':>10}{'p99 ms':>10}{'ms of 1,000':>14}")
    for name in singly[0]:
        each = np.array([took[name] for took in singly])
        many = min(took[name] for took in together) / len(texts)
        print(f"{name:<12}{np.quantile(each, .5):>10.3f}{np.quantile(each, .99):>10.3f}{many:>14.3f}")
    if python:
        pecos = of_pecos(python, retriever, texts)
        print(f"{'PECOS':<12}{pecos['one']:>10.3f}{'':>10}{pecos['each']:>14.3f}")
    queries = retriever.embed(retriever.tokenizer(texts))
    for name, each in retriever.proposers.items():
        found = each.nearest(queries, retriever.facts["shortlist"], 100)
        vectors = each.index.vectors
        print(f"recall@100 of {name}: {100 * ann.recall(found, vectors, queries[:, :each.index.dim]):.1f}%")


if __name__ == "__main__":
    answer(main, __doc__)
