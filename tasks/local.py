"""Training in this process, without Prefect, Dask or MLflow (`xcflow.train`)."""

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock

import torch

from data_contracts.errors import UsageError
from tasks.core.dask_workers import Workers
from tasks.core.remote import Source
from tasks.core.step import Console, run_all
from tasks.core.store import Store
from tasks.data.contract import keep_frequencies
from tasks.data.fetch import fetched, outline
from tasks.plan import pipeline, resolve_run
from tasks.training.recipe import Recipe
from xcmodels.data.corpus import Corpus
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import train_all
from xcmodels.training.loop import Progress, Watch

_TRAINING = Lock()    # each step of a training seeds torch's one generator, and draws from it


def train(data: Source | Corpus, method: str = "ngame", preset: str = "cpu", *,
          settings: Mapping[str, object] | None = None, home: Path | str = ".xc",
          say: Callable[[str], None] = lambda line: None) -> Retriever:
    """Train a method on a raw data set (its folder or address) or a prepared corpus, and return its retriever.

    settings: those that differ from the preset, {"m1.epochs": 5}. say: receives lines of progress. With a folder,
    results of steps stay in `home` and are reused, and the same call resumes a killed one. With a corpus, only the
    files of the retriever are kept, for as long as it lives.
    One training runs at a time in a process, and another waits for it. Meanwhile no other thread may draw from torch's
    global generator, as `load` does: the model would be another. Afterwards that generator is as it was.
    Raises UsageError for an unknown method, preset or setting, ContractError where the data breaks a rule,
    ProjectError where training fails.
    """
    if not isinstance(settings or {}, Mapping):
        raise UsageError(f"settings is a dict, {{'m1.epochs': 5}}, got {settings!r}")
    changed = {str(key): str(value) for key, value in (settings or {}).items()}
    if isinstance(data, Corpus):
        return _train_corpus(data, Recipe(method, preset, changed), say)
    if not isinstance(data, str | os.PathLike):
        raise UsageError(f"data is a folder, an address or a Corpus, not of type {type(data).__name__}",
                         hint="xc data import makes such a folder of a table")
    with outline(data) as folder:    # a wrong setting or data set is refused before a home is made
        resolve_run(folder, method, preset, changed)
    store = Store(Path(home))
    with _alone(), store.run_lock(), Workers(count=0) as workers:
        store.sweep()
        plan = pipeline(fetched(data, store.home, say), method, preset, changed, source=data)
        console = Console(say, lambda name: nullcontext((_each_epoch(say), lambda: False)))
        done = run_all([*plan.prepare, *plan.train], store, workers, console)
        keep_frequencies(plan.data.name, done["check tables"], store)
        return Retriever.load(store.open(done[plan.train[-1].name]))


def _train_corpus(corpus: Corpus, recipe: Recipe, say: Callable[[str], None]) -> Retriever:
    method = recipe.make()
    if ignored := [key for key in recipe.changed if key.startswith("prepare.")]:
        raise UsageError(f"{ignored[0]} is a setting of the preparation, and the corpus is prepared",
                         hint="leave it out, or train on the raw data set")
    folder = Path(tempfile.mkdtemp(prefix="xcflow-"))
    try:
        with _alone():
            kept = train_all(corpus, method, folder, Watch(_each_epoch(say))).retriever
            for other in folder.iterdir():    # checkpoints, states of frozen layers: gigabytes
                if other != kept:
                    shutil.rmtree(other)
            retriever = Retriever.load(kept)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(retriever, shutil.rmtree, folder, True)
    return retriever


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for another training of this process; afterwards, torch's global generators are as they were."""
    with _TRAINING, torch.random.fork_rng(range(torch.cuda.device_count())):
        yield


def _each_epoch(say: Callable[[str], None]) -> Callable[[Progress], None]:
    """Return what takes the progress of each step, and says a line at the first one of an epoch."""
    said = set[tuple[str, int]]()

    def report(progress: Progress) -> None:
        if (epoch := (progress.stage, progress.epoch)) not in said:
            said.add(epoch)
            say(f"{progress.stage} epoch {progress.epoch + 1}: step {progress.done:,} of {progress.steps:,}, "
                f"loss {progress.loss:.4f}")

    return report
