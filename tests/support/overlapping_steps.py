"""Steps of test_run_overlap.py: a Dask worker imports this module for what it makes, and not Prefect."""

import time

from data_contracts.errors import Stopped
from tasks.core.step import StepContext


def fail_once(context: StepContext) -> None:
    """A refresh whose first attempt loses its disk."""
    mark = context.home / "failed"
    if not mark.exists():
        mark.touch()
        raise ConnectionResetError("the shared folder is gone for a moment")
    context.say("mined")
    (context.out / "mined").write_text("x")


def fail_always(context: StepContext) -> None:
    """A refresh that cannot be made."""
    raise ValueError("no negative is left")


def train(context: StepContext) -> None:
    """A round, which takes a while."""
    with (context.home / "trained").open("a") as log:
        log.write(context.out.name + "\n")
    time.sleep(1)
    (context.out / "model").write_text("x")


def mine(context: StepContext) -> None:
    """A refresh that tells when it begins."""
    (context.home / "mining").touch()
    (context.out / "mined").write_text("x")


def train_until_mined(context: StepContext) -> None:
    """A round that ends once the refresh has begun."""
    for _ in range(600):
        if (context.home / "mining").exists():
            return train(context)
        time.sleep(0.1)
    raise TimeoutError("nothing was mined in a minute of training")


def wait_long(context: StepContext) -> None:
    """A refresh that takes long."""
    time.sleep(200)


def stop(context: StepContext) -> None:
    """A round that is asked to stop once the refresh is under way."""
    time.sleep(2)
    raise Stopped("saved at step 7; the same command resumes")
