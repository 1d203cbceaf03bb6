"""Which HOME owns a registered model, where several share one MLflow server."""

from data_contracts.errors import UsageError
from tasks.registry.tags import DATA, OWNER, Version
from tasks.tracking.identity import Identity, identity
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

RUN_HOME = "xc.home"    # tag of a run: the folder of its home


def check_owner(tracker: Tracker, name: str, data: str) -> None:
    """Raise UsageError where a model belongs to other homes, and to other data than this digest's.

    A copied or moved home counts as the same home. Raises ServerError where MLflow fails.
    """
    if tracker.embedded:    # its database serves this home alone
        return
    with tracker.required() as client:
        versions = list(client.search_model_versions(f"name = '{name}'"))
        home = identity(tracker.home)
        if not versions or any(
                version.tags.get(DATA) == data or _is_of(client, version, home) for version in versions):
            return
    raise UsageError(f"model {name!r} of {tracker.address} is of another home, and of other data",
                     hint=f"--name NAME for a model of its own; --name {name} to share that one")


def _is_of(client: Client, version: Version, home: Identity) -> bool:
    """Return whether a home registered a version; earlier releases recorded only its folder."""
    from mlflow.exceptions import MlflowException

    if owner := version.tags.get(OWNER):
        return bool(owner == home.id)
    try:
        return client.get_run(version.run_id).data.tags.get(RUN_HOME) in home.places
    except MlflowException:    # the run was deleted
        return False
