"""Train PECOS' XR-Linear on titles, and time its answers. Run by the Python of an environment with libpecos, not ours.

    PYTHON pecos_query.py FOLDER    (train.txt, queries.txt: a text a line; labels.npz: its labels, scipy's CSR)

Prints one JSON object: milliseconds of one query (p50), and of each of all of them together, tf-idf included.
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

K, TURNS = 10, 5

folder = sys.argv[1]
texts, queries = (Path(folder, f"{name}.txt").read_text(encoding="utf-8").split("\n") for name in ("train", "queries"))
labels = sp.csr_matrix(sp.load_npz(f"{folder}/labels.npz"), dtype=np.float32)
vectorizer = Vectorizer.train(texts, {"type": "tfidf", "kwargs": {"ngram_range": [1, 2]}})
features = vectorizer.predict(texts)
chain = Indexer.gen(LabelEmbeddingFactory.create(labels, features, method="pifa"), indexer_type="hierarchicalkmeans")
model = XLinearModel.train(features, labels, C=chain)


def seconds(asked):
    """Return how long the answers to texts take."""
    began = time.perf_counter()
    model.predict(vectorizer.predict(asked), only_topk=K, beam_size=10)
    return time.perf_counter() - began


together = min(seconds(queries) for _ in range(TURNS)) / len(queries)
print(json.dumps({"one": 1000 * float(np.median([seconds([query]) for query in queries])), "each": 1000 * together}))
