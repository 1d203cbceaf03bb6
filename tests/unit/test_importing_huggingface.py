"""Import of folders that `save_to_disk` of Hugging Face's datasets writes."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.importing import import_file
from tests.unit.test_importing import points
from tests.unit.test_importing_annif import targets

CLASS = {"names": ["cat", "dog", "a;b"], "_type": "ClassLabel"}
ROWS = [{"text": "one", "labels": [0, 1]}, {"text": "two", "labels": [2]}, {"text": "three", "labels": []}]


def save(folder: Path, rows: list[dict], files: int = 1, **features: object) -> Path:
    """Write rows as datasets 5.2 does: batches in Arrow's stream format, and two JSON files."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    for number, name in enumerate(names):
        table = pa.Table.from_pylist(rows[number::files], pa.Table.from_pylist(rows).schema)
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    (folder / "dataset_info.json").write_text(json.dumps(
        {"description": "", "features": {"text": {"dtype": "string", "_type": "Value"}, **features}}))
    (folder / "state.json").write_text(json.dumps(
        {"_data_files": [{"filename": name} for name in names], "_fingerprint": "f697456c199b453e", "_split": None}))
    return folder


@pytest.mark.parametrize("feature", [{"feature": CLASS, "_type": "List"}, [CLASS],
                                     {"feature": CLASS, "length": -1, "_type": "Sequence"}])
@pytest.mark.parametrize("files", [1, 2])
def test_lists_of_classes(tmp_path: Path, feature: object, files: int):
    summary = import_file(save(tmp_path / "d", ROWS, files, labels=feature), tmp_path / "out", test_fraction=0)
    assert targets(tmp_path / "out") == {"one": ["cat", "dog"], "two": ["a;b"]}
    assert summary["rows_without_labels"] == 1 and "separator" not in summary
    if files == 1:
        assert [row["uid"] for row in points(tmp_path / "out", "trn")] == ["1", "2"]


def test_one_class_and_splits_that_are_kept(tmp_path: Path):
    for name, texts in (("train", ["a", "b", "c"]), ("test", ["d", "e"]), ("validation", ["f"])):
        rows = [{"text": text, "label": number % 2 - (text == "c")} for number, text in enumerate(texts)]
        save(tmp_path / "d" / name, [{**row, "label": -1 if row["text"] == "c" else row["label"]} for row in rows],
             label=CLASS)
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "test", "validation"]}')
    summary = import_file(tmp_path / "d", tmp_path / "out")
    assert targets(tmp_path / "out") == {"a": ["cat"], "b": ["dog"], "f": ["cat"]}
    assert targets(tmp_path / "out", "tst") == {"d": ["cat"], "e": ["dog"]}
    assert (summary["train"], summary["test"], summary["rows_without_labels"]) == (3, 2, 1)
    import_file(tmp_path / "d" / "train", tmp_path / "one", test_fraction=0)
    assert targets(tmp_path / "one") == {"a": ["cat"], "b": ["dog"]}


def test_splits_without_a_test_are_drawn(tmp_path: Path):
    rows = [{"text": f"text {number}", "labels": ["x"]} for number in range(50)]
    save(tmp_path / "d" / "train", rows[:40])
    save(tmp_path / "d" / "validation", rows[40:])
    (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    summary = import_file(tmp_path / "d", tmp_path / "out")
    assert summary["train"] + summary["test"] == 50 and 3 < summary["test"] < 20


def test_columns_can_be_named(tmp_path: Path):
    rows = [{"id": 7, "title": "T", "body": "B", "tags": "x; y", "part": "train", "n": 2.5},
            {"id": 8, "title": "U", "body": "B", "tags": "y", "part": "test", "n": 1.0}]
    import_file(save(tmp_path / "d", rows), tmp_path / "out", text="title", content="body", labels="tags", uid="id",
                split="part", weight="n")
    assert points(tmp_path / "out", "trn") == [
        {"uid": "7", "title": "T", "content": "B", "target_ind": [0, 1], "target_rel": [2.5, 2.5]}]
    with pytest.raises(UsageError, match=r"d has no column 'text'; it has 'id', .*\nhint: .*--text COLUMN"):
        import_file(tmp_path / "d", tmp_path / "out")


@pytest.mark.parametrize(("file", "content", "message"), [
    ("data-00000-of-00001.arrow", b"ARROW1", "data-00000-of-00001.arrow: it is not an Arrow file that can be read"),
    ("data-00000-of-00001.arrow", None, "data-00000-of-00001.arrow: it is not an Arrow file that can be read"),
    ("state.json", b"{}", "state.json: it names no files of the data set"),
    ("state.json", b"{", "state.json: it cannot be read: "),
    ("dataset_info.json", None, "dataset_info.json: it cannot be read: "),
    ("dataset_info.json", json.dumps({"features": {"labels": [{"names": ["cat"], "_type": "ClassLabel"}]}}).encode(),
     "d:1: class 1 has no name, there are 1")])
def test_damaged_folders_are_refused(tmp_path: Path, file: str, content: bytes | None, message: str):
    save(tmp_path / "d", ROWS, labels=[CLASS])
    (tmp_path / "d" / file).unlink()
    if content is not None:
        (tmp_path / "d" / file).write_bytes(content)
    with pytest.raises(ContractError) as caught:
        import_file(tmp_path / "d", tmp_path / "out", test_fraction=0)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
