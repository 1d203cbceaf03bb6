"""A refresh beside the training that does not wait for it: the same model, and a retry that costs no training."""

import os
import time

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from data_contracts.errors import Stopped
from flows.config import RunConfig
from flows.progress import Terminal
from flows.run import Runner, open_run
from tasks.core.dask_workers import Workers
from tasks.core.step import Step
from tasks.core.store import Store
from tasks.plan import pipeline
from tests.e2e.test_run_methods import ASTRA_ALONE
from tests.support.home_services import prefect_client
from tests.support.overlapping_steps import fail_always, fail_once, mine, stop, train, train_until_mined, wait_long
from tests.support.run_command import objects, prepared


def latest(name: str):
    """Return what Prefect's server knows of the latest task run of a name."""
    from prefect.client.schemas.sorting import TaskRunSort

    with prefect_client() as client:
        runs = client.read_task_runs(sort=TaskRunSort.EXPECTED_START_TIME_DESC, limit=200)
    return next(run for run in runs if run.name == name)


def test_what_is_mined_with_an_older_model_is_the_same_beside_training(whole, planted, xc, tmp_path):
    """With `ahead` 2, epoch 4 has the negatives of the model of epoch 2: epochs 2 and 3 train meanwhile."""
    chosen = ASTRA_ALONE | {"ahead": "2", "epochs": "6", "refresh_from": "2", "refresh_every": "2"}
    settings = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    made = {}
    for overlap in ("always", "never"):
        home = prepared(whole[0], tmp_path / overlap)
        code, _, said = xc("train", "--data", str(planted), "--method", "astra", "--preset", "cpu-learned", "--home",
                           str(home), "--overlap", overlap, "--workers", "1", *settings)
        assert code == 0, said
        made[overlap] = objects(home)
        mining = latest("astra · planted · mine joint round 3")
        assert "5 hard negatives each" in mining.state.message and "made in" in mining.state.message
    assert mining.start_time >= latest("astra · planted · joint round 2").end_time
    assert made["always"] == made["never"]


@pytest.mark.parametrize("overlap", ["always", "never"])
def test_a_run_overlaps_as_it_is_told(prefect_server, planted, tmp_path, overlap):
    @flow
    def opened():
        with open_run(RunConfig(str(planted), home=tmp_path, overlap=overlap), "train", 0) as runner:
            return runner.overlap

    with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
        assert opened() == (overlap == "always")


def run_steps(home, planted, refresh, round_=train):
    """Run a round beside a refresh, then one that needs both; return the runner and whether the round had ended."""
    code = ("tasks.core.step",)
    steps = [Step("start", "model", train, code),
             Step("round", "model", round_, code, {"round": 1}, {"start": "start"}),
             Step("mine", "mined", refresh, code, {}, {"start": "start"}, can_overlap=True),
             Step("next", "model", train, code, {"round": 2}, {"start": "round", "mined": "mine"})]
    store = Store(home)

    @flow(name="steps")
    def all_steps():
        laid_out = pipeline(planted, "astra", "cpu-learned", {})
        with Workers(count=1) as workers:
            Runner(laid_out, store, workers, Terminal(), len(steps), overlap=True)(steps)

    with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
        all_steps()
    return (home / "trained").read_text().splitlines()


def test_a_refresh_begins_while_training_goes_on(prefect_server, planted, tmp_path):
    assert len(run_steps(tmp_path / "home", planted, mine, train_until_mined)) == 3


def test_a_refresh_that_fails_for_a_while_is_tried_again_and_no_round_is(prefect_server, planted, tmp_path, capsys):
    assert len(run_steps(tmp_path / "home", planted, fail_once)) == 3
    mining = latest("astra · planted · mine")
    assert mining.run_count == 2 and mining.state.name == "Completed"
    assert "    mined" in capsys.readouterr().err


def test_a_refresh_that_cannot_be_made_ends_the_run_when_it_is_needed(prefect_server, planted, tmp_path):
    with pytest.raises(ValueError, match="no negative is left"):
        run_steps(tmp_path / "home", planted, fail_always)
    assert len((tmp_path / "home" / "trained").read_text().splitlines()) == 2


def test_stopping_does_not_wait_for_a_refresh(prefect_server, planted, tmp_path):
    began = time.monotonic()
    with pytest.raises(Stopped, match="saved at step 7"):
        run_steps(tmp_path / "home", planted, wait_long, stop)
    assert time.monotonic() - began < 150
    assert not list((tmp_path / "home" / "tmp").iterdir())
