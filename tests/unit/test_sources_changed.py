"""Files that are replaced or written to between their digest and the end of their reading: refused."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from data_contracts.errors import ContractError, ProjectError
from tasks.core.dask_workers import Workers
from tasks.core.files import file_digest
from tasks.core.step import StepContext, run, unwatched
from tasks.core.store import Store
from tasks.data import prepare
from tasks.data.sources import RawDataSet, describe, hashed, read_tables, splits, units
from tasks.plan import pipeline
from tests.support.planted import QUICK, write_planted
from tests.support.raw_folders import LABELS, TRAIN, add_anchors, read_table, rows, write_json


def other_bytes(path: Path) -> None:
    """Replace a file by one of the same rows and other bytes, which a reader of rows cannot see."""
    if path.suffix == ".gz":
        data = gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1, mtime=1)
    elif path.suffix == ".npz":
        np.savez(path.with_name("new.npz"), **np.load(path))
        data = path.with_name("new.npz").read_bytes()
    else:
        data = path.read_bytes().rstrip(b"\n") + b"\r\n"
    assert data != path.read_bytes()
    path.write_bytes(data)


def whole(folder: Path) -> RawDataSet:
    """Add every optional file to a data set, and return it with its digests."""
    add_anchors(folder)
    for split in ("train", "test"):
        (folder / f"filter_labels_{split}.txt").write_text("0 1\n")
    if (folder / "trn_X_Y.txt").exists():
        (folder / "trn_X_Y.txt").unlink()
        sparse.save_npz(folder / "trn_X_Y.npz", sparse.csr_matrix(np.eye(3)))
    return hashed(describe(folder), file_digest)


@pytest.mark.parametrize("form", ["xc_json", "xc_sparse"])
def test_any_file_that_was_replaced_is_refused(form: str, request: pytest.FixtureRequest, tmp_path: Path):
    """Also by a reader of some of its blocks, and by one that only counts its lines."""
    data = whole(request.getfixturevalue(form))
    counted = {"labels": "queries.train" if form == "xc_json" else "positives.train", "anchors.category":
               "edges.category.train", "queries.test": "edges.category.test"}
    for table, path in data.files.items():
        before = path.read_bytes()
        for unit in {table, counted.get(table, table)}:
            assert read_tables(data, unit, tmp_path / "out")
        other_bytes(path)
        refused = f"{path} has changed since the run began: .* was {data.sha256[table][:12]}\nhint: run the same"
        of = 2 if splits(data, table) else 1
        for number in range(of):
            with pytest.raises(ProjectError, match=refused):
                read_tables(data, table, tmp_path / "out", (number, of), rows_per_shard=1)
        with pytest.raises(ProjectError, match=refused):
            read_tables(data, counted.get(table, table), tmp_path / "out")
        path.write_bytes(before)
        assert read_tables(data, table, tmp_path / "out")


def test_a_file_that_is_written_to_while_it_is_read_is_refused(xc_json: Path):
    data = hashed(describe(xc_json), file_digest)
    parts = read_table(data, "labels", rows_per_shard=1)
    next(parts)
    with open(xc_json / "lbl.json.gz", "ab") as file:
        file.write(gzip.compress(b'{"uid": "w", "title": "fish", "content": ""}\n'))
    with pytest.raises(ProjectError, match=r"lbl.json.gz has changed"):
        list(parts)


def test_a_file_that_is_replaced_while_it_is_read_is_the_old_one_to_the_end(xc_json: Path):
    data = hashed(describe(xc_json), file_digest)
    expected = rows(data, "labels")
    parts = read_table(data, "labels", rows_per_shard=1)
    found = [next(parts)]
    write_json(xc_json, "new.json.gz", LABELS[:1])
    os.replace(xc_json / "new.json.gz", xc_json / "lbl.json.gz")
    found += parts
    assert [row[2] for row in expected] == [part["title"][0].as_py() for part in found]


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(path.read_bytes()[:-9]),
    lambda path: write_json(path.parent, path.name, [*TRAIN, {**TRAIN[0], "target_ind": [99], "target_rel": [1.0]}])])
def test_a_file_that_is_broken_since_is_said_to_have_changed(xc_json: Path, spoil):
    """Of a fetch that is under way, "damaged" and "no such label" would send its user to the wrong place."""
    data = hashed(describe(xc_json), file_digest)
    spoil(xc_json / "trn.json.gz")
    with pytest.raises(ContractError, match=r"damaged|label id 99"):
        list(read_table(describe(xc_json), "queries.train"))
    with pytest.raises(ProjectError, match=r"trn.json.gz has changed") as caught:
        list(read_table(data, "queries.train"))
    assert caught.value.exit_code == 1


def test_a_description_that_changes_while_files_are_hashed_is_refused(xc_sparse: Path):
    """dataset.json is read once more, as what it says was taken before its digest was."""
    (xc_sparse / "Y.txt").unlink()
    about = xc_sparse / "dataset.json"
    about.write_text('{"labels": 3}')
    data = describe(xc_sparse)

    def digest(path: Path) -> str:
        about.write_text('{"labels": 4}')
        return file_digest(path)

    with pytest.raises(ProjectError, match="has changed while its files were hashed"):
        hashed(data, digest)
    assert hashed(describe(xc_sparse), file_digest).sha256["labels"] == file_digest(about)


def test_data_that_is_replaced_before_it_is_read_is_not_published(tmp_path: Path):
    """The step's key has the digests of the files as they were when the run was laid out."""
    folder = write_planted(tmp_path / "planted", train=40, test=10, labels=8)
    store = Store(tmp_path / "home")
    with Workers(count=2) as workers:
        laid_out = pipeline(folder, "ngame", "cpu-learned", QUICK)
        text = gzip.decompress((folder / "trn.json.gz").read_bytes()).replace(b'"title": "', b'"title": "another ', 1)
        (folder / "trn.json.gz").write_bytes(gzip.compress(text))
        with pytest.raises(ProjectError, match=r"trn.json.gz has changed since the run began"):
            run(laid_out.prepare[0], {}, store, workers)
        assert not list((tmp_path / "home" / "objects").iterdir()) and not list(store.steps())
        again = pipeline(folder, "ngame", "cpu-learned", QUICK)
        assert again.data_digest != laid_out.data_digest
        assert not run(again.prepare[0], {}, store, workers).reused


def test_units_and_files_go_by_the_same_names(xc_json: Path):
    """A digest is found by the unit that is read; one that is not found would be no check at all."""
    data = whole(xc_json)
    assert set(data.sha256) == set(data.files) <= set(units(data))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of the user's that settings name; what is in it is not looked at here."""
    (tmp_path / "models" / "more").mkdir(parents=True)
    (tmp_path / "models" / "tokenizer.json").write_text("{}")
    return tmp_path / "models"


def test_a_folder_that_a_setting_names_is_in_the_keys_of_the_steps_that_read_it(xc_json: Path, models: Path):
    """A model that is trained anew and saved in the same place is another one."""
    def keys(preset: str, **settings: str) -> dict[str, dict]:
        return {step.name: step.about() for step in pipeline(xc_json, "ngame", preset, settings).steps}

    for preset, setting, readers in (("cpu-learned", "prepare.tokenizer", {"tokenise"}),
                                     ("cpu-learned", "encoder.source", {"encoder round 0"}),
                                     ("cpu-minilm", "encoder.source", {"frozen layers", "encoder round 0"})):
        first = keys(preset, **{setting: str(models)})
        assert first == keys(preset, **{setting: str(models)})
        (models / "tokenizer.json").write_text(preset + setting)
        second = keys(preset, **{setting: str(models)})
        assert readers <= {name for name in first if first[name] != second[name]} <= {
            name for name in first if name in readers or " round " in name}


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_folder_that_changes_before_or_while_it_is_read_is_refused(xc_json: Path, models: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch, when: str):
    made, scratch = [], tmp_path / "scratch"

    def tokenise(config, anchors, context: StepContext) -> None:
        made.append(config)
        (models / "tokenizer.json").write_text("{ }")

    monkeypatch.setattr(prepare, "tokenise", tokenise)
    settings = {"prepare.tokenizer": str(models)}
    (step,) = [each for each in pipeline(xc_json, "ngame", "cpu-learned", settings).prepare if each.kind == "tokens"]
    if when == "before":
        (models / "config.json").write_text("{}")
    scratch.mkdir()
    with pytest.raises(ProjectError, match=f"{models} has changed since the run began\nhint: run the same command"):
        step.action(StepContext(tmp_path, {}, scratch, tmp_path, Workers(), print, unwatched))
    assert len(made) == (when == "while") and not scratch.exists()
