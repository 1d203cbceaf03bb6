"""What do linear trees reach on the same data: Parabel, Bonsai, PECOS' XR-Linear and napkinXC's PLT?

    python -m benchmarks.bench_trees PYTHON DATA...    (PYTHON has omikuji, libpecos, napkinxc and scikit-learn)

DATA are raw folders, as `benchmarks.datasets` and `xc data` write them. Trees read titles and contents. What they
predict is judged as `xc evaluate` judges: a filter pair is neither an answer nor missing.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.arguments import JsonLines, Program, run
from benchmarks.held_out import Row, read_rows
from data_contracts.errors import ProjectError
from tasks.data.sources import describe
from xcmodels import metrics
from xcmodels.data.propensity import propensity
from xcmodels.predictions import drop_filtered

DEPTH = 5


def main(python: Program, data: JsonLines, *others: JsonLines) -> None:
    """Print a row for each data set and tree."""
    for folder in (data, *others):
        for name, measured in trees(python, folder).items():
            print(f"{folder.name:18}{name:18}" + "".join(f"{measured[key]:8.2f}" for key in metrics.SHOWN[:4]),
                  flush=True)


def trees(python: str, data: Path) -> dict[str, dict[str, float]]:
    """Return what each tree reaches on the test texts of a raw folder, by its name."""
    train, test = (list(read_rows(data / f"{split}.json.gz")) for split in ("trn", "tst"))
    n_labels = sum(1 for _ in read_rows(data / "lbl.json.gz"))
    positives = matrix([row["target_ind"] for row in train], n_labels)
    truth, filters = matrix([row["target_ind"] for row in test], n_labels), read_filters(data, len(test), n_labels)
    inverse = 1 / propensity(positives.sum(axis=0), len(train), *describe(data).propensity)
    measured = {}
    with tempfile.TemporaryDirectory(prefix="xc-bench-") as name:
        folder = Path(name)
        for split, split_rows in (("train", train), ("test", test)):
            (folder / f"{split}.txt").write_text("\n".join(map(text, split_rows)), encoding="utf-8")
        sp.save_npz(folder / "labels.npz", sp.csr_matrix(positives))
        train_trees(python, folder)
        for file in sorted(folder.glob("*.npy")):
            ids = np.load(file)
            ids, _ = drop_filtered(ids, np.zeros(ids.shape, np.float32), filters, DEPTH)
            measured[file.stem] = metrics.evaluate(ids, truth, filters, inverse, ks=(1, DEPTH), recall_ks=())
    return measured


def train_trees(python: str, folder: Path) -> None:
    """Run linear_trees.py, whose progress bars are shown to nobody."""
    ended = subprocess.run([python, str(Path(__file__).with_name("linear_trees.py")), str(folder)], capture_output=True,
                           text=True, check=False)
    if ended.returncode:
        raise ProjectError(f"linear_trees.py failed: {ended.stderr[-2000:]}", hint="PYTHON needs omikuji, libpecos, "
                           "napkinxc and scikit-learn")


def text(row: Row) -> str:
    """Return the text of a row in a line."""
    return " ".join(f"{row['title']} {row['content']}".split())


def matrix(labels: Sequence[Sequence[int]], n_labels: int) -> sp.csr_array:
    """Return the labels of each text, (n, n_labels) of ones."""
    offsets = np.append(0, np.cumsum([len(own) for own in labels]))
    ids = np.array([label for own in labels for label in own], dtype=np.int64)
    return sp.csr_array((np.ones(len(ids), np.float32), ids, offsets), shape=(len(labels), n_labels))


def read_filters(data: Path, n: int, n_labels: int) -> sp.csr_array:
    """Return the filter pairs of the test texts, (n, n_labels)."""
    file = data / "filter_labels_test.txt"
    pairs = [tuple(map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []
    row, label = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return sp.csr_array((np.ones(len(row), np.float32), (row, label)), shape=(n, n_labels))


if __name__ == "__main__":
    run(main, __doc__)
