"""Sparse files that are wrong: named by file and line."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from tests.support.raw_folders import add_anchors, fails


@pytest.mark.parametrize(("text", "message"), [
    ("4 3\n\n\n\n\n", "trn_X_Y.txt:1: the header says 4 rows and 3 columns, but trn_X.txt has 3 lines and Y.txt has 3"),
    ("3 9\n\n\n8:1\n", "trn_X_Y.txt:1: the header says 3 rows and 9 columns, but trn_X.txt has 3 lines and Y.txt"),
    ("3 3\n0:1\n1:1\n", "trn_X_Y.txt:1: the header says 3 rows, which trn_X.txt has too, but 2 follow\n"
     "hint: the file is cut short"),
    ("3 3\n0:1\n1:1\n\n\n", "trn_X_Y.txt:1: the header says 3 rows, which trn_X.txt has too, but 4 follow\n"
     "hint: remove the lines after the last row"),
    ("0:1\n1:1\n2:1\n", "trn_X_Y.txt:1: the header must be two numbers, rows and columns, got '0:1'"),
    ("3 3 3\n", "trn_X_Y.txt:1: the header must be two numbers"),
    ("", "trn_X_Y.txt:1: the header must be two numbers, rows and columns, got ''"),
    ("9" * 5000 + " 3\n", "trn_X_Y.txt:1: the header must be two numbers"),
    ("3 3\n0:1\n\n1:1 3:1\n", "trn_X_Y.txt:4: label id 3 is not in Y.txt, which has 3 lines\nhint: ids are 0-based"),
    ("3 3\n0:1\n-1:1\n\n", "trn_X_Y.txt:3: label id -1 is not in Y.txt, which has 3 lines"),
    (f"3 3\n{2**31}:1\n\n\n", f"trn_X_Y.txt:2: label id {2**31} is not in Y.txt, which has 3 lines"),
    (f"3 3\n{2**70}:1\n\n\n", f"trn_X_Y.txt:2: label id {2**70} is not in Y.txt"),
    ("3 3\n\n\n0:nan\n", "trn_X_Y.txt:4: relevance must be a finite number, got nan"),
    ("3 3\n0:inf\n\n\n", "trn_X_Y.txt:2: relevance must be a finite number, got inf"),
    ("3 3\n0:1 1\n\n\n", "trn_X_Y.txt:2: '1' is not a pair id:value"),
    ("3 3\n0:\n\n\n", "trn_X_Y.txt:2: '0:' is not a pair id:value"),
    ("3 3\n1_0:1\n\n\n", "trn_X_Y.txt:2: '1_0:1' is not a pair id:value"),
    ("3 3\nx:1\n\n\n", "trn_X_Y.txt:2: 'x:1' is not a pair id:value\nhint: a row is written as: 12:1.0 40:1.0"),
])
def test_a_wrong_sparse_file_is_refused(xc_sparse: Path, text: str, message: str):
    (xc_sparse / "trn_X_Y.txt").write_text(text)
    found = fails(xc_sparse, "positives.train")
    assert found.startswith(message), found


@pytest.mark.parametrize("line", ["fox", "fox\t", "\tanimal", "fox\tanimal\tbeing", "fox animal"])
def test_a_wrong_pair_of_concepts_is_refused(xc_json: Path, line: str):
    (xc_json / "broader.tsv").write_text(f"fox\tanimal\n\n{line}\n")
    assert fails(xc_json, "broader").startswith("broader.tsv:3: the line is not two uids with a tab between")


@pytest.mark.parametrize(("text", "lines"), [("fox\n\n", "2 lines"), ("\n\nfox\n\n", "4 lines"), ("", "0 lines")])
def test_groups_of_fewer_or_more_queries_are_refused(xc_json: Path, text: str, lines: str):
    (xc_json / "groups_train.txt").write_text(text)
    assert fails(xc_json, "groups.train").startswith(
        f"groups_train.txt: it has {lines}, and trn.json.gz 3\nhint: write a line for each query")


def test_a_wrong_edge_names_the_anchors(xc_json: Path):
    add_anchors(xc_json)
    (xc_json / "category_lbl_X_Y.txt").write_text("3 2\n\n2:1\n\n")
    assert fails(xc_json, "edges.category.label").startswith(
        "category_lbl_X_Y.txt:3: anchor id 2 is not in category.raw.txt, which has 2 lines")
    (xc_json / "category_trn_X_Y.txt").write_text("1 2\n0:1\n")
    assert "1 rows and 2 columns, but trn.json.gz has 3 lines and category.raw.txt has 2" in fails(
        xc_json, "edges.category.train")


@pytest.mark.parametrize(("text", "message"), [
    ("0 1\n0 3\n", "filter_labels_test.txt:2: label id 3 is not in lbl.json.gz, which has 3 lines"),
    ("0 -1\n", "filter_labels_test.txt:1: label id -1 is not in lbl.json.gz"),
    ("0 1\n\n1 0\n", "filter_labels_test.txt:3: query id 1 is not in tst.json.gz, which has 1 lines"),
    ("0\n", "filter_labels_test.txt:1: '0' is not a pair of numbers, row and label"),
    ("0 1 2\n", "filter_labels_test.txt:1: '0 1 2' is not a pair"), ("a b\n", "filter_labels_test.txt:1: 'a b' is not"),
    ("0 0_1\n", "filter_labels_test.txt:1: '0 0_1' is not a pair"),
])
def test_wrong_filter_pairs_are_refused(xc_json: Path, text: str, message: str):
    (xc_json / "filter_labels_test.txt").write_text(text)
    assert fails(xc_json, "filters.test").startswith(message)


def save_matrix(path: Path, parts: tuple) -> None:
    """Write the parts of a matrix as they are, unchecked."""
    indices, indptr, data, shape, *kind = parts
    np.savez(path, format=np.array("".join(kind or ["csr"]).encode()), shape=np.array(shape), data=np.array(data),
             indptr=np.array(indptr), indices=np.array(indices))


@pytest.mark.parametrize(("parts", "message"), [
    (([0, 7], [0, 1, 1, 2], [1.0, 1.0], (3, 3)), "trn_X_Y.npz:3: label id 7 is not in Y.txt, which has 3 lines"),
    (([0, -2], [0, 1, 2, 2], [1.0, 1.0], (3, 3)), "trn_X_Y.npz:2: label id -2 is not in Y.txt"),
    (([0, 1], [0, 1, 1, 2], [1.0, np.nan], (3, 3)), "trn_X_Y.npz:3: relevance must be a finite number, got nan"),
    (([0, 1], [0, 1, 1, 2], [1e39, 1], (3, 3)), "trn_X_Y.npz:1: relevance must be a finite number, got 1e+39"),
    (([0, 1], [0, 1, 2], [1.0, 1.0], (2, 3)), "the matrix has 2 rows and 3 columns, but trn_X.txt has 3 lines and Y"),
    (([0, 1], [0, 2, 1, 2], [1.0, 1.0], (3, 3)), "its row starts do not fit its entries"),
    (([0, 1], [0, 1, 1, 9], [1.0, 1.0], (3, 3)), "is not a sparse matrix of rows (CSR)"),
    (([0, 1], [0, 1, 1, 2], [1j, 1.0], (3, 3)), "values of type complex128"),
    (([0, 1], [0, 1, 1, 2], [{}, {}], (3, 3)), "allow_pickle=False"),
    (([0, 1], [0, 1, 1, 2], [1.0, 1.0], (3, 3), "csc"), "kind csc"),
    (([0, 1], [0, 1, 1, 2], [1.0, 1.0], (3, 3), "odd"), "Unknown format"),
])
def test_a_wrong_matrix_is_refused(xc_sparse: Path, parts: tuple, message: str):
    (xc_sparse / "trn_X_Y.txt").unlink()
    save_matrix(xc_sparse / "trn_X_Y.npz", parts)
    found = fails(xc_sparse, "positives.train")
    assert found.startswith("trn_X_Y.npz") and message in found, found


@pytest.mark.parametrize("spoil", [lambda data: data[:-40], lambda data: b"", lambda data: b"PK\x03\x04" + bytes(60),
                                   lambda data: data[:100] + bytes(60) + data[160:], lambda data: pickle.dumps([1])])
def test_a_damaged_matrix_is_refused(xc_sparse: Path, spoil):
    (xc_sparse / "trn_X_Y.txt").unlink()
    path = xc_sparse / "trn_X_Y.npz"
    sparse.save_npz(path, sparse.csr_array(np.ones((3, 3))))
    path.write_bytes(spoil(path.read_bytes()))
    assert "trn_X_Y.npz is not a sparse matrix of rows (CSR)" in fails(xc_sparse, "positives.train")
