"""Training as steps: the rounds of a method, what is mined before each, and the retriever at the end."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from data_contracts.errors import ProjectError, Stopped
from tasks.recipe import Recipe
from tasks.refresh import embed_step, mine_step, modules, read_mined, read_vectors
from tasks.spread import spread
from tasks.steps import Job, Step
from xcmodels import together
from xcmodels.checkpoint import OPTIMISER
from xcmodels.corpus import Corpus
from xcmodels.method import Method
from xcmodels.training import Interrupted, Watch, train_round


def steps(recipe: Recipe) -> list[Step]:
    """Return the steps from a corpus to a retriever, in order; `pack` makes the corpus."""
    method = recipe.make()
    out: list[Step] = []
    code = ("tasks.train", *modules(method))
    models: dict[str, str] = {}     # stage -> the step that made its newest checkpoint
    vectors = ""                    # the step that embedded with an encoder that is left as it is from then on
    mined_at_once = {each.stage for each in method.rounds() if each.mines and each.source < 0}
    followed = {before.name for before, stage in pairwise(method.stages())
                if stage.frozen or stage.name in mined_at_once}
    for stage in method.stages():
        mined: dict[int, str] = {}  # source of what was mined -> the step that mined it
        for round_ in (each for each in method.rounds() if each.stage == stage.name):
            needs = {"corpus": "pack"}
            if stage.name in models:
                needs["start"] = models[stage.name]
            elif models:
                needs["before"] = list(models.values())[-1]
            if stage.frozen:
                needs["vectors"] = vectors
            if round_.mines:
                if round_.source not in mined:
                    taken = {"vectors": vectors} if stage.frozen or round_.source < 0 else {
                        "start": f"{stage.name} round {round_.source}"}
                    out.append(mine_step(method, round_, taken))
                    mined[round_.source] = out[-1].name
                needs["mined"] = mined[round_.source]
            out.append(Step(round_.name, "checkpoint", partial(train, recipe, round_.name), code,
                            {**method.settings(stage.name), "round": round_}, needs))
            models[stage.name] = round_.name
        if stage.name in followed:
            out.append(embed_step(method, stage.name, models[stage.name]))
            vectors = out[-1].name
    settings = {key: value for stage in method.stages() for key, value in method.settings(stage.name).items()}
    out.append(Step("build retriever", "retriever", partial(build_retriever, method, list(models)), code,
                    {**settings, **method.settings("retriever")},
                    {"corpus": "pack", **models, **({"vectors": vectors} if vectors else {})}))
    return out


def train(recipe: Recipe, name: str, job: Job) -> None:
    """Train the round of a name, by one process or several; `metrics.json` holds one entry an epoch."""
    if job.workers.processes > 1:
        spread(recipe, name, job)
        return
    method = recipe.make()
    (round_,) = [each for each in method.rounds() if each.name == name]
    corpus = Corpus(job.inputs["corpus"])
    mined = read_mined(job.inputs.get("mined"), job.inputs.get("vectors"))
    model = method.build(corpus, round_.stage, mined.vectors)
    with job.watch(name) as (report, stop), _stoppable():
        metrics = train_round(method, model, corpus, round_, mined, start=job.inputs.get("start"),
                              before=job.inputs.get("before"), scratch=job.scratch / "steps", out=job.out,
                              watch=Watch(report, stop))
    if together.rank() == 0:
        if round_ == [each for each in method.rounds() if each.stage == round_.stage][-1]:
            (job.out / OPTIMISER).unlink()    # no round goes on from it, and it is two thirds of what was written
        (job.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
        told = [f"{name} {value:.4g}" for name, value in metrics[-1].items() if name not in ("epoch", "loss")]
        job.say(", ".join([f"loss {metrics[-1]['loss']:.4f}", *told]))


def build_retriever(method: Method, stages: list[str], job: Job) -> None:
    """Fit what combines the scores and write the folder that answers queries."""
    corpus = Corpus(job.inputs["corpus"])
    measured = method.retriever({stage: job.inputs[stage] for stage in stages}, corpus,
                                read_vectors(job.inputs.get("vectors")), job.out)
    (job.out / "metrics.json").write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
    if measured:
        job.say(", ".join(f"{name} {value:,.6g}" for name, value in measured.items()))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn what ends a round early into errors that a user can act on."""
    try:
        yield
    except Interrupted as error:
        raise Stopped(f"{error}; the same command resumes") from error
    except FloatingPointError as error:
        raise ProjectError(str(error), hint="the rounds before it are kept; change the setting, run again") from error
