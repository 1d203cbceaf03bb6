"""The evaluate step: metrics of a retriever on the test queries."""

import json
from functools import partial

import numpy as np

from tasks.core.step import Step, StepContext
from xcmodels import metrics
from xcmodels.data import seeds
from xcmodels.data.corpus import Corpus
from xcmodels.data.propensity import inverse_propensity
from xcmodels.nn.encoders import QUERY, encode_all
from xcmodels.predictions import match
from xcmodels.retrieval import ann
from xcmodels.retrieval.calibration import BEST, calibration_error
from xcmodels.retrieval.ranker import Ranker, predict

STORED_PREDICTIONS = 10          # labels predicted for every test query, from the shortlists that users are served from
DEPTH = 100        # recall is reported to this depth, too
SAMPLE = 2000      # queries on which the indexes are compared with exact search
SAMPLE_RANKED = 5000             # queries, at most, that are ranked to DEPTH, and by each score alone


def evaluate_step(seed: int) -> Step:
    """Return the step that measures a retriever on the test split."""
    return Step("evaluate", "evaluation", partial(evaluate, seed), ("tasks.evaluation.evaluate",), {"seed": seed},
                {"corpus": "pack", "retriever": "build retriever"})


def evaluate(seed: int, context: StepContext) -> None:
    """Write `metrics.json`, `deciles.json` and the best predictions; training reads none of them.

    Filter pairs are removed from the predictions, before the top k is taken, and from the truth.
    """
    corpus, ranker = Corpus(context.inputs["corpus"]), Ranker(context.inputs["retriever"])
    ids, scores = predict(ranker, corpus, STORED_PREDICTIONS)
    truth, filters = corpus.positives["test"], corpus.filters["test"]
    frequencies = corpus.frequencies()
    inverse = inverse_propensity(corpus)
    measured = metrics.evaluate(ids, truth, filters, inverse)
    matches = match(ids, truth, filters, corpus.n_labels)
    confidences = ranker.calibration(scores)
    best = matches.labels[:, :BEST] >= 0
    measured |= {"calibration/queries": float(ranker.calibration.queries), "calibration/error":
                 calibration_error(confidences[matches.rows, :BEST][best], matches.hits[:, :BEST][best])}
    low, high = metrics.mean_interval(matches.hits[:, 0])
    measured |= {"P/1/low": low, "P/1/high": high} | _recalls(ranker, corpus, seed)
    sample = np.sort(seeds.generator(seed, "ranked sample").permutation(matches.rows)[:SAMPLE_RANKED])
    measured |= _on_sample(ranker, corpus, inverse, sample)
    deciles = metrics.by_decile(ids, truth, filters, frequencies, inverse, 5)
    for name, value in (("metrics", measured), ("deciles", deciles)):
        (context.out / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    np.save(context.out / "predictions.npy", ids)
    np.save(context.out / "scores.npy", scores)
    np.save(context.out / "confidences.npy", confidences.astype(np.float32))
    context.say(metrics.line_of(measured))


def _on_sample(ranker: Ranker, corpus: Corpus, inverse: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Return recall to DEPTH, and what embeddings, classifiers and their sum reach alone, as where nothing is fused.

    On the test queries `rows`, which have a true label: "recall/100", "P/1/by classifier" and the like; "points/alone"
    is their number.
    """
    truth, filters = corpus.positives["test"].subset(rows), corpus.filters["test"].subset(rows)
    queries = encode_all(ranker.encoder, corpus.sides["test"], QUERY, rows)    # once for all: a transformer takes long

    def measure(of: Ranker, depth: int, **ks: tuple[int, ...]) -> dict[str, float]:
        return metrics.evaluate(predict(of, corpus, depth, rows, queries)[0], truth, filters, inverse, **ks)

    deep = f"recall/{DEPTH}"
    out = {deep: measure(ranker, DEPTH, ks=(), recall_ks=(DEPTH,))[deep]}
    for name, unfused in ranker.unfused().items():
        found = measure(unfused, 5, ks=(1, 5), recall_ks=())
        out |= {f"{key}/by {name}": found[key] for key in metrics.SHOWN if key in found}
        out["points/alone"] = found["points"]
    return out


def _recalls(ranker: Ranker, corpus: Corpus, seed: int) -> dict[str, float]:
    """Return each index's recall of the 100 exact nearest labels, in percent."""
    test = corpus.sides["test"]
    rows = np.sort(seeds.generator(seed, "index recall").permutation(len(test))[:SAMPLE])
    queries = encode_all(ranker.encoder, test, QUERY, rows=rows)
    return {f"index/{name}/recall/{DEPTH}":
            100 * ann.recall(proposer.nearest(queries, ranker.facts["shortlist"], DEPTH), proposer.index.vectors,
                             queries[:, :proposer.index.dim], DEPTH)
            for name, proposer in ranker.proposers.items()}
