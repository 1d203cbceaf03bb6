"""What is in the model registry: the tags and aliases of a version, and how they are read."""

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

CHAMPION, CHALLENGER = "champion", "challenger"
DIGEST, TEST, METRICS, DECILES = "xc.retriever", "xc.test", "xc.metrics", "xc.deciles"
DATA, COMMIT, CONTRACTS = "xc.data", "xc.commit", "xc.contracts"
OWNER = "xc.owner"                # id of the home that registered the version
GATES, PROMOTIONS = "xc.gates", "xc.promotions"
EXAMPLES = "xc.examples"          # a few texts of the test set
BASE, EDITS = "xc.base", "xc.edits"    # of a version with edited labels: the trained version, the digest of the edits
FILES = "xc.files"                # sha256 of the manifest in the model's folder, which lists the sha256 of each file
INSIDE = "artifacts/retriever"    # where the retriever is in the model's folder
Version = Any                     # mlflow.entities.model_registry.ModelVersion


def champion_of(client: Client, name: str) -> Version | None:
    """Return the champion; None where the model, the alias or the version it names is not there (any more)."""
    return version_at(client, name, CHAMPION)


def version_at(client: Client, name: str, alias: str) -> Version | None:
    """Return the version that an alias names; None where the model, the alias or the version is not there."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def registered_digests(tracker: Tracker) -> set[str]:
    """Return the digests of every version's retriever: what a garbage collection has to keep."""
    with tracker.required() as client:
        return {version.tags[DIGEST] for version in client.search_model_versions() if DIGEST in version.tags}


def local_folder(uri: str) -> Path | None:
    """Return the folder that an artifact location is on this machine; None where it is behind a server."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme else None


def did_you_mean(word: str, options: list[str]) -> str:
    """Return a question for the end of a message where one of the options is near the word, else nothing."""
    from xcmodels.methods.presets import nearest  # takes torch along, so only where there is something to explain

    return nearest(word, options) if options else ""
