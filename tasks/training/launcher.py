"""Training by several processes of this machine, and of others, started by `torchrun`.

Each process is `tasks.training.training_process`, and trains the same round (`xcmodels.nn.distributed`). The first
process reports for all: a line of JSON per step of training on its stdout, which the run reads. A file tells them to
stop. Of several machines each starts its own processes (`tasks.training.follower`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import ProjectError, from_json
from tasks.core.machines import Machines
from tasks.core.manifest import MANIFEST
from tasks.core.processes import process_name
from tasks.core.repeating import repeating
from tasks.core.step import StepContext
from tasks.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
SPEC, STOP, FAILED, LOG = "launched.json", "launched.stop", "launched.failed", "launched.log"
LOOK = 0.2    # seconds between looks at whether training should stop


class LostProcess(ProjectError):
    """A process that trained was killed, or lost its connection to others."""


def launch(recipe: Recipe, name: str, context: StepContext) -> None:
    """Train the round called `name` by several processes, of all machines of the run, and pass on what they report.

    Raises what the first process raised, and ProjectError with the exit code from their log where one was killed.
    """
    if (machines := context.workers.machines) is None:
        train_here(recipe, name, context, ["--standalone"])
        return
    port = machines.begin({    # what followers need to know of the round
        "round": name, "recipe": {**asdict(recipe), "changed": dict(recipe.changed)}, "code": recipe.code(name),
        "inputs": {role: {"digest": folder.name, "key": json.loads((folder / MANIFEST).read_bytes())["key"]}
                   for role, folder in context.inputs.items()}})
    try:
        train_here(recipe, name, context, machines.torchrun_options(port))
    except LostProcess as error:
        other = machines.why_lost()
        raise ProjectError(f"{error.what}; {other.what}" if other else error.what,
                           hint="see whether all machines run; the same commands resume") from error


def train_here(recipe: Recipe, name: str, context: StepContext, torchrun_options: Sequence[str]) -> None:
    """Train a round by the processes of this machine.

    torchrun_options: by which torchrun finds the processes of other machines.
    """
    scratch, processes, machines = context.scratch, context.workers.processes, context.workers.machines
    for leftover in (STOP, FAILED):
        (scratch / leftover).unlink(missing_ok=True)
    (scratch / SPEC).write_text(json.dumps({
        "recipe": asdict(recipe), "round": name, "out": str(context.out), "home": str(context.home),
        "inputs": {role: str(path) for role, path in context.inputs.items()},
        "parent": os.getpid(), "parent_name": process_name(os.getpid())}))
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun_options, "--nproc-per-node", str(processes),
               "--module", "tasks.training.training_process", str(scratch / SPEC)]
    environment = _environment(processes, machines.interface if machines else "")
    with context.watch(name) as (report, stop), (scratch / LOG).open("wb") as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env=environment) as run, repeating(partial(_watch, run, stop, scratch, machines), "watch"):
        assert run.stdout is not None
        try:
            for line in run.stdout:
                _pass_on(line, context.say, report)
        except BaseException:
            (scratch / STOP).touch()
            run.terminate()
            raise
        stop_requested = stop()
    if (scratch / FAILED).exists():
        failed = json.loads((scratch / FAILED).read_text())
        if failed["kind"] == "Stopped" and not stop_requested:
            raise ProjectError(f"another machine was stopped or lost its run: {failed['what']}",
                               where=failed["where"], hint="the same commands on all machines resume")
        raise from_json(failed)
    if run.returncode:
        log_lines = (scratch / LOG).read_text(errors="replace").splitlines()
        killed = next((line.strip() for line in log_lines if "exitcode" in line), "no reason was given")
        raise LostProcess(f"one of {processes} training processes ended: {killed}; {scratch / LOG}",
                          hint="the same command resumes")


def _environment(processes: int, interface: str) -> dict[str, str]:
    """Return the environment of the torchrun of a round, whose processes share this machine's cores."""
    # torchrun's variables may say where the machines of the run meet; the processes of a round meet elsewhere.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // processes))
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # gloo would take the interface of the host's name, which may be loopback
    return {**({"GLOO_SOCKET_IFNAME": interface} if interface else {}), **inherited, "PYTHONPATH": paths,
            "OMP_NUM_THREADS": threads}


def _watch(run: subprocess.Popen[bytes], stop: Callable[[], bool], scratch: Path, machines: Machines | None) -> float:
    """Ask the processes to stop where `stop` says so, end them where a machine is lost; return when to look again."""
    if stop():
        (scratch / STOP).touch()
    if machines and machines.is_in_trouble():
        run.terminate()
    return LOOK


def _pass_on(line: bytes, say: Callable[[str], None], report: Callable[[Any], None]) -> None:
    """Pass on what a process reports; other lines are printed by libraries."""
    from xcmodels.training.loop import Progress

    try:
        message = json.loads(line)
    except ValueError:
        return
    if not isinstance(message, dict):
        return
    if "say" in message:
        say(message["say"])
    elif "progress" in message:
        report(Progress(**message["progress"]))
