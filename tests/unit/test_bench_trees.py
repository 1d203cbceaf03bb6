"""The benchmark of linear trees judges what they predict as `xc evaluate` does; a stub stands for the trees."""

import gzip
import json
import sys

import pytest

from benchmarks import bench_trees
from data_contracts.errors import ProjectError

STUB = """#!{python}
import sys
from pathlib import Path
import numpy as np, scipy.sparse as sp
folder = Path(sys.argv[2])
assert (folder / "test.txt").read_text().split("\\n") == ["t0 more", "t1", "t2"]
assert len((folder / "train.txt").read_text().split("\\n")) == sp.load_npz(folder / "labels.npz").shape[0] == 4
np.save(folder / "stub.npy", np.array([[1, 0, 2, 3, 4, -1], [1, 0, 2, 3, 4, -1], [4, 3, 2, 1, 0, -1]]))
"""


def write_rows(path, rows):
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder / "lbl.json.gz", ({"title": f"l{label}"} for label in range(6)))
    write_rows(folder / "trn.json.gz", ({"title": f"t{row}", "content": "", "target_ind": [row, 5]}
                                        for row in range(4)))
    write_rows(folder / "tst.json.gz", ({"title": f"t{row}", "content": "more\n" if row == 0 else "",
                                         "target_ind": labels} for row, labels in enumerate(([0, 1], [1], [4]))))
    (folder / "filter_labels_test.txt").write_text("0 1\n")
    (folder / "dataset.json").write_text(json.dumps({"propensity": {"a": 0.55, "b": 1.5}}))
    return folder


def python(tmp_path, text):
    path = tmp_path / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_filter_pair_is_neither_an_answer_nor_missing(data, tmp_path):
    """The first text's best label is a filter pair, so its second counts as the first."""
    (measured,) = bench_trees.trees(python(tmp_path, STUB.format(python=sys.executable)), data).values()
    assert [measured[key] for key in ("P/1", "P/5", "PSP/1")] == pytest.approx([100, 20, 100])


def test_a_tree_that_fails_is_an_error_with_a_remedy(data, tmp_path):
    with pytest.raises(ProjectError, match="no tree here") as found:
        bench_trees.trees(python(tmp_path, "#!/bin/sh\necho no tree here >&2; exit 3\n"), data)
    assert "omikuji" in found.value.hint
