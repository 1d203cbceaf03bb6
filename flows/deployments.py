"""The flows that prefect.yaml deploys: each takes one form, waits its turn in the home, and does a part of the job."""

from prefect import flow

from flows.config import PrepareForm, RetrainForm
from flows.run import job
from flows.services import mlflow_of

HOUR = 3600.0


@flow(name="prepare", flow_run_name="{config.method} · {config.subject} · prepare", persist_result=False)
def prepare(config: PrepareForm) -> None:
    """Read, check and pack the raw files that are new; what was prepared before is reused."""
    job(config.run("prepare"), "prepare", patience=config.patience * HOUR)


@flow(name="retrain", flow_run_name="{config.method} · {config.subject}", persist_result=False)
def retrain(config: RetrainForm) -> None:
    """Prepare, train, measure and register; what has not changed since the last run is reused."""
    asked = config.run("run")
    job(asked.model_copy(update={"mlflow": mlflow_of(asked.home, asked.mlflow)}), patience=config.patience * HOUR)
