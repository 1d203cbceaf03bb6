"""`xc export`: vectors and predictions as files, the same as Python's, whole or not there."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.cli import export, predict
from flows.cli.commands.predict import open_retriever
from tasks.export.label_vectors import write_labels
from tests.support import tiny

TEXTS = ["a wolf that lives in the mountains", "", "an oak of the forest"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny.with_champion(tmp_path_factory.mktemp("models") / "home")


@pytest.fixture
def retriever(models):
    return open_retriever("", models.store.home, "")


@pytest.fixture
def run(cli, models, tmp_path, monkeypatch):
    """Run `xc export` on TEXTS, two at a time."""
    for module in (predict, export):
        monkeypatch.setattr(module, "CHUNK", 2)
    (tmp_path / "texts.jsonl").write_text("".join(
        json.dumps({"uid": f"t{row}", "title": text}) + "\n" for row, text in enumerate(TEXTS)))
    return lambda *words: cli("export", *words, "--home", str(models.store.home))


@pytest.mark.usefixtures("ascii_locale")
def test_names_of_labels_are_utf8_whatever_the_locale(retriever, tmp_path, monkeypatch):
    monkeypatch.setattr(retriever, "titles", ["日本語"] * len(retriever.titles))
    write_labels(retriever, tmp_path)
    assert "日本語" in (tmp_path / "labels.jsonl").read_text(encoding="utf-8")


def test_vectors_of_texts_in_both_kinds_of_file(run, retriever, tmp_path):
    wanted = retriever.embed(TEXTS)
    for name in ("v.npy", "v.parquet"):
        code, out, err = run("embeddings", "--input", "texts.jsonl", "--out", name)
        assert (code, out) == (0, "") and f"3 rows in {name}" in err
    found = np.load(tmp_path / "v.npy")
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    table = pq.read_table(tmp_path / "v.parquet")
    assert table["uid"].to_pylist() == ["t0", "t1", "t2"]
    np.testing.assert_array_equal(np.array(table["vector"].to_pylist(), np.float32), found)


def test_a_row_without_a_uid_does_not_get_that_of_another(run, tmp_path):
    (tmp_path / "t.csv").write_text("id,text\n,an oak\n0,a wolf\n")
    code, _, err = run("predictions", "--input", "t.csv", "--uid", "id", "--out", "p.parquet")
    assert code == 3 and "t.csv:2: the row has no uid" in err and "or leave out --uid" in err
    assert run("predictions", "--input", "t.csv", "--out", "p.parquet")[0] == 0


@pytest.mark.parametrize(("uids", "warned"), [(("7", None, "1", None), True), ((None, None), False), (("1",), False)])
def test_rows_without_a_uid_beside_rows_with_one_are_counted(tmp_path, capsys, uids, warned):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"uid": uid, "text": "an oak"}) + "\n" for uid in uids))
    found = [query.uid for query in predict.queries(str(tmp_path / "t.jsonl"), {}, [])]
    assert found == [uid or str(row) for row, uid in enumerate(uids)]
    said = "warning: 2 rows without a uid got the row number in its place, which may be the uid of another; the " \
           f"first is {tmp_path}/t.jsonl:2\n"
    assert capsys.readouterr().err == (said if warned else "")


def test_vectors_of_labels_that_are_there(run, retriever, tmp_path, monkeypatch):
    assert run("embeddings", "--out", "labels.parquet")[0] == 0
    table = pq.read_table(tmp_path / "labels.parquet")
    assert table.column_names == ["id", "uid", "text", "labels"] and table["text"].to_pylist() == tiny.LABELS
    vectors = retriever.indexes["labels"].vectors
    np.testing.assert_array_equal(np.array(table["labels"].to_pylist(), np.float32), vectors)
    retriever.removed = np.array([0, 7])
    assert export.export_labels(retriever, tmp_path / "fewer.parquet") == len(tiny.LABELS) - 2
    assert not {0, 7} & set(pq.read_table(tmp_path / "fewer.parquet")["id"].to_pylist())
    retriever.removed = np.arange(len(tiny.LABELS))
    assert export.export_labels(retriever, tmp_path / "none.parquet") == 0
    assert pq.read_schema(tmp_path / "none.parquet").equals(table.schema)
    code, _, err = run("embeddings", "--out", "labels.npy")
    assert code == 2 and "hint: --out labels.parquet" in err and not (tmp_path / "labels.npy").exists()


def test_predictions_are_those_of_python(run, retriever, tmp_path):
    assert run("predictions", "--input", "texts.jsonl", "--k", "3", "--out", "p.parquet")[0] == 0
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    wanted = [(f"t{place}", rank, label.id, label.uid, label.text) for place, labels in enumerate(
        retriever.predict(TEXTS, 3)) for rank, label in enumerate(labels, 1)]
    assert len(wanted) == 6
    wanted.insert(3, ("t1", None, None, None, None))    # the blank text is not missing
    assert [tuple(row.values())[:5] for row in rows] == wanted


def test_of_no_text_there_is_a_file_without_rows(run, tmp_path):
    (tmp_path / "none").write_text("")
    for what, name in (("embeddings", "v.npy"), ("embeddings", "v.parquet"), ("predictions", "p.parquet")):
        assert run(what, "--input", "none", "--out", name)[0] == 0
    assert len(np.load(tmp_path / "v.npy")) == 0
    assert pq.read_table(tmp_path / "p.parquet").schema == export.FOUND


@pytest.mark.parametrize(("words", "said"), [
    (("embeddings", "--out", "v.csv"), "--out must be named *.npy or *.parquet, got v.csv"),
    (("predictions", "--out", "p.npy"), "--out must be named *.parquet"),
    (("embeddings", "--out", "nowhere/v.npy"), "there is no folder nowhere"),
    (("predictions", "--input", "texts.jsonl", "--out", "spark.parquet"), "spark.parquet is a folder\nhint: name"),
    (("predictions", "--out", "p.parquet"), "no texts are given"),
    (("embeddings", "--text", "title", "--out", "v.parquet"), "--text names a column of a file"),
    (("predictions", "--input", "texts.jsonl", "--k", "0", "--out", "p.parquet"), "--k must be at least 1")])
def test_what_cannot_be_written_is_refused_before_anything_is_read(run, tmp_path, words, said):
    (tmp_path / "spark.parquet").mkdir()    # as Spark and Dask write their parts
    code, _, err = run(*words)
    assert code == 2 and said in err


def test_a_file_that_cannot_be_made_is_told_by_its_name(run):
    name = f"{'v' * 300}.parquet"
    code, _, err = run("embeddings", "--out", name)
    assert code == 2 and f"cannot write {name}: File name too long\nhint: name another file: --out" in err


def test_a_bad_line_leaves_the_file_of_before(run, tmp_path):
    (tmp_path / "v.npy").write_bytes(b"before")
    with (tmp_path / "texts.jsonl").open("a") as file:
        file.write('{"title": \n')
    assert run("embeddings", "--input", "texts.jsonl", "--out", "v.npy")[0] == 3
    assert (tmp_path / "v.npy").read_bytes() == b"before" and not list(tmp_path.glob(".v.npy*"))
