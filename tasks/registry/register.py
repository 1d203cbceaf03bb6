"""Registration of a retriever as a version in the model registry, and which HOME owns a registered model."""

import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_contracts.errors import DamagedArtifact, ServerError, UsageError
from tasks.core.files import file_digest
from tasks.core.store import MANIFEST
from tasks.evaluation.gates import Score
from tasks.registry.logged_model import logged_model
from tasks.registry.resolve import model_folder, verified
from tasks.registry.tags import (
    CHALLENGER,
    DATA,
    DECILES,
    DIGEST,
    FILES,
    METRICS,
    OWNER,
    TEST,
    Version,
    champion_of,
    require_name,
    trained_version,
    version_of_retriever,
    versions_of,
)
from tasks.tracking.identity import identity
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registered:
    """The version that holds a retriever, and whether it existed already."""

    version: str
    reused: bool


def register(tracker: Tracker, run_id: str, name: str, *, retriever_dir: Path, retriever_digest: str, score: Score,
             test_digest: str, card: str, facts: Mapping[str, str] | None = None,
             challenger: bool = True) -> Registered:
    """Register the retriever as a version of `name`, with `challenger` the challenger unless it is the champion.

    A retriever that is a version already stays that version, with its metrics updated. run_id: "" means the tracker's
    run, also where MLflow had not answered yet. test_digest: of the test set of the score. facts: further tags, on how
    the version was made. Raises ServerError where MLflow fails.
    """
    require_name(name)
    if file_digest(retriever_dir / MANIFEST) != retriever_digest:
        raise DamagedArtifact(f"{retriever_dir} is not the retriever {retriever_digest[:12]}",
                              hint="give the folder of an artifact, HOME/objects/<digest>")
    metrics = {TEST: test_digest, METRICS: json.dumps(dict(score.metrics), sort_keys=True),
               DECILES: json.dumps([dict(row) for row in score.deciles], sort_keys=True)}
    with tracker.required() as client:
        run_id = run_id or _run_of(tracker)
        version = _version_of(client, name, retriever_digest)
        reused = version is not None
        if version is None:
            model = logged_model(tracker.home, client, run_id, retriever_dir, retriever_digest)
            # a database resolves models:/ addresses by MLflow's global state, which may be another database
            source = model.artifact_location if tracker.embedded else model.model_uri
            version = client.create_model_version(
                name, source, run_id, description=card, model_id=model.model_id, tags={
                    **(facts or {}), DIGEST: retriever_digest, FILES: model.tags.get(FILES, ""),
                    OWNER: identity(tracker.home).id, **metrics})
        else:
            _repair(tracker, client, version, retriever_dir)
            _update(client, version, metrics, card)
        champion = champion_of(client, name)
        if challenger and (champion is None or trained_version(champion) != str(version.version)):
            client.set_registered_model_alias(name, CHALLENGER, version.version)
    return Registered(str(version.version), reused)


def _update(client: Client, version: Version, metrics: Mapping[str, str], card: str) -> None:
    if any(version.tags.get(key) != value for key, value in metrics.items()) or version.description != card:
        for key, value in metrics.items():
            client.set_model_version_tag(version.name, version.version, key, value)
        client.update_model_version(version.name, version.version, card)


def _repair(tracker: Tracker, client: Client, version: Version, retriever: Path) -> None:
    """Write a version's model again where its files are not as registered, or no manifest tells."""
    if files := version.tags.get(FILES):
        place = model_folder(client, version)
        if place is None or not (tracker.embedded or place.is_dir()):
            return    # a server has them: they are verified when fetched
        try:
            verified(place, files)
            return
        except DamagedArtifact as error:
            _log.warning("%s; it is written anew", error.what)
    model = logged_model(tracker.home, client, version.run_id, retriever, version.tags[DIGEST], anew=True)
    client.set_model_version_tag(version.name, version.version, FILES, model.tags[FILES])


def _run_of(tracker: Tracker) -> str:
    missing = tracker.close()
    if tracker.run_id is None:
        raise ServerError(f"MLflow at {tracker.address} has no run to register with, {', '.join(missing)} is missing",
                          hint="run the same command again")
    return tracker.run_id


def _version_of(client: Client, name: str, digest: str) -> Version | None:
    """Return the version that holds this retriever, or None; creates the registered model if it does not exist."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return version_of_retriever(client, name, digest)


def check_owner(tracker: Tracker, name: str, data: str) -> None:
    """Raise UsageError where a model belongs to other homes, and to other data than this digest's.

    A copied or moved home counts as the same home. Raises ServerError where MLflow fails.
    """
    if tracker.embedded:    # its database serves this home alone
        return
    with tracker.required() as client:
        versions = versions_of(client, name)
        owner = identity(tracker.home).id
        if not versions or any(
                version.tags.get(DATA) == data or version.tags.get(OWNER) == owner for version in versions):
            return
    raise UsageError(f"model {name!r} of {tracker.address} is of another home, and of other data",
                     hint=f"--name NAME for a model of its own; --name {shlex.quote(name)} to share that one")
