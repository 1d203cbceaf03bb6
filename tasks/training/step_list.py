"""The training steps of a run: their inputs, settings, code and actions."""

from functools import partial

from tasks.core.step import Step
from tasks.training.embed import embed
from tasks.training.frozen_layers import run_frozen_layers
from tasks.training.mining import mine
from tasks.training.recipe import Recipe, modules_of
from tasks.training.retriever import build_retriever
from tasks.training.train_round import train
from xcmodels.method import Method
from xcmodels.training.step_graph import EMBED, FROZEN, MINE, TRAIN, TrainingStep, training_steps


def steps(recipe: Recipe, tables: str = "read") -> list[Step]:
    """Return the steps from the corpus, which `pack` makes, to the retriever; tables: the step of its tables."""
    method = recipe.make()
    return [_step(recipe, method, step, tables) for step in training_steps(method)]


def _step(recipe: Recipe, method: Method, step: TrainingStep, tables: str) -> Step:
    needs = {"corpus": "pack", **step.needs}
    if step.kind == FROZEN:
        return Step(step.name, "states", partial(run_frozen_layers, method.encoder, method.needs_graphs),
                    ("tasks.training.frozen_layers",),
                    {"encoder": method.encoder.settings_of_states, "graphs": method.needs_graphs}, needs)
    if not step.stage:
        settings = {key: value for stage in method.stages for key, value in stage.settings.items()}
        return Step(step.name, "retriever", partial(build_retriever, method),
                    ("tasks.training.retriever", *modules_of(method.build_retriever)),
                    {**settings, **method.build_retriever.settings}, needs)
    stage = method.stage(step.stage)
    settings = {**stage.settings, **({"round": step.round} if step.round else {})}
    code = modules_of(stage)
    if step.kind == EMBED:
        return Step(step.name, "vectors", partial(embed, stage), ("tasks.training.embed", *code), settings, needs,
                    can_overlap=True)
    assert step.round is not None
    if step.kind == MINE:
        return Step(step.name, "mined", partial(mine, stage, step.round), ("tasks.training.mining", *code), settings,
                    {"tables": tables, **needs}, can_overlap=True)
    assert step.kind == TRAIN
    return Step(step.name, "checkpoint", partial(train, recipe, step.name), ("tasks.training.train_round", *code),
                settings, needs)
