"""Training by several processes of this machine, started by `torchrun`.

Each process is `tasks.training.worker`, and trains the same round (`xcmodels.nn.distributed`). The first one reports
for all: a line of JSON per step of training on its stdout, which the run reads. A file tells them to stop.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from data_contracts import errors
from data_contracts.errors import ProjectError
from tasks.core.step import StepContext
from tasks.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
SPEC, STOP, FAILED, LOG = "launched.json", "launched.stop", "launched.failed", "launched.log"


def launch(recipe: Recipe, name: str, context: StepContext) -> None:
    """Train the round called `name` by several processes, and pass on what they report.

    Raises what the first process raised, and ProjectError with the exit code from their log where one was killed.
    """
    scratch, processes = context.scratch, context.workers.processes
    for leftover in (STOP, FAILED):
        (scratch / leftover).unlink(missing_ok=True)
    (scratch / SPEC).write_text(json.dumps({
        "recipe": asdict(recipe), "round": name, "out": str(context.out), "home": str(context.home),
        "inputs": {role: str(path) for role, path in context.inputs.items()},
        "parent": os.getpid(), "born": psutil.Process().create_time()}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
               "--module", "tasks.training.worker", str(scratch / SPEC)]
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with context.watch(name) as (report, stop), (scratch / LOG).open("wb") as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": threads}) as run:
        assert run.stdout is not None
        try:
            for line in run.stdout:
                _pass_on(line, context.say, report)
                if stop():
                    (scratch / STOP).touch()
        except BaseException:
            (scratch / STOP).touch()
            run.terminate()
            raise
    if (scratch / FAILED).exists():
        failed = json.loads((scratch / FAILED).read_text())
        raise getattr(errors, failed["kind"])(failed["what"], where=failed["where"], hint=failed["hint"])
    if run.returncode:
        log_lines = (scratch / LOG).read_text(errors="replace").splitlines()
        killed = next((line.strip() for line in log_lines if "exitcode" in line), "no reason was given")
        raise ProjectError(f"one of {processes} training processes ended: {killed}; {scratch / LOG}",
                           hint="the same command resumes")


def _pass_on(line: str, say: Callable[[str], None], report: Callable[[Any], None]) -> None:
    from xcmodels.training.loop import Progress

    try:
        message = json.loads(line)
    except json.JSONDecodeError:    # printed by a library
        return
    if "say" in message:
        say(message["say"])
    elif "progress" in message:
        report(Progress(**message["progress"]))
