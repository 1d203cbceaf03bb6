"""A follower takes part in the training of the leader's run: it fetches what a round reads, and trains.

Its inputs come from the address where the leader publishes results, so a follower needs neither the data nor steps of
its own.
"""

from collections.abc import Mapping
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError
from tasks.core.dask_workers import Workers
from tasks.core.machines import join
from tasks.core.network import Rendezvous
from tasks.core.shared_store import SharedStore
from tasks.core.step import Console, StepContext
from tasks.core.store import digest_of
from tasks.training.launcher import LostProcess, train_here
from tasks.training.recipe import Recipe

# Key of this machine's scratch folder, which belongs to no step.
SCRATCH = digest_of("the rounds in which this machine takes part")


def follow(rendezvous: Rendezvous, store: SharedStore, processes: int, console: Console) -> list[str]:
    """Take part in every round of the run that is led at `rendezvous`; return their names.

    Raises the error that ended the leader's run. An error on this machine is raised here and ends the leader's run as
    well.
    """
    rounds: list[str] = []
    with store.run_lock(), join(rendezvous) as machines:
        console.say(f"machine {machines.number} of {rendezvous.count}, led from {rendezvous}")
        store.sweep()
        workers = Workers(count=0, processes=processes, machines=machines)
        try:
            while task := machines.next_task():
                inputs = {role: _fetched(store, each, role, task["round"]) for role, each in task["inputs"].items()}
                recipe = Recipe(**task["recipe"])
                _check_code(recipe.code(task["round"]), task["code"])
                store.drop_scratch(SCRATCH)
                scratch = store.scratch(SCRATCH)
                (scratch / "out").mkdir()
                console.say(f"    trains {task['round']}")
                machines.ready()
                train_here(recipe, task["round"], StepContext(scratch / "out", inputs, scratch, store.home, workers,
                                                              console.say, console.watch),
                           machines.torchrun_options(task["port"]))
                rounds.append(task["round"])
        except LostProcess as error:
            machines.fail(error)
            raise machines.why_lost() or error from error
        store.drop_scratch(SCRATCH)
    return rounds


def _fetched(store: SharedStore, result: Mapping[str, str], role: str, name: str) -> Path:
    """Return the folder of a result, fetched unless it is here; raise ProjectError where it is not at the address."""
    artifact = store.find_unfetched(result["key"])
    if artifact is None or artifact.digest != result["digest"]:
        raise ProjectError(f"{store.remote.address} has {'no' if artifact is None else 'another'} {role} for {name}",
                           hint="give all machines the same --store, of this run alone; the same commands resume")
    return store.open(artifact)


def _check_code(ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    if wrong := sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)):
        raise UsageError(f"the code of {wrong[0]} is not that of machine 0",
                         hint="install the same version of xcflow on all machines")
