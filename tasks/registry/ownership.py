"""Whose a registered model is: homes that share an MLflow server may each have data of the same name."""

from data_contracts.errors import UsageError
from tasks.registry.tags import DATA, OWNER, Version
from tasks.tracking.identity import Identity, identity
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

RUN_HOME = "xc.home"    # tag of a run: the folder of its home


def check_owner(tracker: Tracker, name: str, data: str) -> None:
    """Raise UsageError where a model is one of other homes, and of other data than this digest names.

    A copy of a home is that home, and so is one that was moved. Raises ServerError where MLflow fails.
    """
    if tracker.embedded:    # a database in the home
        return
    with tracker.required() as client:
        versions = list(client.search_model_versions(f"name = '{name}'"))
        home = identity(tracker.home)
        if not versions or any(each.tags.get(DATA) == data or _is_of(client, each, home) for each in versions):
            return
    raise UsageError(f"model {name!r} of {tracker.address} is of another home, and of other data",
                     hint=f"--name NAME for a model of its own; --name {name} to share that one")


def _is_of(client: Client, version: Version, home: Identity) -> bool:
    """Return whether a home registered a version; earlier versions of this program noted its folder alone."""
    from mlflow.exceptions import MlflowException

    if owner := version.tags.get(OWNER):
        return bool(owner == home.id)
    try:
        return client.get_run(version.run_id).data.tags.get(RUN_HOME) in home.places
    except MlflowException:    # the run was deleted
        return False
