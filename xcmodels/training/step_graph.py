"""The steps from a corpus to a retriever, as data: run the frozen layers, mine, train, embed, build."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from xcmodels.method import Method, Round, Stage

FROZEN, MINE, TRAIN, EMBED, RETRIEVER = "frozen layers", "mine", "train", "embed", "build retriever"


@dataclass(frozen=True)
class TrainingStep:
    """One step: its kind, stage and round, and the steps whose results it reads, by role.

    Roles: start, the checkpoint of an earlier round, to resume from or to mine with; before, the last one of the stage
    before; mined, the mining result; vectors, the fixed vectors that its stage trains on. A retriever reads the last
    checkpoint of every stage, by the stage's name, and the vectors. Mining without start or vectors is by the model of
    the first stage as it begins. Where frozen layers run once, all that encodes texts reads their states: states.
    """

    kind: str
    name: str
    stage: str = ""
    round: Round | None = None
    needs: Mapping[str, str] = field(default_factory=dict)


def training_steps(method: Method) -> list[TrainingStep]:
    """Return the steps of a method in order: a run publishes each result, `local_run` runs them in one process."""
    states = {"states": FROZEN} if method.encoder.keeps_states else {}
    steps = [TrainingStep(FROZEN, FROZEN)] if states else []
    newest: dict[str, str] = {}     # stage -> the step that made its newest checkpoint
    vectors = ""                    # the step that embedded with an encoder that is fixed from then on
    embedded = {before.name for before, stage in pairwise(method.stages)
                if any(_reads_vectors_before(stage, round_) for round_ in stage.rounds)}
    for stage in method.stages:
        mined: dict[int, str] = {}  # index of the round whose model mines -> the step that mined
        for round_ in stage.rounds:
            if round_.mines and round_.mined_by not in mined:
                if not _reads_vectors_before(stage, round_):
                    needs = {"start": stage.rounds[round_.mined_by].name, **states}
                else:    # there are none before the first stage
                    needs = {"vectors": vectors} if vectors else states
                steps.append(TrainingStep(MINE, f"mine {round_.name}", stage.name, round_, needs))
                mined[round_.mined_by] = steps[-1].name
            if stage.name in newest:
                needs = {"start": newest[stage.name]}
            else:
                needs = {"before": list(newest.values())[-1]} if newest else {}
            needs |= {"vectors": vectors} if stage.on_fixed_vectors else states
            if round_.mines:
                needs["mined"] = mined[round_.mined_by]
            steps.append(TrainingStep(TRAIN, round_.name, stage.name, round_, needs))
            newest[stage.name] = round_.name
        if stage.name in embedded:
            steps.append(TrainingStep(EMBED, f"embed {stage.name}", stage.name,
                                      needs={"model": newest[stage.name], **states}))
            vectors = steps[-1].name
    needs = {**newest, **({"vectors": vectors} if vectors else {}), **states}
    return [*steps, TrainingStep(RETRIEVER, RETRIEVER, needs=needs)]


def _reads_vectors_before(stage: Stage[Any], round_: Round) -> bool:
    """Return whether a round trains or mines on vectors by the model that the stage before ends with."""
    return stage.on_fixed_vectors or (round_.mines and round_.mined_by < 0)
