"""Steps of a pipeline: cache keys, execution, and a forecast of what is reused.

A step's key is the digest of its name, its settings, the code it runs and the digests of the artifacts it
reads. An artifact published under that key is the step's result for every run; so a second run repeats only what has
changed, and a killed run resumes where it was.
"""

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from data_contracts.errors import DamagedArtifact
from tasks.core.code_digest import code_digests
from tasks.core.dask_workers import Workers
from tasks.core.home import earlier_seconds
from tasks.core.memory import MemoryUse
from tasks.core.store import Artifact, Store, digest_of
from tasks.core.wording import leaves

METRICS_FILE = "metrics.json"    # in a step's result: what was measured while it was made
UNFINISHED = ".tmp"    # ends the name of a file that a step's action has not finished


@dataclass(frozen=True)
class StepContext:
    """The arguments of a step's action: where to write, what to read, and the workers to use."""

    out: Path
    inputs: Mapping[str, Path]     # verified folders, by role
    scratch: Path                  # outlives a killed run
    home: Path
    workers: Workers
    say: Callable[[str], None]     # one line of progress
    watch: "Watcher"               # opened around a training round


OnProgress = Callable[[Any], None]
Stop = Callable[[], bool]
Watcher = Callable[[str], AbstractContextManager[tuple[OnProgress, Stop]]]


@contextmanager
def unwatched(name: str) -> Iterator[tuple[OnProgress, Stop]]:
    """Ignore the progress of a round, and never stop it."""
    yield (lambda progress: None), (lambda: False)


@dataclass(frozen=True)
class Console:
    """How a step reports to the caller."""

    say: Callable[[str], None] = lambda line: None
    watch: Watcher = unwatched


@dataclass(frozen=True)
class Step:
    """One step of a pipeline.

    settings: plain data that decides the result; needs: role -> the name of the step whose artifact it reads;
    modules: those whose code (with all it imports) the result depends on; timing_group: steps of the same name and
    group take about as long.
    """

    name: str
    kind: str
    action: Callable[[StepContext], None]
    modules: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    can_overlap: bool = False    # a Dask worker can make it while later steps run that do not need it
    timing_group: str = ""

    def about(self) -> dict[str, Any]:
        """Return what the key is made of, apart from the inputs; stored in the manifest."""
        return {"step": self.name, "settings": to_jsonable_python(self.settings), "code": code_digests(*self.modules)}

    def inputs(self, done: Mapping[str, Artifact]) -> dict[str, str]:
        """Return the digests of the artifacts the step reads."""
        return {role: done[name].digest for role, name in self.needs.items()}

    def key(self, done: Mapping[str, Artifact]) -> str:
        """Return the step's key, given the artifacts of the steps before it."""
        return digest_of({**self.about(), "inputs": self.inputs(done)})

    def took(self, store: Store) -> float | None:
        """Return the seconds that the step took the last time; None where it never ran in `store`."""
        return self._last_run(store).get("seconds")

    def note_time(self, store: Store, seconds: float) -> None:
        """Store how long the step took, in all the parts that it was made in."""
        store.set_ref("timings", self._timing_ref, {"seconds": round(seconds, 3)})

    def peak_memory(self, store: Store) -> MemoryUse | None:
        """Return what the processes of its last run held together at most; None where that is not known."""
        known = self._last_run(store)
        return MemoryUse(known["bytes"], known["files"]) if "bytes" in known else None

    def note_memory(self, store: Store, peak: MemoryUse) -> None:
        """Store beside its time what the processes of its run held together at most."""
        store.set_ref("timings", self._timing_ref, {**self._last_run(store), **asdict(peak)})

    def _last_run(self, store: Store) -> dict[str, Any]:
        """Return what is known of the step's last run; of a damaged ref nothing, as of a step that never ran."""
        try:
            return store.get_ref("timings", self._timing_ref) or {}
        except DamagedArtifact:
            return {}

    @property
    def _timing_ref(self) -> str:
        return slug("-".join(f"{self.name} {self.timing_group}".split()))    # so that it needs no digest


@dataclass(frozen=True)
class StepResult:
    """A step's result, and whether it was reused."""

    artifact: Artifact
    reused: bool
    seconds: float


@dataclass(frozen=True)
class Forecast:
    """What a run would do with a step, and why."""

    step: str
    reuse: bool
    reason: str
    seconds: float | None         # of its last run; None where it never ran here
    peak_memory: MemoryUse | None = None    # by all processes of its last run together


def run(step: Step, done: Mapping[str, Artifact], store: Store, workers: Workers,
        console: Console = Console(), *, by_worker: bool = False) -> StepResult:
    """Return the step's result, computed now unless it is stored; with `by_worker`, a Dask worker computes it."""
    began = time.monotonic()
    key = step.key(done)
    if (artifact := store.find(key)) is not None:
        return StepResult(artifact, True, time.monotonic() - began)
    inputs = {role: store.open(done[name]) for role, name in step.needs.items()}
    scratch = store.scratch(key)

    def write(out: Path) -> None:
        if by_worker:
            for line in workers.call(_run_on_worker, step.action, out, inputs, scratch, store.home):
                console.say(line)
        else:
            step.action(StepContext(out, inputs, scratch, store.home, workers, console.say, console.watch))
        for leftover in out.rglob(f"*{UNFINISHED}"):    # of a worker that was killed
            leftover.unlink(missing_ok=True)

    with earlier_seconds(scratch) as before:
        artifact = store.publish(key, step.kind, step.inputs(done), write, step.about())
    store.drop_scratch(key)
    seconds = time.monotonic() - began
    if isfinite(before):
        step.note_time(store, before + seconds)
    return StepResult(artifact, False, seconds)


def _run_on_worker(action: Callable[[StepContext], None], out: Path, inputs: Mapping[str, Path], scratch: Path,
                   home: Path) -> list[str]:
    """Run a step's action on a worker, after removing what a lost worker left; return its lines of progress."""
    for leftover in out.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    lines: list[str] = []
    with Workers.of_this_job() as workers:
        action(StepContext(out, inputs, scratch, home, workers, lines.append, unwatched))
    return lines


def steps_to_remake(step: Step, steps: Mapping[str, Step], done: Mapping[str, Artifact], store: Store) -> list[Step]:
    """Return the steps, in order, whose results lack files and must be made again before `step` can run."""
    remade: dict[str, Step] = {}
    for name in step.needs.values():
        if name in done and store.lost(done[name]):
            remade |= {other.name: other for other in (*steps_to_remake(steps[name], steps, done, store), steps[name])}
    return list(remade.values())


def remake_inputs(step: Step, steps: Mapping[str, Step], done: dict[str, Artifact], store: Store,
                  run_now: Callable[[Step], Artifact]) -> None:
    """Make the inputs of `step` that lack files again, and replace them in `done`, unless its own result is stored."""
    if store.find(step.key(done)) is None:
        for name in step.needs.values():
            store.restore(done[name])    # a result that cannot be fetched as it was is lost from then on
        for incomplete in steps_to_remake(step, steps, done, store):
            store.forget(incomplete.key(done))
            done[incomplete.name] = run_now(incomplete)


def run_all(steps: Sequence[Step], store: Store, workers: Workers, console: Console = Console()) -> dict[str, Artifact]:
    """Run steps in order, in this process; return their artifacts by step name.

    Inputs of a step that lack files are made again first. Each line of progress begins with the step's name.
    """
    done: dict[str, Artifact] = {}
    by_name = {step.name: step for step in steps}

    def run_now(step: Step) -> Artifact:
        named = replace(console, say=lambda line: console.say(f"{step.name}: {line}"))
        return run(step, done, store, workers, named).artifact

    for step in steps:
        remake_inputs(step, by_name, done, store, run_now)
        done[step.name] = run_now(step)
    return done


def forecast(steps: Sequence[Step], store: Store) -> list[Forecast]:
    """Return for each step, in order, whether a run would reuse its result, and the first reason why not."""
    done: dict[str, Artifact] = {}
    readers: dict[str, str] = {}    # a step that is made again -> the step that reads its result
    by_name = {step.name: step for step in steps}
    earlier = [manifest for _, manifest in store.steps()]
    forecasts = []
    for step in steps:
        if missing := [name for name in step.needs.values() if name not in done]:
            reason = f"after {missing[0]}"
        elif (artifact := store.find_unfetched(step.key(done))) is not None:
            done[step.name] = artifact
            reason = "nothing it depends on has changed"
        else:
            reason = _difference(step, done, _closest(step, done, earlier, step.took(store)), step.took(store))
        if step.name not in done:
            readers = {other.name: step.name for other in steps_to_remake(step, by_name, done, store)} | readers
        forecasts.append(Forecast(step.name, step.name in done, reason, step.took(store), step.peak_memory(store)))
    return [replace(entry, reuse=False, reason=f"its files were removed, {readers[entry.step]} reads them")
            if entry.step in readers else entry for entry in forecasts]


def _closest(step: Step, done: Mapping[str, Artifact], earlier: Sequence[Mapping[str, Any]],
             took: float | None) -> Mapping[str, Any] | None:
    """Return the manifest of the step's earlier result that had most in common with it, of equals the last one.

    earlier: all manifests, the last used last. None where there is none; or where the step reads files that none of
    them read, and never ran on its data: those are of other data.
    """
    now = leaves({**step.about(), "inputs": step.inputs(done)})
    read = {name for name in now if name.startswith("settings.files.")} if took is None else set()
    best: Mapping[str, Any] | None = None
    most = -1
    for manifest in earlier:
        if manifest["about"].get("step") != step.name:
            continue
        then = leaves({**manifest["about"], "inputs": manifest["inputs"]})
        common = [name for name, value in now.items() if then.get(name) == value]
        if len(common) >= most and not (read and read.isdisjoint(common)):
            best, most = manifest, len(common)
    return best


def _difference(step: Step, done: Mapping[str, Artifact], last: Mapping[str, Any] | None, took: float | None) -> str:
    """Return the first difference from `last`, the manifest of an earlier result; took: seconds of the last run."""
    if last is None:
        return "never run here" if took is None else "its last result was removed"
    about, now = last["about"], step.about()
    for what, old, new in (("setting", about["settings"], now["settings"]), ("code of", about["code"], now["code"]),
                           ("input", last["inputs"], step.inputs(done))):
        before, after = leaves(old), leaves(new)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if changed:
            old_value, new_value = (_short(side.get(changed[0])) for side in (before, after))
            if changed[0].startswith("files."):    # of the data, or of a folder that is read
                return f"file {changed[0].removeprefix('files.')} changed"
            values = f" from {old_value} to {new_value}" if what == "setting" else ""
            return f"{what} {changed[0]} changed{values}"
    return "its result is gone"


def _short(value: Any) -> str:
    """Return a setting as text, a digest cut to its first 12 characters."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]{52}$", r"\1", str(value))


def slug(name: str) -> str:
    """Return `name` as a valid file name of at most 128 characters; one that has to change gets a digest of `name`."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    return kept if kept == name and 0 < len(kept) <= 128 else f"{kept[:111] or 'unnamed'}-{digest_of(name)[:16]}"
