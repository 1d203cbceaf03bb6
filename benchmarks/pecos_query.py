"""Train PECOS' XR-Linear on titles and time its predictions; run by the Python of an environment with libpecos.

    PYTHON pecos_query.py FOLDER    (train.txt, queries.txt: one text a line; labels.npz: their labels, a scipy CSR)

Prints one JSON object, in milliseconds with tf-idf included: `single`, the median of one query alone, and `batch`,
the time per query when all are answered at once; `batch CPU`, the processor time of that.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from pecos.utils.featurization.text.vectorizers import Vectorizer
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel

K, REPEATS = 10, 5

folder = sys.argv[1]
texts, queries = (Path(folder, f"{name}.txt").read_text(encoding="utf-8").split("\n") for name in ("train", "queries"))
labels = sp.csr_matrix(sp.load_npz(f"{folder}/labels.npz"), dtype=np.float32)
vectorizer = Vectorizer.train(texts, {"type": "tfidf", "kwargs": {"ngram_range": [1, 2]}})
features = vectorizer.predict(texts)
chain = Indexer.gen(LabelEmbeddingFactory.create(labels, features, method="pifa"), indexer_type="hierarchicalkmeans")
model = XLinearModel.train(features, labels, C=chain)


def seconds(texts):
    """Return the seconds that predictions for texts take."""
    start = time.perf_counter()
    model.predict(vectorizer.predict(texts), only_topk=K, beam_size=10)
    return time.perf_counter() - start


def best(clock):
    """Return the milliseconds by a clock that each of all queries takes, in the best of REPEATS rounds."""
    rounds = []
    for _ in range(REPEATS):
        start = clock()
        seconds(queries)
        rounds.append(clock() - start)
    return 1000 * min(rounds) / len(queries)


print(json.dumps({"single": 1000 * float(np.median([seconds([query]) for query in queries])),
                  "batch": best(time.perf_counter), "batch CPU": best(time.process_time)}))
