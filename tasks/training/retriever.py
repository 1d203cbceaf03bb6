"""The build step of the retriever, the folder that answers queries."""

import json

from tasks.core.step import Job
from tasks.training.mined_files import read_vectors
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method


def build_retriever(method: Method, job: Job) -> None:
    """Fit the scorer and write the folder that answers queries."""
    corpus = Corpus(job.inputs["corpus"])
    metrics = method.build_retriever(corpus, {stage.name: job.inputs[stage.name] for stage in method.stages},
                                     read_vectors(job.inputs.get("vectors")), job.out)
    (job.out / "metrics.json").write_text(json.dumps(metrics, indent=1, sort_keys=True) + "\n")
    if metrics:
        job.say(", ".join(f"{name} {value:,.6g}" for name, value in metrics.items()))
