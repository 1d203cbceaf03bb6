"""The plan of a run: its data set, its resolved settings and the list of its steps."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from data_contracts.errors import ProjectError, UsageError
from tasks.core.files import folder_digests
from tasks.core.remote import Source, is_address
from tasks.core.step import Step, StepContext
from tasks.core.store import digest_of
from tasks.data import prepare
from tasks.data.feedback.decisions import NO_FEEDBACK, Decisions
from tasks.data.feedback.journal import FeedbackJournal
from tasks.data.sources import RawDataSet, describe
from tasks.evaluation.evaluate import evaluate_step
from tasks.training.recipe import Recipe
from tasks.training.step_list import steps
from xcmodels.data.tokens import LEARNED, MINILM
from xcmodels.methods.presets import Settings, flat, resolve

# Kinds of step that may read a user's folder (a tokenizer or a model) -> the setting that names it.
_READ_FOLDERS = {"tokens": "prepare.tokenizer", **dict.fromkeys(("states", "mined", "checkpoint"), "encoder.source")}


@dataclass(frozen=True)
class Pipeline:
    """A run's data, settings and steps."""

    data: RawDataSet
    source: str    # the folder or the address of the data
    method_name: str
    preset: str
    settings: Settings
    prepare: Sequence[Step] = field(repr=False)
    train: Sequence[Step] = field(repr=False)
    evaluate: Step = field(repr=False)
    feedback: Decisions = field(default=NO_FEEDBACK, repr=False)

    @property
    def steps(self) -> list[Step]:
        """All steps in order."""
        return [*self.prepare, *self.train, self.evaluate]

    @property
    def key(self) -> str:
        """The digest of everything that decides the run: equal keys mean the same run."""
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
        """Return what repeats the run on the same data: method, preset, seed, changed settings, and all settings."""
        return {"method": self.method_name, "preset": self.preset, "seed": self.settings.seed,
                "changed": self.changed(), "settings": flat(self.settings)}


def resolve_run(data: Path, method: str, preset: str, overrides: dict[str, str]) -> tuple[RawDataSet, Settings]:
    """Detect the data set's format and resolve the settings, from the names of the files alone.

    Raises UsageError for a setting or a folder that is invalid.
    """
    recipe = Recipe(method, preset, overrides)
    settings, raw, built = recipe.settings(), describe(data), recipe.make()
    for key, value in flat(settings).items():
        named = key.endswith(tuple(_READ_FOLDERS.values())) and str(value).startswith(("/", ".", "~"))
        if named and not Path(value).is_dir():    # else a hub is asked for it, after all that comes before
            raise UsageError(f"{key} {value!r} is not a folder", hint="name one that is there, or a model of a hub")
    if settings.prepare.tokenizer == LEARNED and built.encoder.source == MINILM:
        raise UsageError(f"encoder.source {MINILM!r} has no embeddings of a vocabulary that is learned from the data",
                         hint="--preset cpu-learned, or --set encoder.source=random beside it")
    if built.needs_graphs and not (raw.anchors and settings.prepare.walks):
        raise UsageError(f"{method} pulls by metadata graphs, and {data} has no anchor set (<anchor>.raw.txt) to walk",
                         hint="add one (docs/data.md), leave prepare.walks true, or run its base instead")
    if raw.numbered and (settings.prepare.augment or built.needs_label_texts):
        raise UsageError(f"{method} as it is set learns from label texts, and {data} has a number for each label alone",
                         hint="xc run --method astra --preset cpu-numbered, or add a file with their texts")
    return raw, settings


def feedback_on(home: Path, name: str, recipe: Sequence[object], *, begin: bool = False) -> Decisions:
    """Return the decisions that a training of a model by `recipe` learns from; see `FeedbackJournal`.

    begin: it begins now. Raises DamagedArtifact where the journal is damaged.
    """
    journal, training = FeedbackJournal(home, name), digest_of(recipe)
    return Decisions.of(journal.begin(training) if begin else journal.read(journal.begun(training)),
                        f"feedback/{name}.jsonl")


def pipeline(data: Path, method: str, preset: str, overrides: dict[str, str],
             feedback: Decisions = NO_FEEDBACK, *, source: Source = "") -> Pipeline:
    """Plan a run; computes the digests of what it reads: the raw files, and folders that settings name.

    feedback: what it learns beside the data. source: the address that `data` is a copy of.
    Raises UsageError as `resolve_run` does.
    """
    raw, settings = resolve_run(data, method, preset, overrides)
    group = f"{raw.name} {method} {preset}"    # of runs that take about as long and as much memory
    return Pipeline(raw, str(source) if is_address(source) else str(raw.folder), method, preset, settings,
                    [_with_folder(replace(step, timing_group=raw.name), settings)
                     for step in prepare.steps(raw, settings.prepare, settings.seed, feedback)],
                    [_with_folder(replace(step, timing_group=group), settings)
                     for step in steps(Recipe(method, preset, overrides), prepare.tables_step(feedback))],
                    replace(evaluate_step(settings.seed), timing_group=group), feedback)


def _with_folder(step: Step, settings: Settings) -> Step:
    """Return the step with the digests of the user's folder that it reads, if any, as part of its key."""
    setting = _READ_FOLDERS.get(step.kind)
    folder = next((value for key, value in flat(settings).items() if setting and key.endswith(setting)), "")
    if folder in ("", LEARNED, MINILM, "random") or not Path(folder).is_dir():
        return step
    digests = folder_digests(Path(folder))
    return replace(step, settings={**step.settings, "files": digests},
                   action=partial(_run_if_unchanged, step.action, Path(folder).absolute(), digests))


def _run_if_unchanged(action: Callable[[StepContext], None], folder: Path, digests: Mapping[str, str],
                      context: StepContext) -> None:
    """Run a step's action. Raises ProjectError where the folder that it reads has changed before or after."""
    unchanged = folder_digests(folder) == digests
    if unchanged:
        action(context)
    if not unchanged or folder_digests(folder) != digests:
        shutil.rmtree(context.scratch, ignore_errors=True)    # it may hold a model begun with other files
        raise ProjectError(f"{folder} has changed since the run began",
                           hint="run the same command again when nothing writes to it any more")
