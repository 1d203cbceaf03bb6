"""From a run's configuration to the list of its steps."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import ProjectError, UsageError
from tasks.core.files import folder_digests
from tasks.core.step import Job, Step
from tasks.core.store import digest_of
from tasks.data import prepare
from tasks.data.sources import RawDataSet, describe
from tasks.evaluation.evaluate import evaluate_step
from tasks.training import steps as training
from tasks.training.recipe import Recipe
from xcmodels.data.tokens import LEARNED, MINILM
from xcmodels.methods.presets import Settings, flat, resolve
from xcmodels.methods.registry import METHODS

# Steps by kind, and the setting by which they may read a folder of the user's, a tokenizer's or a model's.
_READ_FOLDERS = {"tokens": "prepare.tokenizer", "checkpoint": "encoder.source"}

@dataclass(frozen=True)
class Pipeline:
    """A run's data, settings and steps."""

    data: RawDataSet
    method_name: str
    preset: str
    settings: Settings
    prepare: Sequence[Step] = field(repr=False)
    train: Sequence[Step] = field(repr=False)
    evaluate: Step = field(repr=False)

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [*self.prepare, *self.train, self.evaluate]

    @property
    def key(self) -> str:
        """The digest of everything that decides the run: the same key, the same run."""
        return digest_of([step.about() for step in self.steps])

    @property
    def data_digest(self) -> str:
        """The digest of the raw files."""
        return digest_of(self.prepare[0].settings["files"])

    def changed(self) -> dict[str, object]:
        """Return the settings that differ from the preset's."""
        preset = flat(resolve(self.method_name, self.preset, {}))
        return {key: value for key, value in flat(self.settings).items() if value != preset[key]}

    def about(self) -> dict[str, Any]:
        """Return what repeats the run on the same data: method, preset, seed, what was changed, and every setting."""
        return {"method": self.method_name, "preset": self.preset, "seed": self.settings.seed,
                "changed": self.changed(), "settings": flat(self.settings)}


def timing_key(data: str, method: str, preset: str) -> str:
    """Return what runs are called alike by that take about as long and as much memory."""
    return f"{data} {method} {preset}"


def resolve_run(data: Path, method: str, preset: str, overrides: dict[str, str]) -> tuple[RawDataSet, Settings]:
    """Return what a run is to work on and how, from the names of its files alone.

    Raises UsageError for a setting or a folder that is invalid.
    """
    try:
        settings = resolve(method, preset, overrides)
    except ValueError as error:
        raise UsageError(str(error), hint="xc presets") from error
    raw = describe(data)
    made = METHODS[method].make(settings.method)
    if made.needs_graphs and not (raw.anchors and settings.prepare.walks):
        raise UsageError(f"{method} pulls by metadata graphs, and {data} has no anchor set (<anchor>.raw.txt) to walk",
                         hint="add one (docs/data.md), leave prepare.walks true, or run its base instead")
    if raw.numbered and (settings.prepare.augment or made.needs_label_texts):
        raise UsageError(f"{method} as it is set learns from label texts, and {data} has a number for each label alone",
                         hint="xc run --method astra --preset cpu-numbered, or add a file with their texts")
    return raw, settings


def pipeline(data: Path, method: str, preset: str, overrides: dict[str, str]) -> Pipeline:
    """Lay out a run; this digests what it reads: the raw files, and folders that settings name.

    Raises UsageError as `resolve_run` does.
    """
    raw, settings = resolve_run(data, method, preset, overrides)
    job = timing_key(raw.name, method, preset)
    preparation = prepare.steps(raw, settings.prepare, settings.seed)
    trained = training.steps(Recipe(method, preset, overrides))
    return Pipeline(raw, method, preset, settings,
                    [_reading(replace(step, of=raw.name), settings) for step in preparation],
                    [_reading(replace(step, of=job), settings) for step in trained],
                    replace(evaluate_step(settings.seed), of=job))


def _reading(step: Step, settings: Settings) -> Step:
    """Return a step whose key has the digests of the folder that it reads beside its inputs, where it reads one."""
    setting = _READ_FOLDERS.get(step.kind)
    folder = next((value for key, value in flat(settings).items() if setting and key.endswith(setting)), "")
    if folder in ("", LEARNED, MINILM, "random") or not Path(folder).is_dir():
        return step
    found = folder_digests(Path(folder))
    return replace(step, settings={**step.settings, "files": found},
                   action=partial(_unchanged, step.action, Path(folder).absolute(), found))


def _unchanged(action: Callable[[Job], None], folder: Path, digests: Mapping[str, str], job: Job) -> None:
    """Make a step's result; ProjectError where the folder that it reads is another one before or after."""
    before = folder_digests(folder) == digests
    if before:
        action(job)
    if not before or folder_digests(folder) != digests:
        shutil.rmtree(job.scratch, ignore_errors=True)    # it may hold a model that was begun with other files
        raise ProjectError(f"{folder} has changed since the run began",
                           hint="run the same command again when nothing writes to it any more")
