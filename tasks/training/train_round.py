"""The train step: one round of training, by this process or by several."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from data_contracts.errors import ProjectError, Stopped
from tasks.core.step import Job
from tasks.training.launcher import launch
from tasks.training.mined_files import read_mined
from tasks.training.recipe import Recipe
from xcmodels.data.corpus import Corpus
from xcmodels.nn import distributed
from xcmodels.training.checkpoint import OPTIMISER
from xcmodels.training.loop import Interrupted, Watch, train_round


def train(recipe: Recipe, name: str, job: Job) -> None:
    """Train the round called `name`, by one process or several; `metrics.json` has one entry per epoch."""
    if job.workers.processes > 1:
        launch(recipe, name, job)
        return
    method = recipe.make()
    round_ = method.round(name)
    stage = method.stage(round_.stage)
    corpus = Corpus(job.inputs["corpus"])
    mined = read_mined(job.inputs.get("mined"), job.inputs.get("vectors"))
    model = stage.build(corpus, mined.vectors)
    with job.watch(name) as (report, stop), _explained():
        metrics = train_round(stage, model, corpus, round_, mined, start=job.inputs.get("start"),
                              before=job.inputs.get("before"), scratch=job.scratch / "steps", out=job.out,
                              watch=Watch(report, stop))
    if distributed.rank() == 0:
        if round_ == stage.rounds[-1]:
            (job.out / OPTIMISER).unlink()    # no round continues from it, and it is two thirds of what was written
        (job.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
        others = [f"{name} {value:.4g}" for name, value in metrics[-1].items() if name not in ("epoch", "loss")]
        job.say(", ".join([f"loss {metrics[-1]['loss']:.4f}", *others]))


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors that end a round early into ones that a user can act on."""
    try:
        yield
    except Interrupted as error:
        raise Stopped(f"{error}; the same command resumes") from error
    except FloatingPointError as error:
        raise ProjectError(str(error), hint="the rounds before it are kept; change the setting, run again") from error
