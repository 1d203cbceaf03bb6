"""What do label vectors of fewer bits cost in quality and in time, and what do they save?

    python -m benchmarks.bench_vector_bits HOME [queries]

The only model of HOME, whose ranking is fused, answers test queries, with the vectors of all its scores decoded from
each form. faiss' IndexRefine rescores the labels of the best 4-bit codes by the same form; its recall is against exact
search by float32. Forms alternate, in one thread.
"""

from dataclasses import replace

import faiss
import numpy as np
import torch

from benchmarks.arguments import Count, Folder, run
from benchmarks.measuring import timed
from data_contracts.errors import UsageError
from tasks.core.store import Store
from tasks.registry.comparison import newest_corpus
from tasks.registry.resolve import resolve
from tasks.tracking.tracker import Tracker
from xcmodels import metrics
from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.retrieval import ann
from xcmodels.retrieval.fusion import TreeFusion
from xcmodels.retrieval.inner_products import pair_scores
from xcmodels.retrieval.ranker import Ranker, predict

FORMS = {"float32": None, "float16": faiss.ScalarQuantizer.QT_fp16, "8 bits": faiss.ScalarQuantizer.QT_8bit}
ROUNDS, K, PAIRS = 5, 100, 300    # PAIRS: labels that a query's shortlist has, about
SINGLE, BATCH = 100, 600          # queries answered one by one, and at once, at most


def stored(matrix: np.ndarray, form: str) -> faiss.IndexFlatCodes:
    """Return an index that keeps the vectors of `matrix` (L, d) in a form."""
    kind, dim = FORMS[form], matrix.shape[1]
    index = faiss.IndexFlatIP(dim) if kind is None else faiss.IndexScalarQuantizer(
        dim, kind, faiss.METRIC_INNER_PRODUCT)
    index.train(matrix)
    index.add(matrix)
    return index


def ranked(ranker: Ranker, form: str, corpus: Corpus, rows: np.ndarray) -> np.ndarray:
    """Return the best labels of test queries `rows`, (n, K), with the vectors of each score decoded from a form."""
    whole = ranker.scorer
    terms = {name: replace(term, matrix=stored(np.ascontiguousarray(term.matrix), form).reconstruct_n())
             for name, term in whole.terms.items()}
    try:
        ranker.scorer = replace(whole, terms=terms)
        return predict(ranker, corpus, K, rows)[0]
    finally:
        ranker.scorer = whole


def pair_ms(queries: np.ndarray, matrix: np.ndarray, kept: faiss.IndexFlatCodes, labels: np.ndarray) -> float:
    """Return the milliseconds per query that scoring `labels` (n, PAIRS) takes, which are decoded first where need be.

    float32 vectors are read where they are.
    """
    codes = faiss.vector_to_array(kept.codes).reshape(kept.ntotal, -1)

    def score() -> None:
        for query, chosen in zip(queries[:, None], labels, strict=True):
            if isinstance(kept, faiss.IndexFlat):
                pair_scores(query, matrix, np.zeros(PAIRS, np.int64), chosen)
            else:
                pair_scores(query, kept.sa_decode(codes[chosen]), np.zeros(PAIRS, np.int64), np.arange(PAIRS))

    return 1000 * timed(score)[1] / len(queries)


def main(home: Folder, queries: Count = 25_000) -> None:
    """Print one row per form."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    version = resolve(Tracker(home), None)
    ranker, found = Ranker(version.folder), newest_corpus(Store(home), version, print)
    if not isinstance(ranker.scorer, TreeFusion) or found is None:
        raise UsageError(f"{version.name} is not ranked fused, or {home} has no corpus of it any more")
    corpus, rng = Corpus(found.store.open(found.pack)), np.random.default_rng(0)
    rows = np.sort(rng.permutation(len(corpus.sides["test"]))[:queries])
    truth, filters = corpus.positives["test"].subset(rows), corpus.filters["test"].subset(rows)
    inverse = inverse_propensity(corpus)
    vectors = np.array(next(iter(ranker.proposers.values())).index.vectors)
    asked = ranker.embed(corpus.sides["test"].tokens(rng.permutation(rows)[:BATCH]))[:, :vectors.shape[1]]
    some = asked[:SINGLE]
    codes = ann.build(vectors, "quantised").faiss_index
    kept = {form: stored(vectors, form) for form in FORMS}
    refined = {form: faiss.IndexRefine(codes, index) for form, index in kept.items()}
    ms = {form: ([], [], []) for form in FORMS}
    for _ in range(ROUNDS):
        labels = rng.integers(len(vectors), size=(len(some), PAIRS))
        for form, index in refined.items():
            index.k_factor = 4
            ms[form][0].append(1000 * timed(lambda index=index: index.search(asked, K))[1] / len(asked))
            ms[form][1].append(1000 * timed(lambda index=index: [
                index.search(query, K) for query in some[:, None]])[1] / len(some))
            ms[form][2].append(pair_ms(some, vectors, kept[form], labels))
    print(f"{version.name}: {len(vectors):,} labels, d = {vectors.shape[1]}, {len(rows):,} test queries")
    print(f"{'form':<9}{'MB':>6}{'P@1':>8}{'P@5':>8}{'PSP@1':>8}{'PSP@5':>8}{'recall':>8}{f'each of {len(asked)}':>14}"
          f"{'one, ms':>9}{f'{PAIRS} pairs, ms':>15}")
    for form, index in refined.items():
        measured = metrics.evaluate(ranked(ranker, form, corpus, rows), truth, filters, inverse)
        recall = ann.recall(index.search(asked, K)[1], vectors, asked, K)
        print(f"{form:<9}{kept[form].code_size * len(vectors) / 1e6:>6.1f}"
              + "".join(f"{measured[key]:>8.3f}" for key in metrics.SHOWN[:4])
              + f"{recall:>8.4f}{np.median(ms[form][0]):>14.3f}{np.median(ms[form][1]):>9.3f}"
                f"{np.median(ms[form][2]):>15.3f}")


if __name__ == "__main__":
    run(main, __doc__)
