"""The flows that prefect.yaml deploys: prepare, retrain, evaluate and apply-labels.

Each takes one form. All but apply-labels wait until no other run uses the home.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import State, flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.states import Completed

from data_contracts.errors import ServerError, UsageError
from flows.config import RunConfig
from flows.forms import ApplyLabelsForm, EvaluateForm, PrepareForm, RetrainForm
from flows.run import open_run, retry_helps, run_steps
from flows.run import prepare as prepare_data
from flows.services.definitions import mlflow_of
from tasks.core.shared_store import open_store
from tasks.core.store import Artifact, Store
from tasks.core.wording import data_size
from tasks.home_gc import collect
from tasks.registry.comparison import ChampionScore, evaluate_champion
from tasks.registry.label_edits import EditedChampion, apply_edits
from tasks.tracking.tracker import Tracker
from xcmodels.data.corpus import Corpus
from xcmodels.metrics import SHOWN, name_of

HOUR = 3600.0
PAUSES = 10.0, 30.0, 90.0    # seconds before a retraining whose MLflow or store did not answer is taken up again
TURN = 600.0    # seconds that a collection waits for a run that started right after the training


@flow(name="prepare", flow_run_name="{config.method} · {config.subject} · prepare", persist_result=False)
def prepare(config: PrepareForm) -> None:
    """Read, check and pack the raw files that are new; what was prepared before is reused."""
    run_steps(config.to_run_config("prepare"), "prepare", patience=config.patience * HOUR)


@flow(name="retrain", flow_run_name="{config.method} · {config.subject}", persist_result=False)
def retrain(config: RetrainForm) -> None:
    """Prepare, train, measure and register; what has not changed since the last run is reused. Then make room."""
    run_config = _tracked(config)
    for pause in (*PAUSES, None):
        try:
            run_steps(run_config, patience=config.patience * HOUR)
            break
        except ServerError as error:    # what is done is reused, so that only what failed is done again
            if pause is None:
                raise
            get_run_logger().warning(f"{error.what}; taken up again in {pause:g} s")
            time.sleep(pause)
    room_task.with_options(task_run_name=f"{config.subject} · room")(run_config, config.keep_days)


@flow(name="evaluate", flow_run_name="{config.subject} · champion", persist_result=False)
def evaluate(config: EvaluateForm) -> None:
    """Score the champion on the test split of the newest data, which is prepared where it is new."""
    run_config = _tracked(config)
    with open_run(run_config, "prepare", config.patience * HOUR) as runner:
        prepare_data(runner.title, runner)
        pack = runner.done["pack"]
        champion = champion_task.with_options(task_run_name=f"{config.subject} · champion")(run_config, pack)
    rows = [{"metric": name_of(key), "percent": round(champion.score.metrics[key], 2)}
            for key in SHOWN if key in champion.score.metrics]
    what = f"{champion.name} version {champion.version} on {config.data}{'; ' if champion.note else ''}{champion.note}"
    get_run_logger().info("%s: P@1 %.2f", what, champion.score.metrics["P/1"])
    create_table_artifact(rows, key="champion", description=what)


@flow(name="apply-labels", flow_run_name="{config.name} · labels", persist_result=False)
def apply_labels(config: ApplyLabelsForm) -> None:
    """Give the champion the labels that were added and removed since; nothing is done where it has them."""
    apply_labels_task.with_options(task_run_name=f"{config.name} · labels")(config)


def server_may_answer(task: Any, task_run: Any, state: Any) -> bool:
    """Return whether a failed task may succeed when tried again, as where MLflow was busy for a moment."""
    return retry_helps(task, task_run, state) or isinstance(state.result(raise_on_failure=False), ServerError)


@task(name="labels", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=10,
      retry_condition_fn=server_may_answer)
def apply_labels_task(config: ApplyLabelsForm) -> State[EditedChampion | None]:
    """Apply the label edits; return the version that has them."""
    home = Path(config.home)
    edited = apply_edits(Store(home), Tracker(home, mlflow_of(home, config.mlflow) or None), config.name)
    if edited is None or not edited.moved:
        return Completed(name="Unchanged", message="the champion has every label that was asked for", data=edited)
    return Completed(message=f"version {edited.version}: {edited.added:,} labels added to version "
                             f"{edited.base}, {edited.removed:,} removed", data=edited)


@task(name="room", cache_policy=NO_CACHE, persist_result=False)
def room_task(config: RunConfig, days: float) -> State[None]:
    """Remove what no run has asked for in `days`; where that cannot be done now, the next retraining does it."""
    try:
        freed = collect(Store(config.home), Tracker(config.home, config.mlflow or None), days, patience=TURN)
    except (ServerError, UsageError) as error:
        get_run_logger().warning(f"no room is made: {error.what}")
        return Completed(name="Postponed", message=error.what, data=None)
    return Completed(message=f"freed {data_size(freed.sizes.total())} that no run has asked for in {days:g} days",
                     data=None)


@task(name="champion", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=10,
      retry_condition_fn=server_may_answer)
def champion_task(config: RunConfig, pack: Artifact) -> ChampionScore:
    """Return the champion's score on a prepared corpus."""
    corpus = Corpus(open_store(config.home, config.store).open(pack))
    name = config.name or corpus.name    # as runs register it
    return evaluate_champion(Tracker(config.home, config.mlflow or None), name, corpus, pack, config.command)


def _tracked(form: EvaluateForm) -> RunConfig:
    """Return the run of a form, tracked by the home's MLflow server where it runs and no other is named."""
    config = form.to_run_config("run")
    return replace(config, mlflow=mlflow_of(config.home, config.mlflow))
