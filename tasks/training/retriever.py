"""The build step of the retriever, the folder that answers queries."""

import json

from tasks.core.step import METRICS_FILE, StepContext
from tasks.training.mined_files import read_vectors
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method
from xcmodels.training.frozen_layers import with_states


def build_retriever(method: Method, context: StepContext) -> None:
    """Fit the scorer and write the folder that answers queries."""
    corpus = with_states(Corpus(context.inputs["corpus"]), context.inputs.get("states"))
    metrics = method.build_retriever(corpus, {stage.name: context.inputs[stage.name] for stage in method.stages},
                                     read_vectors(context.inputs.get("vectors")), context.out)
    (context.out / METRICS_FILE).write_text(json.dumps(metrics, indent=1, sort_keys=True) + "\n")
    if metrics:
        context.say(", ".join(f"{name} {value:,.6g}" for name, value in metrics.items()))
