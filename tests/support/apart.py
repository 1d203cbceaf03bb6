"""What each process of test_together does: `torchrun tests/support/apart.py JOBS OUT` trains rounds, one by one.

OUT/<number> takes what a round ends with, OUT/<number>.json its losses, and the bytes of tables that each process held.
"""

import json
import pickle
import sys
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from xcmodels.data.corpus import Corpus
from xcmodels.nn import distributed
from xcmodels.training.loop import Interrupted, Progress, Watch, train_round
from xcmodels.training.optimisers import Optimisers


def main(jobs: Path, out: Path) -> None:
    """Train every round of the file; a round may be stopped after some steps, to be gone on with by others."""
    torch.set_num_threads(1)
    distributed.join()
    for number, job in enumerate(pickle.loads(jobs.read_bytes())):
        losses: list[float] = []

        def report(progress: Progress, losses: list[float] = losses) -> None:
            losses.append(progress.loss)

        stop_after = job.pop("stop_after", 0)
        watch = Watch(report, lambda losses=losses, stop_after=stop_after: len(losses) == stop_after, save_every=1e9)
        corpus, stage, round_ = Corpus(job.pop("corpus")), job.pop("stage"), job.pop("round")
        folder = out / str(number)
        folder.mkdir(exist_ok=True)
        model = stage.build(corpus, job["mined"].vectors)
        with suppress(Interrupted):
            train_round(stage, model, corpus, round_, scratch=out / f"{number}.steps", out=folder, watch=watch, **job)
        told = [None] * distributed.count()
        if distributed.count() > 1:
            dist.all_gather_object(told, _held(stage, model))
        else:
            told = [_held(stage, model)]
        if distributed.rank() == 0:
            (out / f"{number}.json").write_text(json.dumps({"losses": losses, "held": told}))
    distributed.leave()


def _held(stage: object, model: object) -> int:
    """Return the bytes of label vectors and their moments."""
    optimisers = Optimisers(model, model.tables(), stage.plan)  # type: ignore[arg-type, attr-defined]
    tables = [each for name, each in optimisers.rows.items() if name == "labels"]
    return sum(tensor.nbytes for each in tables for tensor in [each.table.weight, *each.state().values()])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
