"""One of several processes that train a round: python -m tasks.training.training_process SPEC."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data_contracts.errors import ProjectError
from tasks.core.dask_workers import Workers
from tasks.core.processes import process_name
from tasks.core.step import StepContext
from tasks.training.launcher import FAILED, STOP
from tasks.training.recipe import Recipe
from tasks.training.train_round import train
from xcmodels.checks import Unusable
from xcmodels.nn import distributed


def main(spec: Path) -> None:
    """Train a round together with the other processes, some of them perhaps on other machines.

    An error of this machine's first process is written to a file next to `spec`. All stop where the run of any machine
    wrote the file that asks for it, or has ended itself.
    """
    task, scratch = json.loads(spec.read_text()), spec.parent
    distributed.join()

    def send(message: dict[str, Any]) -> None:
        with suppress(OSError):    # the run has ended; the trained model is saved all the same
            os.write(sys.stdout.fileno(), f"{json.dumps(message)}\n".encode())

    def stopped() -> bool:
        return (scratch / STOP).exists() or process_name(task["parent"]) != task["parent_name"]

    @contextmanager
    def watch(name: str) -> Iterator[tuple[Callable[[Any], None], Callable[[], bool]]]:
        yield (lambda progress: send({"progress": asdict(progress)})), stopped

    try:
        train(Recipe(**task["recipe"]), task["round"], StepContext(
            Path(task["out"]), {role: Path(path) for role, path in task["inputs"].items()}, scratch,
            Path(task["home"]), Workers(), lambda line: send({"say": line}), watch))
    except (ProjectError, Unusable) as error:
        told = error if isinstance(error, ProjectError) else ProjectError(str(error))
        if distributed.is_first_of_machine():
            (scratch / FAILED).write_text(json.dumps(told.to_json()))
        distributed.exit_process(1)
        sys.exit(1)
    distributed.exit_process()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
