"""`xc run` on the planted data set: its command line, and the artifacts in its home."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

from tasks.core.store import Store
from tests.support.planted import QUICK
from tests.support.tiny import fresh_store

PREPARED = ("tables", "contract", "tokens", "walks", "corpus")    # kinds of what is made of data before training
TRAINED = ("mined", "checkpoint", "vectors", "retriever", "evaluation")


def settings(**more: str) -> list[str]:
    """Return --set options with which a run takes seconds."""
    return [word for key, value in {**QUICK, **more}.items() for word in ("--set", f"{key}={value}")]


def command(planted: Path | str, home: Path, workers: int = 0, **more: str) -> list[str]:
    """Return the arguments of `xc` for a whole run; each Dask worker costs seconds of a processor.

    So does making MLflow's database: a home that is not there gets an empty one.
    """
    if not home.exists():
        fresh_store(home)
    return ["run", "--data", str(planted), "--preset", "cpu-learned", "--home", str(home), "--workers", str(workers),
            "--json", *settings(**more)]


def copied(home: Path, to: Path) -> Path:
    """Copy a home to `to` and return that; objects, which nothing rewrites, are hard links: a lock may not be one."""
    def copy(source: str, target: str) -> None:
        (os.link if "objects" in Path(source).relative_to(home).parts[:1] else shutil.copy2)(source, target)

    shutil.copytree(home, to, copy_function=copy)
    return to


def prepared(home: Path, to: Path) -> Path:
    """Copy from a home what was made of its data before training, into a new home at `to`; return that."""
    copy_results(Store(home), new := fresh_store(to), PREPARED)
    return new.home


def copy_results(store: Store, to: Store, kinds: tuple[str, ...]) -> None:
    """Copy the results of steps of some kinds from a home to another."""
    for key, manifest in store.steps():
        if manifest["kind"] in kinds and (made := store.find(key)):
            shutil.copytree(store.home / made.path, to.home / made.path, copy_function=os.link, dirs_exist_ok=True)
            to.set_ref("steps", key, asdict(made))


def objects(home: Path) -> dict[str, str]:
    """Return the digest of each step's result, by the step's name."""
    return {manifest["about"]["step"]: json.loads((home / "refs" / "steps" / key).read_text())["digest"]
            for key, manifest in Store(home).steps()}
