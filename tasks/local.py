"""Training in this process: the steps of `xc train`, with the same results, and without Prefect, Dask or MLflow."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.core.dask_workers import Workers
from tasks.core.step import Console, run_all
from tasks.core.store import Store
from tasks.plan import pipeline
from xcmodels.data.corpus import Corpus
from xcmodels.methods.presets import resolve
from xcmodels.methods.registry import METHODS
from xcmodels.retrieval.retriever import Retriever
from xcmodels.training.local_run import train_all


def train(data: Path | str | Corpus, method: str = "ngame", preset: str = "cpu", *,
          settings: Mapping[str, object] | None = None, home: Path | str = ".xc",
          say: Callable[[str], None] = lambda line: None) -> Retriever:
    """Train a method on a raw data set's folder, or on a prepared corpus, and return its retriever.

    settings: what differs from the preset, {"m1.epochs": 5}. Of a folder, what the steps make stays in `home`: what is
    there already is not made again, and the same call goes on where one was killed. Of a corpus nothing is kept but
    what the retriever holds, and that as long as it lives. say: takes lines of progress.
    Raises UsageError for a method, preset or setting that there is none of, ContractError where the data breaks a rule,
    ProjectError where training fails.
    """
    changed = {key: str(value) for key, value in (settings or {}).items()}
    if isinstance(data, Corpus):
        return _of_corpus(data, method, preset, changed)
    laid_out, store = pipeline(Path(data), method, preset, changed), Store(Path(home))
    with store.run_lock(), Workers(count=0) as workers:
        store.sweep()
        done = run_all([*laid_out.prepare, *laid_out.train], store, workers, Console(say))
    return Retriever.load(store.open(done[laid_out.train[-1].name]))


def _of_corpus(corpus: Corpus, method: str, preset: str, changed: Mapping[str, str]) -> Retriever:
    made = METHODS[method].make(resolve(method, preset, changed).method)
    folder = Path(tempfile.mkdtemp(prefix="xcflow-"))
    try:
        retriever = Retriever.load(train_all(corpus, made, folder).retriever)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(retriever, shutil.rmtree, folder, True)
    return retriever
