"""Train linear trees on texts and predict the labels of others; run by the Python of an environment that has them.

    PYTHON linear_trees.py FOLDER    (train.txt, test.txt: one text a line; labels.npz: those of train, a scipy CSR)

Each of Parabel and Bonsai (omikuji), XR-Linear (libpecos) and PLT (napkinxc) is trained with its default settings on
the same tf-idf of words (scikit-learn). Writes NAME.npy: the labels of each text of test, (n, K) int64, best first,
-1 = none.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import omikuji
import scipy.sparse as sp
from napkinxc.models import PLT
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from sklearn.feature_extraction.text import TfidfVectorizer

K = 50    # labels predicted: more than filter pairs will take away
SEED = 0
THREADS = 1


def parabel(features, labels, tests, **settings):
    """Return the predictions of an Omikuji model, three trees of balanced clusters unless `settings` say otherwise."""
    parameters = omikuji.Model.default_hyper_param()
    for name, value in settings.items():
        setattr(parameters, name, value)
    with TemporaryDirectory() as folder:
        file = Path(folder, "train.txt")
        with file.open("w") as out:
            print(*features.shape, labels.shape[1], file=out)
            for own, row in zip(labels, features, strict=True):
                print(",".join(map(str, own.indices)), *(f"{word}:{value:.6g}" for word, value in pairs(row)), file=out)
        model = omikuji.Model.train_on_data(str(file), parameters, n_threads=THREADS)
    return ([label for label, _ in model.predict(pairs(row), top_k=K)] for row in tests)


def pairs(row):
    """Return the columns and values of a sparse row."""
    return list(zip(row.indices.tolist(), row.data.tolist(), strict=True))


def bonsai(features, labels, tests):
    """Return the predictions of Bonsai, as Omikuji's page sets it: shallow trees of unbalanced clusters."""
    return parabel(features, labels, tests, cluster_balanced=False, cluster_k=100, max_depth=3)


def xr_linear(features, labels, tests):
    """Return the predictions of PECOS' XR-Linear."""
    embeddings = LabelEmbeddingFactory.create(labels, features, method="pifa")
    chain = Indexer.gen(embeddings, indexer_type="hierarchicalkmeans", seed=SEED, threads=THREADS)
    model = XLinearModel.train(features, labels, C=chain, threads=THREADS)
    found = model.predict(tests, only_topk=K, beam_size=10, threads=THREADS).tocsr()
    return (row.indices[np.argsort(-row.data, kind="stable")] for row in found)


def plt(features, labels, tests):
    """Return the predictions of napkinXC's probabilistic label tree."""
    with TemporaryDirectory() as folder:
        model = PLT(folder, seed=SEED, threads=THREADS)
        model.fit(features, [row.indices.tolist() for row in labels])
        return model.predict(tests, top_k=K)


def main(folder):
    """Train every tree, and write what it predicts."""
    train, test = (Path(folder, f"{name}.txt").read_text(encoding="utf-8").split("\n") for name in ("train", "test"))
    labels = sp.csr_matrix(sp.load_npz(f"{folder}/labels.npz"), dtype=np.float32)
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+", dtype=np.float32)
    features, tests = vectorizer.fit_transform(train).tocsr(), vectorizer.transform(test).tocsr()
    for tree in (parabel, bonsai, xr_linear, plt):
        ids = np.full((len(test), K), -1, dtype=np.int64)
        for row, found in enumerate(tree(features, labels, tests)):
            ids[row, :len(found)] = found
        np.save(Path(folder, f"{tree.__name__}.npy"), ids)


if __name__ == "__main__":
    main(sys.argv[1])
