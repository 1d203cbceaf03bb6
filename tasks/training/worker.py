"""One of the processes that train a step together (`tasks.training.launcher`): python -m tasks.training.worker SPEC."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from data_contracts.errors import ProjectError
from tasks.core.dask_workers import Workers
from tasks.core.step import Job
from tasks.training.launcher import FAILED, STOP
from tasks.training.recipe import Recipe
from tasks.training.train_round import train
from xcmodels.nn import distributed


def main(spec: Path) -> None:
    """Take a process's part in a step; what the first one raises is left beside `spec`.

    It stops where the run asks for it by a file, and by itself where the run is gone.
    """
    asked, scratch = json.loads(spec.read_text()), spec.parent
    distributed.join()
    first = distributed.rank() == 0

    def tell(told: dict[str, Any]) -> None:
        with suppress(OSError):    # the run is gone; what was trained is saved all the same
            os.write(sys.stdout.fileno(), f"{json.dumps(told)}\n".encode())

    def stopped() -> bool:
        return (scratch / STOP).exists() or not _lives(asked["parent"], asked["born"])

    @contextmanager
    def watch(name: str) -> Iterator[tuple[Callable[[Any], None], Callable[[], bool]]]:
        yield (lambda progress: tell({"progress": asdict(progress)})), stopped

    try:
        train(Recipe(**asked["recipe"]), asked["round"], Job(
            Path(asked["out"]), {role: Path(path) for role, path in asked["inputs"].items()}, scratch,
            Path(asked["home"]), Workers(), lambda line: tell({"say": line}), watch))
    except ProjectError as error:
        if first:
            (scratch / FAILED).write_text(json.dumps({
                "kind": type(error).__name__, "what": error.what, "where": error.where, "hint": error.hint}))
        distributed.leave(1)
        sys.exit(1)
    distributed.leave()


def _lives(pid: int, born: float) -> bool:
    """Return whether the process that began at `born` is still there."""
    try:
        return psutil.Process(pid).create_time() == born
    except psutil.Error:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
