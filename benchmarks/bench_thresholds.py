"""Are as many labels right as were wanted, at the threshold that is recommended for it, on texts it was not chosen on?

    python -m benchmarks.bench_thresholds HOME

For each evaluation of HOME, the test queries are divided at random in halves, 20 times: a threshold is recommended for
one half, and the labels given in the other are counted. "off by": |right - wanted| in points, on average and at most;
"chance": that average where both halves are draws of one distribution of labels that are right with the chance wanted.
A line of dashes: in one of the halves at least, no threshold leaves so many right.
"""

import json

import numpy as np

from benchmarks.arguments import Folder, run
from tasks.core.store import Artifact, Store
from tasks.evaluation.report import EvaluationFiles
from tasks.evaluation.thresholds import Answers, at_threshold, recommended
from xcmodels.data.corpus import Corpus
from xcmodels.data.seeds import generator

WANTED, HALVINGS = (0.5, 0.7, 0.8, 0.9), 20


def halves(answers: Answers, number: int) -> tuple[Answers, Answers]:
    """Return two halves of the queries, drawn by a number."""
    order = generator(number, "halves").permutation(len(answers.positives))
    return tuple(Answers(answers.confidences[rows], answers.right[rows], answers.positives[rows])
                 for rows in np.array_split(order, 2))


def main(home: Folder) -> None:
    """Print a row for each evaluation and wanted share of right labels."""
    store = Store(home)
    print(f"{'data':<18}{'method':<15}{'queries':>9}{'wanted %':>10}{'threshold':>11}{'right %':>9}{'off by':>8}"
          f"{'most':>7}{'chance':>8}{'labels a text':>15}")
    for key, manifest in store.steps():
        if manifest["kind"] != "evaluation" or (made := store.find(key)) is None:
            continue
        corpus = Corpus(store.open(Artifact.of(manifest["inputs"]["corpus"])))
        answers = EvaluationFiles.load(corpus, store.open(made)).answers
        divided = [halves(answers, number) for number in range(HALVINGS)]
        retriever = store.open(Artifact.of(manifest["inputs"]["retriever"]))
        method = json.loads((retriever / "retriever.json").read_text())["method"]
        for wanted in WANTED:
            chosen = [(found, at_threshold(other, found.threshold)) for one, other in divided
                      if (found := recommended(one, wanted))]
            print(f"{corpus.facts['name']:<18}{method:<15}{len(answers.positives):>9,}"
                  f"{100 * wanted:>10.0f}", end="")
            if len(chosen) < HALVINGS:
                print(f"{'-':>11}{'-':>9}{'-':>8}{'-':>7}{'-':>8}{'-':>15}")
                continue
            right = 100 * np.array([other.right for _, other in chosen])
            off, labels = np.abs(right - 100 * wanted), float(np.mean([other.labels for _, other in chosen]))
            # the mean of |x| for a normal x is .8 of its deviation, which both halves have a part in
            chance = 80 * np.sqrt(2 * wanted * (1 - wanted) / (labels * len(answers.positives) / 2))
            print(f"{np.mean([found.threshold for found, _ in chosen]):>11.2f}{right.mean():>9.1f}{off.mean():>8.2f}"
                  f"{off.max():>7.2f}{chance:>8.2f}{labels:>15.2f}", flush=True)


if __name__ == "__main__":
    run(main, __doc__)
