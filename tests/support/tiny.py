"""A retriever of fifty labels that is built at once, and a store with an MLflow database to register it in."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tokenizers.models import WordPiece

from tasks.core.store import Artifact, Store, digest_of
from tasks.evaluation.gates import Score
from tasks.registry.promotion import promote_by_gates
from tasks.registry.register import register
from tasks.tracking.tracker import Tracker
from tests.support.ports import free_port
from tests.support.shared import shared
from xcmodels.data.corpus import Ragged, Side, Texts
from xcmodels.data.tokens import Tokenizer, learn_backend
from xcmodels.nn.encoder_config import EncoderConfig
from xcmodels.nn.encoders import LABEL, Encoder, build_encoder
from xcmodels.retrieval import ann
from xcmodels.retrieval.boosted_trees import RegressionTrees
from xcmodels.retrieval.builder import save_retriever
from xcmodels.retrieval.calibration import UNKNOWN
from xcmodels.retrieval.fusion import InnerProductTerm, TreeFusion
from xcmodels.retrieval.proposers import Proposer

KINDS = ("wolf", "fox", "dog", "cat", "seal", "oak", "elm", "fern", "moss", "pike")
PLACES = ("river", "mountain", "desert", "forest", "sea")
LABELS = [f"{place} {kind}" for place in PLACES for kind in KINDS]
TEXTS = [f"{label} {LABELS[n]}" for place, label in enumerate(LABELS) for n in range(place % len(KINDS))]
QUERIES = ["a wolf that lives in the mountains", "an oak of the forest", "the sea seal", "日本語 and ünïcode", ""]


def tiny_retriever(folder: Path, seed: int = 0, make: Callable[[int], Encoder] | None = None,
                   untitled: bool = False) -> Path:
    """Write a retriever to `folder` / retriever and return it; the same seed gives the same bytes.

    make: returns the encoder for a number of tokens, by default a bag of random embeddings. untitled: the training
    texts are contents, of which twice as many tokens are read as of a title.
    """
    corpus: Any = SimpleNamespace(folder=folder / "corpus", name="tiny", n_labels=len(LABELS), n_queries=len(TEXTS))
    corpus.folder.mkdir(parents=True)
    backend = learn_backend(LABELS + QUERIES, 200)
    backend.model = WordPiece(_vocabulary(), unk_token="[UNK]")    # what is learned differs from process to process
    tokenizer = Tokenizer(backend, max_title=16, max_content=32 if untitled else 16)
    tokenizer.save(corpus.folder / "tokenizer")
    Texts.save(corpus.folder, "label.uid", [f"tiny:{i}" for i in range(len(LABELS))])
    Texts.save(corpus.folder, "label.title", LABELS)
    _training_texts(corpus, tokenizer, untitled)
    encoder = make(tokenizer.size) if make else build_encoder(
        EncoderConfig(source="random", dim=16), np.ones(2 * tokenizer.size, np.float32), seed)
    encoder.eval()
    vectors = encoder(tokenizer(LABELS, [""] * len(LABELS)), LABEL).detach().numpy()
    index = ann.build(vectors.copy(), "exact")
    trees = RegressionTrees(np.zeros((1, 1), np.int64), np.full((1, 1), np.inf, np.float32),
                            np.zeros((1, 2), np.float32))
    frequencies = corpus.frequencies().astype(np.float32)
    terms = {"encoder": InnerProductTerm(vectors), "classifier": InnerProductTerm(index.vectors)}
    fusion = TreeFusion(trees, terms, frequencies, indexed=("classifier",))
    (folder / "retriever").mkdir()
    save_retriever(folder / "retriever", corpus, method="ngame", encoder=encoder, proposers={"labels": Proposer(index)},
                   shortlist=20, scorer=fusion, calibration=replace(UNKNOWN, queries=9))
    return folder / "retriever"


def _training_texts(corpus: Any, tokenizer: Tokenizer, untitled: bool) -> None:
    """Give label i of each place i training texts, from none to nine."""
    corpus.sides = {}
    for name, texts in (("train", TEXTS), ("label", LABELS)):
        fields = texts, [""] * len(texts)
        tokens = tokenizer(*(fields[::-1] if untitled and name == "train" else fields))
        corpus.sides[name] = Side(Ragged(tokens.offsets.numpy(), tokens.ids.numpy().astype(np.int32)),
                                  tokens.titles.numpy().astype(np.int32))
    corpus.positives = {"train": Ragged(np.arange(len(TEXTS) + 1), np.array(
        [label for label in range(len(LABELS)) for _ in range(label % len(KINDS))], np.int32))}
    corpus.frequencies = lambda: np.arange(len(LABELS)) % len(KINDS)
    Texts.save(corpus.folder, "train.text", TEXTS)


def _vocabulary() -> dict[str, int]:
    """Return whole words of the labels and single characters, in a fixed order; a word begins with the mark ▁."""
    words = {f"▁{word}" for label in LABELS for word in label.split()}
    letters = {mark + letter for text in LABELS + QUERIES
               for letter in text.lower() if letter.strip() for mark in ("▁", "##")}
    return {token: place for place, token in enumerate(["[PAD]", "[UNK]", *sorted(words | letters)])}


def add_database(home: Path) -> None:
    """Give a home an empty MLflow database, made once a session: its migrations take seconds."""
    from tasks.tracking.mlflow_client import make_database

    shutil.copy(shared("mlflow-database", make_database) / "mlflow.db", home)


def fresh_store(home: Path) -> Store:
    """Return a new store whose HOME has an empty MLflow database."""
    store = Store(home)
    add_database(home)
    return store


def publish(store: Store, seed: int = 0) -> Artifact:
    """Publish a tiny retriever; another seed is another retriever."""
    def write(out: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(tiny_retriever(Path(folder), seed), out, dirs_exist_ok=True)

    return store.publish(digest_of(["tiny", seed]), "retriever", {}, write)


class RegisteredModels:
    """A store with an MLflow database and a run, and short ways to register tiny retrievers."""

    def __init__(self, home, uri=None):
        self.store, self.tracker = fresh_store(home), Tracker(home, uri)
        self.run = self.tracker.start("k1", experiment="xc", name="tiny", params={}, config_yaml="", data={}, tags={})

    def publish(self, seed=0):
        return publish(self.store, seed)

    def register(self, seed, p1=60.0, test="test 1", name="xc", psp5=50.0, **more):
        artifact = self.publish(seed)
        return register(self.tracker, self.run or "", name, retriever_dir=self.store.open(artifact),
                        retriever_digest=artifact.digest, score=Score({"P/1": p1, "PSP/5": psp5}), test_digest=test,
                        card=f"# card of {seed}", **more)

    def enter(self, seed, p1=60.0, **more):
        """Register a version and let the gates decide on its promotion."""
        compare = more.pop("compare", None)
        return promote_by_gates(self.tracker, "xc", self.register(seed, p1, **more).version, compare)

    def versions(self, name="xc"):
        with self.tracker.required() as client:
            return sorted(client.search_model_versions(f"name = '{name}'"), key=lambda each: int(each.version))

    def aliases(self):
        with self.tracker.required() as client:
            return {alias: str(version) for alias, version in client.get_registered_model("xc").aliases.items()}


def with_champion(home):
    """Return a new home with one version, the champion."""
    models = RegisteredModels(home)
    models.enter(0)
    return models


@contextmanager
def mlflow_server(home: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an MLflow server with its database in `home`; yield its address and process, a group of its own."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "mlflow.db").exists():
        add_database(home)
    port = port or free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{home}/mlflow.db",
               "--artifacts-destination", str(home / "artifacts"), "--port", str(port), "--workers", "1"]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=home,
                                  env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"})    # as of `xc up`
    try:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", server
    finally:
        for number in (signal.SIGCONT, signal.SIGTERM):
            with suppress(ProcessLookupError):    # a test may have killed it
                os.killpg(server.pid, number)
        server.wait(30)


@contextmanager
def global_uri(uri: str) -> Iterator[None]:
    """Set MLflow's global tracking URI, as its users do, and reset it."""
    import mlflow

    mlflow.set_tracking_uri(uri)    # sets an environment variable too
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]
