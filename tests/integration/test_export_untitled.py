"""`xc export encoder` of a version whose training texts have no titles: a text alone is a content, as in xcflow."""

import contextlib
import io
import json
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from tasks.export.export import write_files
from tests.integration.test_export_encoder import AGREES, LONG, TEXTS, best, make
from tests.support import tiny
from xcmodels.nn.encoders import LABEL
from xcmodels.retrieval.retriever import Retriever

pytestmark = pytest.mark.timeout(1200)    # the first waits for three exports
# A graph for ONNX reads token types, whatever the texts alone are: test_export_encoder.py asks a transformer's.
EXPORTS = [("bag", "sentence-transformers"), ("bag", "onnx"), ("transformer", "sentence-transformers")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of untitled retrievers, a bag and a transformer, and their exports."""
    folder = tmp_path_factory.mktemp("untitled")
    version = SimpleNamespace(name="xc", version="3", tags={}, description="")
    for name in ("bag", "transformer"):
        (folder / name).mkdir()
        tiny.tiny_retriever(folder / name, make=partial(make, name, folder / "bert"), untitled=True)
    for name, to in EXPORTS:
        (out := folder / name / to).mkdir()
        write_files(folder / name / "retriever", version, out, to)
    return folder


@pytest.mark.parametrize("name", ["bag", "transformer"])
def test_sentence_transformers_reads_a_text_alone_as_a_content(place, name):
    retriever = Retriever.load(place / name / "retriever")
    assert retriever.untitled
    trust = {"trust_remote_code": True} if name == "bag" else {}
    model = SentenceTransformer(str(place / name / "sentence-transformers"), device="cpu", **trust)
    for found in (model.encode_query(TEXTS), model.encode(TEXTS)):
        np.testing.assert_allclose(found, retriever.embed(TEXTS), rtol=0, atol=AGREES)
    read = retriever.tokenizer
    texts = [text for text in TEXTS if trust or len(read([""], [text]).ids) <= read.max_title]    # it has one limit
    with torch.inference_mode():
        labels = retriever.encoder(retriever.tokenizer(texts, [""] * len(texts)), LABEL).numpy()
    np.testing.assert_allclose(model.encode_document(texts), labels, rtol=0, atol=AGREES)
    if trust:
        pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
        np.testing.assert_allclose(model.encode_query(pairs), retriever.embed(*zip(*pairs, strict=True)),
                                   rtol=0, atol=AGREES)
        prompted = model.encode_query(TEXTS[:1], prompt="of ")
        np.testing.assert_allclose(prompted, retriever.embed(["of " + TEXTS[0]]), rtol=0, atol=AGREES)


def test_onnxruntime_reads_a_text_alone_as_a_content(place):
    retriever, folder = Retriever.load(place / "bag" / "retriever"), place / "bag" / "onnx"
    graph = onnxruntime.InferenceSession(folder / "query.onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer_content.json"))
    for text in (TEXTS[0], LONG):
        ids = np.array([tokenizer.encode(text, add_special_tokens=False).ids])
        (found,) = graph.run(["vectors"], {"input_ids": ids, "attention_mask": np.ones_like(ids),
                                           "token_type_ids": np.ones_like(ids)})
        np.testing.assert_allclose(found, retriever.embed([text]), rtol=0, atol=AGREES)


@pytest.mark.parametrize(("name", "to"), EXPORTS)
def test_the_program_on_the_card_reads_a_content(place, name, to, monkeypatch):
    folder = place / name / to
    monkeypatch.chdir(folder)
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code = code.replace('"a large wild cat"', json.dumps(LONG))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    retriever = Retriever.load(place / name / "retriever")
    labels = best(retriever.embed([LONG]), load_file("labels.safetensors")["encoder"], (0, 16))[0]
    assert out.getvalue().strip() == str([retriever.titles[label] for label in labels])
    assert "a content" in card
