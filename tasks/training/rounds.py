"""Training as steps: the rounds of a method, what is mined before each, and the retriever at the end."""

from functools import partial
from itertools import pairwise

from tasks.core.step import Step
from tasks.training.mining import embed_step, mine_step, modules
from tasks.training.recipe import Recipe
from tasks.training.retriever import build_retriever
from tasks.training.train_round import train


def steps(recipe: Recipe) -> list[Step]:
    """Return the steps from a corpus to a retriever, in order; `pack` makes the corpus."""
    method = recipe.make()
    out: list[Step] = []
    code = modules(method)
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
            out.append(Step(round_.name, "checkpoint", partial(train, recipe, round_.name),
                            ("tasks.training.train_round", *code),
                            {**method.settings(stage.name), "round": round_}, needs))
            models[stage.name] = round_.name
        if stage.name in followed:
            out.append(embed_step(method, stage.name, models[stage.name]))
            vectors = out[-1].name
    settings = {key: value for stage in method.stages() for key, value in method.settings(stage.name).items()}
    out.append(Step("build retriever", "retriever", partial(build_retriever, method, list(models)),
                    ("tasks.training.retriever", *code),
                    {**settings, **method.settings("retriever")},
                    {"corpus": "pack", **models, **({"vectors": vectors} if vectors else {})}))
    return out


