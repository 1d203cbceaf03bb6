"""A process of test_distributed.py and test_distributed_machines.py, started by torchrun: torchrun_worker.py JOBS OUT.

Rounds are trained one by one: OUT/<number>, or the folder that the job names, gets the checkpoint of one, beside it
<folder>.steps those of its steps, and OUT/<number>.json its losses and the bytes of label tables per process.
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

BLOCK = 1000    # so that a table of the toy corpus is several blocks


def main(jobs: Path, out: Path) -> None:
    """Train every round in the pickled list `jobs`, together with the other processes."""
    torch.set_num_threads(1)
    distributed.BLOCK = BLOCK
    distributed.join()
    train(jobs, out)
    distributed.exit_process()


def train(jobs: Path, out: Path) -> None:
    """Train every round in the pickled list `jobs`; a job may stop after some steps, and another may resume it."""
    for number, job in enumerate(pickle.loads(jobs.read_bytes())):
        losses: list[float] = []

        def report(progress: Progress, losses: list[float] = losses) -> None:
            losses.append(progress.loss)

        stop_after = job.pop("stop_after", 0)

        def stop(losses: list[float] = losses, stop_after: int = stop_after) -> bool:
            return 0 < stop_after == len(losses)

        watch = Watch(report, stop, save_every=1e9)
        corpus, stage, round_ = Corpus(job.pop("corpus")), job.pop("stage"), job.pop("round")
        folder = job.pop("folder", out / str(number))
        folder.mkdir(exist_ok=True)
        model = stage.build(corpus, job["mined"].vectors)
        with suppress(Interrupted):
            train_round(stage, model, corpus, round_, scratch=folder.with_suffix(".steps"), out=folder, watch=watch,
                        **job)
        label_bytes = [None] * distributed.count()
        if distributed.count() > 1:
            dist.all_gather_object(label_bytes, _label_bytes(stage, model))
        else:
            label_bytes = [_label_bytes(stage, model)]
        if distributed.rank() == 0:
            (out / f"{number}.json").write_text(json.dumps({"losses": losses, "held": label_bytes}))


def _label_bytes(stage: object, model: object) -> int:
    """Return the bytes of label vectors and their optimiser moments in this process."""
    optimisers = Optimisers(model, stage.plan)  # type: ignore[arg-type, attr-defined]
    rows = [optimiser for name, optimiser in optimisers.rows.items() if name == "labels"]
    return sum(tensor.nbytes for optimiser in rows for tensor in [optimiser.table.weight, *optimiser.state().values()])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
