"""The trained models become the folder that answers queries."""

import json

from tasks.core.step import Job
from tasks.training.mining import read_vectors
from xcmodels.data.corpus import Corpus
from xcmodels.method import Method


def build_retriever(method: Method, stages: list[str], job: Job) -> None:
    """Fit what combines the scores and write the folder that answers queries."""
    corpus = Corpus(job.inputs["corpus"])
    measured = method.retriever({stage: job.inputs[stage] for stage in stages}, corpus,
                                read_vectors(job.inputs.get("vectors")), job.out)
    (job.out / "metrics.json").write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
    if measured:
        job.say(", ".join(f"{name} {value:,.6g}" for name, value in measured.items()))
