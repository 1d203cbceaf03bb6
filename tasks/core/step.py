"""Steps: what a pipeline is made of, and how one is run at most once for the same inputs.

A step's key is the digest of its name, its settings, the code it runs and the digests of the artifacts it
reads. An artifact published under that key is the step's result, whoever asks and whenever; so a second run redoes
nothing that has not changed, and a run that was killed goes on where it was.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from tasks.core.code_digest import code_digests
from tasks.core.dask_workers import Workers
from tasks.core.store import Artifact, Store, digest_of


@dataclass(frozen=True)
class Job:
    """What the action of a step is given: where to write, what to read, who helps."""

    out: Path
    inputs: Mapping[str, Path]     # verified folders, by role
    scratch: Path                  # outlives a killed run
    home: Path
    workers: Workers
    say: Callable[[str], None]     # one line of progress
    watch: "Watcher"               # opened around a training round


Report = Callable[[Any], None]
Stop = Callable[[], bool]
Watcher = Callable[[str], AbstractContextManager[tuple[Report, Stop]]]


@contextmanager
def unwatched(name: str) -> Iterator[tuple[Report, Stop]]:
    """Watch a round without telling anybody, and never stop it."""
    yield (lambda progress: None), (lambda: False)


@dataclass(frozen=True)
class Console:
    """How a step talks to whoever started it."""

    say: Callable[[str], None] = lambda line: None
    watch: Watcher = unwatched


@dataclass(frozen=True)
class Step:
    """One step of a pipeline.

    settings: plain data that decides the result; needs: role -> the name of the step whose artifact it reads;
    modules: those whose code (with all it imports) the result depends on; of: what it works on and how, in a name:
    steps of one name and one `of` take about as long.
    """

    name: str
    kind: str
    action: Callable[[Job], None]
    modules: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    can_overlap: bool = False    # a Dask worker can make it while later steps run that do not need it
    of: str = ""

    def about(self) -> dict[str, Any]:
        """Return what the key is made of, beside the inputs; it is kept in the manifest."""
        return {"step": self.name, "settings": plain(self.settings), "code": code_digests(*self.modules)}

    def inputs(self, done: Mapping[str, Artifact]) -> dict[str, str]:
        """Return the digests of the artifacts the step reads."""
        return {role: done[name].digest for role, name in self.needs.items()}

    def key(self, done: Mapping[str, Artifact]) -> str:
        """Return the step's key, given the artifacts of the steps before it."""
        return digest_of({**self.about(), "inputs": self.inputs(done)})

    def took(self, store: Store) -> float | None:
        """Return the seconds that it took the last time; None where it never ran in `store`."""
        return (store.get_ref("timings", self._timing) or {}).get("seconds")

    def note_time(self, store: Store, seconds: float) -> None:
        """Keep what it took."""
        store.set_ref("timings", self._timing, {"seconds": round(seconds, 3)})

    @property
    def _timing(self) -> str:
        return slug(f"{self.name} {self.of}")


@dataclass(frozen=True)
class Done:
    """A step's result, and whether it had to be made."""

    artifact: Artifact
    reused: bool
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What a run would do with a step, and why."""

    step: str
    reuse: bool
    reason: str
    seconds: float | None    # what it took the last time; None where it never ran here


def run(step: Step, done: Mapping[str, Artifact], store: Store, workers: Workers,
        console: Console = Console(), *, by_worker: bool = False) -> Done:
    """Return the step's artifact, made now unless it is there already; `by_worker` has a Dask worker make it."""
    began = time.monotonic()
    key = step.key(done)
    if (found := store.find(key)) is not None:
        return Done(found, True, time.monotonic() - began)
    inputs = {role: store.open(done[name]) for role, name in step.needs.items()}

    def write(out: Path) -> None:
        scratch = store.scratch(key)
        if by_worker:
            for line in workers.call(_elsewhere, step.action, out, inputs, scratch, store.home):
                console.say(line)
        else:
            step.action(Job(out, inputs, scratch, store.home, workers, console.say, console.watch))

    artifact = store.publish(key, step.kind, step.inputs(done), write, step.about())
    store.drop_scratch(key)
    seconds = time.monotonic() - began
    step.note_time(store, seconds)
    return Done(artifact, False, seconds)


def _elsewhere(action: Callable[[Job], None], out: Path, inputs: Mapping[str, Path], scratch: Path,
               home: Path) -> list[str]:
    """Make a step's result in a worker, from nothing if another one began it; return what it said."""
    for left in out.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    said: list[str] = []
    action(Job(out, inputs, scratch, home, Workers(), said.append, unwatched))
    return said


def made_again(step: Step, steps: Mapping[str, Step], done: Mapping[str, Artifact], store: Store) -> list[Step]:
    """Return the steps, in order, whose results were spent and are to be made again before `step` can read them."""
    out: dict[str, Step] = {}
    for name in step.needs.values():
        if name in done and store.spent(done[name]):
            out |= {each.name: each for each in (*made_again(steps[name], steps, done, store), steps[name])}
    return list(out.values())


def run_all(steps: Sequence[Step], store: Store, workers: Workers, console: Console = Console()) -> dict[str, Artifact]:
    """Run steps in order, in this process; return the artifact of each by its step's name.

    What a step reads and is spent is made again first.
    """
    done: dict[str, Artifact] = {}
    names = {step.name: step for step in steps}
    for step in steps:
        if store.find(step.key(done)) is None:
            for each in made_again(step, names, done, store):
                store.forget(each.key(done))
                done[each.name] = run(each, done, store, workers, console).artifact
        done[step.name] = run(step, done, store, workers, console).artifact
    return done


def forecast(steps: Sequence[Step], store: Store) -> list[Forecast]:
    """Say for each step, in order, whether a run would reuse it, and the first reason why not."""
    done: dict[str, Artifact] = {}
    spent: dict[str, str] = {}    # a step that is made again -> the one that reads what it made
    names = {step.name: step for step in steps}
    latest: dict[str, dict[str, Any]] = {}
    for _, manifest in store.steps():
        latest[manifest["about"].get("step", "")] = manifest
    out = []
    for step in steps:
        missing = [name for name in step.needs.values() if name not in done]
        if missing:
            reason = f"after {missing[0]}"
        elif (found := store.find(step.key(done))) is not None:
            done[step.name] = found
            reason = "nothing it depends on has changed"
        else:
            reason = _difference(step, done, latest.get(step.name))
        if step.name not in done:
            spent = {each.name: step.name for each in made_again(step, names, done, store)} | spent
        out.append(Forecast(step.name, step.name in done, reason, step.took(store)))
    return [replace(each, reuse=False, reason=f"its files were removed, {spent[each.step]} reads them")
            if each.step in spent else each for each in out]


def plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: dataclasses as dicts, paths as strings."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _difference(step: Step, done: Mapping[str, Artifact], last: Mapping[str, Any] | None) -> str:
    """Return the first thing that differs from the last time the step ran."""
    if last is None:
        return "never run here"
    about, now = last["about"], step.about()
    for what, old, new in (("setting", about["settings"], now["settings"]), ("code of", about["code"], now["code"]),
                           ("input", last["inputs"], step.inputs(done))):
        before, after = _leaves(old), _leaves(new)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if changed:
            was, is_now = (_short(each.get(changed[0])) for each in (before, after))
            values = f" from {was} to {is_now}" if what == "setting" else ""
            return f"{what} {changed[0]} changed{values}"
    return "its result is gone"


def _leaves(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as one level of dotted names."""
    out: dict[str, Any] = {}
    for key, each in value.items():
        out |= _leaves(each, f"{prefix}{key}.") if isinstance(each, Mapping) else {f"{prefix}{key}": each}
    return out


def _short(value: Any) -> str:
    """Return a setting as a line has room for it: the beginning of a digest."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]{52}$", r"\1", str(value))


def slug(name: str) -> str:
    """Return `name` as a file may be called, in at most 128 characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:128] or "unnamed"
