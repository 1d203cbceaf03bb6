"""The code in a step's key: what can change its result and nothing else."""

import ast
import importlib.util
import shutil
from types import SimpleNamespace

import pytest

from tasks.core import code_digest
from tasks.plan import pipeline
from tests.conftest import ROOT
from tests.support.planted import write_planted
from xcmodels.methods.all_methods import METHODS

TOKENS = {"xcmodels", "xcmodels.checks", "xcmodels.data.corpus", "xcmodels.data.frozen_states",
          "xcmodels.data.ranges", "xcmodels.data.sorted_ids", "xcmodels.data.text", "xcmodels.data.tokens"}
READ = {"xcmodels.data.corpus", "xcmodels.data.sorted_ids"}    # of TOKENS, what reads a corpus
RULES = {f"data_contracts.{name}" for name in (
    "check", "drift", "errors", "findings", "row_rules", "schemas", "suites", "tables", "verdict",
    "table_rules")}
ENCODERS = TOKENS | {f"xcmodels.{name}" for name in (
    "data", "data.batching", "data.seeds", "nn", "nn.autograd", "nn.backbones", "nn.devices",
    "nn.distributed", "nn.encoder_config", "nn.encoders", "nn.layers", "nn.row_table",
    "nn.text_layout", "nn.transformer")}
STATES = TOKENS | {f"xcmodels.{name}" for name in (
    "nn", "nn.autograd", "nn.devices", "nn.distributed", "nn.encoder_config", "nn.layers", "nn.row_table",
    "nn.text_layout", "nn.transformer", "training.frozen_layers")}
LOOP = ENCODERS | {f"xcmodels.{name}" for name in (
    "method", "nn.losses", "nn.rounding", "nn.row_optimisers", "data.judged_answers", "training.checkpoint",
    "training.loop", "training.optimisers", "training_plan")}
MINING = {f"xcmodels.{name}" for name in (
    "mining", "mining.clustering", "mining.gpu_index", "mining.graph", "mining.grouped_index",
    "mining.int8_products", "mining.label_index", "mining.refresh", "mining.per_query_index",
    "data.sparse_rows", "mining.query_groups", "mining.schedule", "retrieval",
    "retrieval.ann", "retrieval.vector_codes", "retrieval.inner_products")}
SCORES = {f"xcmodels.retrieval.{name}" for name in (
    "boosted_trees", "calibration", "folder", "frequent_classifiers", "fusion", "label_names", "label_words", "lexicon",
    "proposers", "scorers", "sparse_classifiers", "sparse_files")} | {f"xcmodels.data.{name}" for name in (
    "judged_answers", "propensity", "seen_texts", "sparse_rows")}
FIT = {f"xcmodels.retrieval.{name}" for name in (
    "centroids", "corpus_words", "frequent_training", "fusion_fit", "lexical", "score_weights", "sparse_training")}
OF_M1 = {"xcmodels.methods.ngame_m1", "xcmodels.methods.table_config"}
NGAME = OF_M1 | {"xcmodels.methods.ngame.config", "xcmodels.methods.ngame.stages"}
OTHER = NGAME - OF_M1    # not module M1's
# to read what was trained
TRAINED = (LOOP | MINING | NGAME | STATES) - {"xcmodels.data.judged_answers", "xcmodels.training.loop"}
READERS = {f"tasks.data.sources{name}" for name in (
    "", ".files", ".formats", ".raw", ".reading", ".shards", ".sparse", ".texts")}
KEYS = {
    "tables": READERS | {"data_contracts.errors", "data_contracts.schemas", "tasks.data", "tasks.data.read",
                         "tasks.data.tables", "xcmodels.data.text"},
    "contract": RULES,
    "tokens": TOKENS - READ | {"xcmodels.data.prepare_config", "data_contracts.errors", "data_contracts.schemas",
                               "tasks.data.tables", "tasks.data.tokenise"},
    "walks": RULES | TOKENS - {"xcmodels"} | {"tasks.data.tables", "tasks.data.walks", "xcmodels.data.sparse_rows",
                              "xcmodels.mining.graph"},
    "corpus": TOKENS | {"tasks.data.pack", "tasks.data.tables", "xcmodels.data", "xcmodels.data.label_branches",
                        "xcmodels.data.groups", "xcmodels.data.prepare_config", "xcmodels.data.seeds",
                        "xcmodels.data.seen_texts"},
    "states": STATES | {"tasks.training.frozen_layers"},
    "checkpoint": LOOP | MINING | NGAME | STATES | {"data_contracts.errors", "tasks.training.mined_files",
                                           "tasks.training.train_round"},
    "mined": TRAINED | RULES | {
        "tasks.data.tables", "tasks.training.embed", "tasks.training.mined_files", "tasks.training.mining",
        "xcmodels.mining.hardness"},
    "vectors": TRAINED | {"tasks.training.embed", "tasks.training.mined_files"},
    "retriever": TRAINED | SCORES | FIT | {
        "tasks.training.mined_files", "tasks.training.retriever", "xcmodels.methods.ngame.method",
        "xcmodels.methods.retriever_builder", "xcmodels.mining.nearest_labels", "xcmodels.retrieval.builder",
        "xcmodels.retrieval.examples",
        "xcmodels.data.label_branches"},
    "evaluation": ENCODERS | SCORES | {
        "tasks.evaluation.evaluate", "xcmodels.predictions", "xcmodels.metrics", "xcmodels.retrieval",
        "xcmodels.retrieval.ann", "xcmodels.retrieval.vector_codes",
        "xcmodels.retrieval.centroid_mix", "xcmodels.retrieval.inner_products", "xcmodels.retrieval.ranker"},
}
# Files of which an edit can change no step's result, but where a method's own is trained.
FREE = ("data_contracts/validate.py", "tasks/evaluation/report.py", "tasks/run_end.py", "tasks/tracked_run.py",
        "xcmodels/retrieval/retriever.py", "xcmodels/retrieval/selection.py", "xcmodels/resources.py",
        "xcmodels/retrieval/serving_config.py", "serving/app.py", "flows/cli/app.py",
        "xcmodels/methods/all_methods.py", "xcmodels/methods/astra/stages.py", "xcmodels/methods/unidec/method.py")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_planted(tmp_path_factory.mktemp("keys") / "data", train=60, test=10, labels=8)


def test_the_modules_in_each_kind_of_key(data):
    steps = pipeline(data, "ngame", "cpu-minilm", {}).steps
    assert {step.kind for step in steps} == KEYS.keys()
    for step in steps:
        of_m1 = step.kind in ("checkpoint", "mined", "vectors") and "encoder" in step.name    # as ASTRA's, too
        assert step.about()["code"].keys() == KEYS[step.kind] - (OTHER if of_m1 else set()), step.name


def test_a_module_that_two_methods_share_is_trained_once(data):
    def module(method):
        return {step.name: step.about() for step in pipeline(data, method, "cpu", {}).steps
                if "encoder round" in step.name and step.kind == "checkpoint"}

    assert module("ngame") and module("ngame") == module("astra") == module("renee")


@pytest.mark.parametrize(("method", "trains_again"),
                         [("dpr", False), ("dexml", False), ("unidec", True), ("astra", True)])
def test_the_index_is_in_the_key_of_training_only_where_it_mines(data, method, trains_again):
    def trained(index):
        return {step.name: step.about() for step in pipeline(data, method, "cpu", {"index": index}).steps
                if step.kind == "checkpoint"}

    assert (trained("auto") != trained("exact")) == trains_again


@pytest.mark.parametrize("method", METHODS)
def test_a_key_has_no_other_method_and_nothing_that_shows_or_serves(data, method):
    folders = {f"xcmodels.methods.{path.parent.name}" for path in (ROOT / "xcmodels" / "methods").glob("*/config.py")}
    for step in pipeline(data, method, "cpu", {}).steps:
        code = step.about()["code"].keys()
        methods = folders & {".".join(name.split(".")[:3]) for name in code}
        assert len(methods) <= (2 if method.startswith("ramen") else 1), (step.name, methods)
        assert not [name for name in code if name.startswith(("flows", "serving", "tasks.evaluation.report"))
                    or name.endswith((".page", ".explain", ".presets", ".registry", ".resources"))]


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A copy of the packages, of which keys are made meanwhile."""
    for package in ("xcmodels", "tasks", "flows", "data_contracts", "serving"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))

    def find_spec(name):
        spec = importlib.util.find_spec(name)
        return spec and SimpleNamespace(origin=(spec.origin or "").replace(str(ROOT), str(tmp_path)))

    monkeypatch.setattr(code_digest, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=find_spec)))
    yield tmp_path
    parse_anew()


def parse_anew():
    for cached in (code_digest.modules, code_digest.code_digests, code_digest._parsed):
        cached.cache_clear()


def test_an_edit_that_can_change_nothing_redoes_nothing(data, packages):
    """After an import was added to each file in turn, by steps of another key than before; and after one that counts.

    Steps that read what those make are made again, too: tests/unit/test_steps.py.
    """
    def about():
        parse_anew()
        return {step.name: step.about() for step in pipeline(data, "ngame", "cpu-learned", {}).steps}

    def redone():
        before = known.copy()
        known.update(about())
        return [name for name, now in known.items() if now != before[name]]

    known = about()
    for name in FREE:
        edit(packages / name)
    assert redone() == []
    edit(packages / "tasks" / "evaluation" / "evaluate.py")
    assert redone() == ["evaluate"]
    edit(packages / "xcmodels" / "retrieval" / "examples.py")
    assert redone() == ["build retriever"]
    edit(packages / "xcmodels" / "nn" / "losses.py")
    assert "encoder round 0" in (changed := redone()) and "pack" not in changed


def edit(file):
    """Add an import that nothing uses: the syntax tree changes, what the file does stays."""
    text = file.read_text()
    after = ast.parse(text).body[0].end_lineno    # the docstring
    lines = text.split("\n")
    file.write_text("\n".join([*lines[:after], "", "import keyword", *lines[after:]]))
