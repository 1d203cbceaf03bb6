"""The folder of a retriever: without a pickle, refused where it is cut or of another format."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest

from tests.support.toy import trained
from xcmodels.checks import Unusable
from xcmodels.retrieval.folder import FORMAT, OLDEST
from xcmodels.retrieval.retriever import Retriever

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def toy():
    return trained("ngame")


def write_format(folder, number):
    facts = json.loads((folder / "retriever.json").read_text())
    (folder / "retriever.json").write_text(json.dumps(facts | {"format": number}))


@pytest.mark.parametrize("number", [OLDEST - 1, FORMAT + 1])
def test_another_format_is_refused(toy, tmp_path, number):
    shutil.copytree(toy.retriever, tmp_path / "r")
    write_format(tmp_path / "r", number)
    said = rf"of format {number}, this version reads {OLDEST} to {FORMAT}; train it again, or install"
    with pytest.raises(Unusable, match=said):
        Retriever.load(tmp_path / "r")


def test_a_fusion_from_before_there_were_names_is_read(toy, tmp_path):
    """Format 13, which versions have that were registered before."""
    old = tmp_path / "r"
    shutil.copytree(toy.retriever, old)
    facts = json.loads((old / "fusion.json").read_text())
    assert set(facts.pop("weights").values()) == {1}
    (old / "fusion.json").write_text(json.dumps(facts))
    write_format(old, 13)
    texts = ["t1 t2", "t3"]
    assert Retriever.load(old).predict(texts) == Retriever.load(toy.retriever).predict(texts)


def files(folder):
    return sorted(file for file in folder.rglob("*") if file.is_file())


def test_there_is_no_pickle_in_the_folder(toy):
    held = files(toy.retriever)
    assert {file.suffix for file in held} == {".npy", ".npz", ".json", ".safetensors"}
    for file in held:
        with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError, IndexError, AttributeError,
                            ImportError, UnicodeDecodeError)), file.open("rb") as handle:
            pickle.load(handle)
        if file.suffix in {".npy", ".npz"}:
            made = np.load(file, allow_pickle=False)
            arrays = [made[name] for name in made.files] if file.suffix == ".npz" else [made]
            assert all(array.dtype != object for array in arrays)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.95])
def test_a_truncated_file_is_an_error(toy, tmp_path, keep):
    """Whichever file it is, and never an answer made of half of it."""
    quiet = []
    for number, file in enumerate(each for each in files(toy.retriever) if each.name != "limits.json"):
        folder = tmp_path / str(number)
        shutil.copytree(toy.retriever, folder)
        broken = folder / file.relative_to(toy.retriever)
        size = file.stat().st_size
        os.truncate(broken, min(int(size * keep), size - 2))
        try:
            Retriever.load(folder).predict(["l1w0"])
        except Exception:
            continue
        quiet.append(str(file.relative_to(toy.retriever)))
    assert quiet == []


def test_truncated_limits_are_an_error(toy, tmp_path):
    shutil.copytree(toy.retriever, tmp_path / "r")
    os.truncate(tmp_path / "r" / "tokenizer" / "limits.json", len("12 1"))
    with pytest.raises(ValueError):
        Retriever.load(tmp_path / "r")


def test_a_missing_file_is_an_error(toy, tmp_path):
    for number, file in enumerate(files(toy.retriever)):
        folder = tmp_path / str(number)
        shutil.copytree(toy.retriever, folder)
        (folder / file.relative_to(toy.retriever)).unlink()
        with pytest.raises(Exception):  # noqa: B017 - which one depends on the file
            Retriever.load(folder).predict(["l1w0"])
