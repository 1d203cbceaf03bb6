"""`xc export encoder`: unchanged clients compute from the folder what xcflow does; all of it is there or nothing."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tasks.export import export
from tasks.export.export import write_files
from tasks.export.label_vectors import named_vectors, write_labels
from tasks.registry.resolve import load
from tasks.registry.tags import METRICS
from tests.conftest import ROOT
from tests.support import tiny
from tests.support.docs_pages import python_of
from tests.support.encoding import trained
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, QUERY, HeadConfig, Layout, build_encoder
from xcmodels.retrieval.retriever import Retriever

LONG = "a wolf by the river " * 20
TEXTS = ["a wolf that lives in the mountains", "", "an OAK of the forest", "Ünïcode, u\u0308nd 日本語", LONG,
         "\u00a0fox\t\x85dog ", " " * 1100 + "seal", "moss \ufffd\u200b" * 3, "x" * 3000]
SPLIT = Layout({"query": HeadConfig("residual"), "own": HeadConfig("linear", 8),
                "over": HeadConfig("residual", over="query")},
               {"query": ("query", "over", "own"), "label": ("query",)})
ENCODERS = {    # settings, layout; the first three are what the presets train
    "bag": (EncoderConfig(source="random", dim=16, idf_power=0.5, places=4), None),
    "transformer": (EncoderConfig(kind="transformer", tied=True, bf16=False), None),
    "both": (EncoderConfig(kind="both", places=4, max_tokens=3, bf16=False), None),
    "sides": (EncoderConfig(kind="transformer", max_tokens=3, bf16=False), None),
    "tanh": (EncoderConfig(kind="transformer", bf16=False, tied=True),
             Layout({"query": HeadConfig("tanh", 12)}, {"query": ("query",), "label": ("query",)})),
    "split": (EncoderConfig(source="random", dim=16, tied=True, sums=1, places=0), SPLIT)}
PLAIN = {"transformer", "sides", "tanh"}    # without code of their own
pytestmark = pytest.mark.timeout(1200)    # the first waits for all exports: a minute of work
AGREES = 1e-5    # as the page says
IN_ONNX = ("bag", "transformer", "both")
# Programs of somebody who has never heard of xcflow, and is offline; one process imports for all of them.
CLIENT = """
import contextlib, io, json, os, socket, sys
import numpy as np
def refuse(*_):
    raise OSError("offline")
socket.socket.connect = refuse
from sentence_transformers import SentenceTransformer
texts, pairs = json.load(open("texts.json"))
for name, trust in json.loads(sys.argv[1]).items():
    model = SentenceTransformer(f"moved/{name}", device="cpu", **({"trust_remote_code": True} if trust else {}))
    found = {"query": model.encode_query(texts), "label": model.encode_document(texts), "plain": model.encode(texts),
             "one": np.stack([model.encode(text) for text in texts])}
    np.savez(f"{name}.npz", **found, **({"pairs": model.encode_query(pairs)} if trust else {}))
place, said = os.getcwd(), {}
for name, (folder, code) in json.load(open("programs.json")).items():
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    said[name] = out.getvalue()
with open(os.path.join(place, "said.json"), "w") as file:
    json.dump(said, file)
assert not {"xcflow", "xcmodels", "tasks"} & set(sys.modules)
"""
CARDS = ("bag", "transformer", "bag.onnx")    # whose programs are run


def make(name, bert, size):
    """Return an encoder of `size` tokens; the folder `bert` holds its transformer meanwhile."""
    from transformers import BertConfig, BertModel

    config, layout = ENCODERS[name]
    if config.kind != "bag":
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                             intermediate_size=24, max_position_embeddings=40, bos_token_id=2, eos_token_id=3,
                             initializer_range=0.5)).save_pretrained(bert)
        config = replace(config, source=str(bert))
    return trained(build_encoder(config, np.linspace(0.5, 3, 2 * size, dtype=np.float32), 0, layout))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of retrievers of every kind, their exports, moved, a client's vectors, and what its programs said."""
    folder = tmp_path_factory.mktemp("exports")
    version = SimpleNamespace(name="xc", version="3", tags={METRICS: '{"P/1": 45.678}'},
                              description="# tiny\n\n## Data")
    (folder / "moved").mkdir()
    for name in ENCODERS:
        (folder / name).mkdir()
        tiny.tiny_retriever(folder / name, make=partial(make, name, folder / "bert"))
        for to in ("hub-folder", *(["onnx"] if name in IN_ONNX else [])):
            (out := folder / f"{name}.{to}").mkdir()
            names, plain = write_files(folder / name / "retriever", version, out, to)
            assert (names, plain) == (["encoder", "classifier"], to == "onnx" or name in PLAIN)
            out.rename(folder / "moved" / (name if to == "hub-folder" else f"{name}.onnx"))
    shutil.rmtree(folder / "bert")
    (folder / "wordnet-encoder").symlink_to(folder / "moved" / "bag")
    programs = {"page": (str(folder), python_of(ROOT / "docs" / "export.md"))}
    for name in CARDS:
        card = (folder / "moved" / name / "README.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        programs[name] = str(folder / "moved" / name), code
    (folder / "programs.json").write_text(json.dumps(programs))
    (folder / "texts.json").write_text(json.dumps([TEXTS, list(zip(TEXTS, TEXTS[::-1], strict=True))]))
    run_client(folder)
    return folder


def run_client(folder):
    """Run CLIENT in `folder`, without the network and with caches of its own."""
    environment = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "HF_HUB_OFFLINE": "1",
                   "HF_HOME": str(folder / "hf"), "PYTHONPATH": os.pathsep.join(
                       path for path in sys.path if path and not Path(path).is_relative_to(ROOT))}
    asked = json.dumps({name: name not in PLAIN for name in ENCODERS})
    done = subprocess.run([sys.executable, "-c", CLIENT, asked], cwd=folder, env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def wanted(place, name, view, texts=TEXTS, contents=None):
    """Return the vectors of texts in a view by xcflow itself, and its retriever."""
    retriever = Retriever.load(place / name / "retriever")
    with torch.inference_mode():
        return retriever.encoder(retriever.tokenizer(texts, contents), view).numpy(), retriever


def best(queries, vectors, span):
    return np.argsort(-queries[:, slice(*span)] @ vectors.T, axis=1, kind="stable")[:, :10]


def fed(folder, texts, contents=None):
    """Return the inputs of a graph: the ids of texts, padded, as its tokenizers make them."""
    fields = [[Tokenizer.from_file(str(folder / name)).encode(text, add_special_tokens=False).ids for text in field]
              for name, field in (("tokenizer.json", texts), ("tokenizer_content.json", contents or [""] * len(texts)))]
    rows = [(title + content, len(title)) for title, content in zip(*fields, strict=True)]
    tokens = np.zeros((3, len(rows), max(len(ids) for ids, _ in rows)), np.int64)
    for row, (ids, titles) in enumerate(rows):
        tokens[0, row, :len(ids)], tokens[1, row, :len(ids)], tokens[2, row, titles:len(ids)] = ids, 1, 1
    return dict(zip(("input_ids", "attention_mask", "token_type_ids"), tokens, strict=True))


@pytest.mark.parametrize("name", ENCODERS)
def test_sentence_transformers_makes_the_same_vectors_and_ranks_the_same_labels(place, name):
    found = np.load(place / f"{name}.npz")
    queries, retriever = wanted(place, name, QUERY)
    for key in ("query", "plain", "one"):
        np.testing.assert_allclose(found[key], queries, rtol=0, atol=AGREES)
    view = LABEL if LABEL in retriever.encoder.layout.views else QUERY
    np.testing.assert_allclose(found["label"], wanted(place, name, view)[0], rtol=0, atol=AGREES)
    if "pairs" in found:
        pairs, _ = wanted(place, name, QUERY, TEXTS, TEXTS[::-1])
        np.testing.assert_allclose(found["pairs"], pairs, rtol=0, atol=AGREES)
    vectors = load_file(place / "moved" / name / "labels.safetensors")
    for score, named in named_vectors(retriever).items():
        np.testing.assert_array_equal(best(found["query"], vectors[score], named.span),
                                      best(queries, named.vectors, named.span))


@pytest.mark.parametrize("name", IN_ONNX)
def test_onnxruntime_makes_the_same_vectors_and_ranks_the_same_labels(place, name):
    folder = place / "moved" / f"{name}.onnx"
    for view in (QUERY, LABEL):
        graph = onnxruntime.InferenceSession(folder / f"{view}.onnx")
        for texts, contents in ((TEXTS, None), (TEXTS, TEXTS[::-1]), (["", ""], None), (["a fox"], None)):
            (found,) = graph.run(["vectors"], fed(folder, texts, contents))
            vectors, retriever = wanted(place, name, view, texts, contents)
            np.testing.assert_allclose(found, vectors, rtol=0, atol=AGREES)
            if view == QUERY:
                labels, named = load_file(folder / "labels.safetensors")["encoder"], named_vectors(retriever)["encoder"]
                np.testing.assert_array_equal(best(found, labels, named.span), best(vectors, named.vectors, named.span))


def test_a_text_with_half_a_character_is_read_where_code_comes_along(place):
    from tasks.export.xcflow_encoder import XcflowEncoder

    module = XcflowEncoder.load(str(place / "moved" / "bag"))
    text = "wolf \ud83d of \udc00 river"
    found = module(module.preprocess([text]))["sentence_embedding"].detach().numpy()
    np.testing.assert_allclose(found, wanted(place, "bag", QUERY, [text])[0], rtol=0, atol=AGREES)


@pytest.mark.parametrize("name", CARDS)
def test_the_program_on_the_card_runs(place, name):
    queries, retriever = wanted(place, name.partition(".")[0], QUERY, ["a large wild cat"])
    named = named_vectors(retriever)["encoder"]
    labels = best(queries, named.vectors, named.span)[0]
    said = json.loads((place / "said.json").read_text())[name]
    assert said.strip() == str([retriever.titles[label] for label in labels])


def test_the_program_on_the_page_runs(place):
    queries, retriever = wanted(place, "bag", QUERY, ["a large wild cat"])
    named = named_vectors(retriever)["encoder"]
    labels = best(queries, named.vectors, named.span)[0]
    said = json.loads((place / "said.json").read_text())["page"]
    assert said.splitlines() == [retriever.titles[label] for label in labels]


def test_the_card_has_metadata_that_hubs_read(place):
    for name, library, tags in (("bag", "sentence-transformers", {"custom_code"}),
                                ("transformer", "sentence-transformers", set()), ("bag.onnx", "onnx", set())):
        card = ModelCard.load(place / "moved" / name / "README.md")
        assert card.data.library_name == library and card.data.pipeline_tag == "feature-extraction"
        assert set(card.data.tags) & {"custom_code", "extreme-classification"} == {"extreme-classification"} | tags
        (result,) = card.data.eval_results
        assert (result.dataset_name, result.metric_name, result.metric_value) == ("tiny", "P@1", 45.68)
        assert "\n## tiny\n\n### Data" in card.content
        assert "| `classifier` | 16 | `query[:, 0:16]` |" in card.content
    assert "*.safetensors filter=lfs" in (place / "moved" / "bag" / ".gitattributes").read_text()


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny.with_champion(tmp_path_factory.mktemp("models") / "home")


@pytest.fixture
def run(cli, models):
    return lambda *words: cli("export", "encoder", *words, "--home", str(models.store.home))


def test_the_command_writes_a_folder(run, tmp_path, models):
    code, out, err = run("xc", "out")
    assert (code, out) == (0, "out\n") and "xc/1: encoder in out, label vectors: encoder, classifier" in err
    assert "trust_remote_code=True" in err
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "README.md", "labels.jsonl", "labels.safetensors", "modules.json", "tokenizer.json", "xcflow_encoder.py"}
    labels = [json.loads(line) for line in (tmp_path / "out" / "labels.jsonl").read_text().splitlines()]
    assert labels == [{"id": label, "uid": f"tiny:{label}", "text": text} for label, text in enumerate(tiny.LABELS)]
    for version, to, file in (("xc@champion", "onnx", "query.onnx"), ("xc/1", "hub-folder", ".gitattributes")):
        assert run(version, to, "--to", to)[0] == 0 and (tmp_path / to / file).exists()


def test_removed_labels_are_left_out(tmp_path, models):
    retriever = load("xc", models.store.home)
    retriever.removed = np.array([0, 7])
    write_labels(retriever, tmp_path)
    texts = [json.loads(line)["text"] for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert texts == [text for place, text in enumerate(tiny.LABELS) if place not in (0, 7)]
    kept = np.delete(named_vectors(retriever)["encoder"].vectors, (0, 7), axis=0)
    np.testing.assert_array_equal(load_file(tmp_path / "labels.safetensors")["encoder"], kept)


def test_a_folder_that_has_files_stays_as_it_is(run, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("before")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("mine", "mine/file", "link"):
        code, _, err = run("xc", name)
        assert code == 2 and f"{name} is there already" in err
    code, _, err = run("xc", "mine/file/below")
    assert code == 2 and "is not a folder" in err
    assert "/proc/below cannot be made" in run("xc", "/proc/below")[2]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "hint: name a new folder" in run("xc", ".")[2]


def test_a_failure_leaves_nothing(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "labels.safetensors")

    monkeypatch.setattr("tasks.export.label_vectors.write_labels", full)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new"):
        code, _, err = run("xc", name)
        assert code == 1 and "labels.safetensors" in err and "free space" in err
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())


def test_the_packages_that_are_missing_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: None if name.startswith("onnx") else find_spec(name))
    code, _, err = run("xc", "out", "--to", "onnx")
    assert code == 2 and "not installed: onnx, onnxscript" in err and "hint: pip install 'xcflow[export]'" in err
    assert not (tmp_path / "out").exists()


def test_a_damaged_version_is_refused(tmp_path_factory, cli):
    broken = tiny.with_champion(tmp_path_factory.mktemp("broken") / "home")
    for file in broken.store.home.rglob("encoder/model.safetensors"):
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:-1])
    code, _, err = cli("export", "encoder", "xc", "out", "--home", str(broken.store.home))
    assert code == 1 and "as it was registered" in err
