"""The steps from a corpus to a retriever, as data: a run publishes what each makes, `local_run` makes all in a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from xcmodels.method import Method, Round

MINE, TRAIN, EMBED, RETRIEVER = "mine", "train", "embed", "build retriever"


@dataclass(frozen=True)
class TrainingStep:
    """One step: what is done, of which stage and round, and the steps whose results it reads, by what those are to it.

    start: the checkpoint of the round before, to go on from, or to mine with. before: the last one of the stage before.
    mined, vectors: what was mined for the round, and the vectors that its stage works on. A retriever reads the last
    checkpoint of every stage, by the stage's name, and the vectors.
    """

    kind: str
    name: str
    stage: str = ""
    round: Round | None = None
    needs: Mapping[str, str] = field(default_factory=dict)


def training_steps(method: Method) -> list[TrainingStep]:
    """Return the steps in order."""
    steps: list[TrainingStep] = []
    newest: dict[str, str] = {}     # stage -> the step that made its newest checkpoint
    vectors = ""                    # the step that embedded with an encoder that is left as it is from then on
    followed = {before.name for before, stage in pairwise(method.stages)
                if stage.frozen or any(each.mines and each.source < 0 for each in stage.rounds)}
    for stage in method.stages:
        mined: dict[int, str] = {}  # source of what was mined -> the step that mined it
        for round_ in stage.rounds:
            needs = {"start": newest[stage.name]} if stage.name in newest else \
                {"before": list(newest.values())[-1]} if newest else {}
            if stage.frozen:
                needs["vectors"] = vectors
            if round_.mines:
                if round_.source not in mined:
                    source = {"vectors": vectors} if stage.frozen or round_.source < 0 else {
                        "start": stage.rounds[round_.source].name}
                    steps.append(TrainingStep(MINE, f"mine {round_.name}", stage.name, round_, source))
                    mined[round_.source] = steps[-1].name
                needs["mined"] = mined[round_.source]
            steps.append(TrainingStep(TRAIN, round_.name, stage.name, round_, needs))
            newest[stage.name] = round_.name
        if stage.name in followed:
            steps.append(TrainingStep(EMBED, f"embed {stage.name}", stage.name, needs={"model": newest[stage.name]}))
            vectors = steps[-1].name
    needs = {**newest, **({"vectors": vectors} if vectors else {})}
    return [*steps, TrainingStep(RETRIEVER, RETRIEVER, needs=needs)]
