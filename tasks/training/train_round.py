"""The train step: one round of training, by this process or by several."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from data_contracts.errors import ProjectError, Stopped
from tasks.core.home import CHECKPOINTS
from tasks.core.step import METRICS_FILE, StepContext
from tasks.training.launcher import launch
from tasks.training.mined_files import load_mined
from tasks.training.recipe import Recipe
from xcmodels.data.corpus import Corpus
from xcmodels.nn import distributed
from xcmodels.training.checkpoint import OPTIMISER
from xcmodels.training.frozen_layers import with_states
from xcmodels.training.loop import Interrupted, Watch, train_round


def train(recipe: Recipe, name: str, context: StepContext) -> None:
    """Train the round called `name`, by one process or several; `metrics.json` has one entry per epoch."""
    if context.workers.processes > 1 or context.workers.machines:
        launch(recipe, name, context)
        return
    method = recipe.make()
    round_ = method.round(name)
    stage = method.stage(round_.stage)
    corpus = with_states(Corpus(context.inputs["corpus"]), context.inputs.get("states"))
    mined = load_mined(context.inputs.get("mined"), context.inputs.get("vectors"))
    model = stage.build(corpus, mined.vectors)
    with context.watch(name) as (report, stop), _explained():
        metrics = train_round(stage, model, corpus, round_, mined, start=context.inputs.get("start"),
                              before=context.inputs.get("before"), scratch=context.scratch / CHECKPOINTS,
                              out=context.out, watch=Watch(report, stop))
    if distributed.rank() == 0:
        if round_ == stage.rounds[-1]:
            (context.out / OPTIMISER).unlink()    # no round continues from it, and it is two thirds of what was written
        (context.out / METRICS_FILE).write_text(json.dumps(metrics, indent=1) + "\n")
        others = [f"{name} {value:.4g}" for name, value in metrics[-1].items() if name not in ("epoch", "loss")]
        context.say(", ".join([f"loss {metrics[-1]['loss']:.4f}", *others]))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors that end a round early into ones that a user can act on."""
    try:
        yield
    except Interrupted as error:
        raise Stopped(f"{error}; the same command resumes") from error
    except FloatingPointError as error:
        raise ProjectError(str(error), hint="the rounds before it are kept; change the setting, run again") from error
