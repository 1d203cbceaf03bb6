"""Training in this process, without Prefect, Dask or MLflow (`xcflow.train`)."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from data_contracts.errors import UsageError
from tasks.core.dask_workers import Workers
from tasks.core.remote import Source
from tasks.core.step import Console, run_all
from tasks.core.store import Store
from tasks.data.fetch import fetched, outline
from tasks.plan import pipeline, resolve_run
from tasks.training.recipe import Recipe
from xcmodels.data.corpus import Corpus
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import train_all


def train(data: Source | Corpus, method: str = "ngame", preset: str = "cpu", *,
          settings: Mapping[str, object] | None = None, home: Path | str = ".xc",
          say: Callable[[str], None] = lambda line: None) -> Retriever:
    """Train a method on a raw data set (its folder or address) or a prepared corpus, and return its retriever.

    settings: those that differ from the preset, {"m1.epochs": 5}. say: receives lines of progress. With a folder,
    results of steps stay in `home` and are reused, and the same call resumes a killed one. With a corpus, only the
    files of the retriever are kept, for as long as it lives.
    Raises UsageError for an unknown method, preset or setting, ContractError where the data breaks a rule,
    ProjectError where training fails.
    """
    if not isinstance(settings or {}, Mapping):
        raise UsageError(f"settings is a dict, {{'m1.epochs': 5}}, got {settings!r}")
    changed = {key: str(value) for key, value in (settings or {}).items()}
    if isinstance(data, Corpus):
        return _train_corpus(data, Recipe(method, preset, changed))
    with outline(data) as folder:    # a wrong setting or data set is refused before a home is made
        resolve_run(folder, method, preset, changed)
    store = Store(Path(home))
    with store.run_lock(), Workers(count=0) as workers:
        store.sweep()
        plan = pipeline(fetched(data, store.home, say), method, preset, changed, source=data)
        done = run_all([*plan.prepare, *plan.train], store, workers, Console(say))
    return Retriever.load(store.open(done[plan.train[-1].name]))


def _train_corpus(corpus: Corpus, recipe: Recipe) -> Retriever:
    method = recipe.make()
    folder = Path(tempfile.mkdtemp(prefix="xcflow-"))
    try:
        kept = train_all(corpus, method, folder).retriever
        for other in folder.iterdir():    # checkpoints, states of frozen layers: gigabytes
            if other != kept:
                shutil.rmtree(other)
        retriever = Retriever.load(kept)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(retriever, shutil.rmtree, folder, True)
    return retriever
