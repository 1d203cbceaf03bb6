"""Tags and aliases of versions in the model registry, and how to look versions up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from data_contracts.errors import UsageError
from tasks.tracking.mlflow_client import Client, all_pages
from tasks.tracking.tracker import Tracker

CHAMPION, CHALLENGER = "champion", "challenger"
DIGEST, TEST, METRICS, DECILES = "xc.retriever", "xc.test", "xc.metrics", "xc.deciles"
DATA, COMMIT, CONTRACTS = "xc.data", "xc.commit", "xc.contracts"
OWNER = "xc.owner"                # id of the home that registered the version
RUN_HOME = "xc.home"              # of a run: the folder of its home
GATES, PROMOTIONS = "xc.gates", "xc.promotions"
EXAMPLES = "xc.examples"          # a few texts of the test set
BASE, EDITS = "xc.base", "xc.edits"    # of a version with edited labels: its trained version, the edits' digest
FILES = "xc.files"                # sha256 of the manifest in the model's folder, which lists the sha256 of each file
RETRIEVER_PATH = "artifacts/retriever"    # where the retriever is in the model's folder
LONGEST_NAME = 249                # bytes: journals are files NAME.jsonl, and a file's name has at most 255
LONGEST_NUMBER = 9                # digits of a version; MLflow's databases keep 32 bits
Version = Any                     # mlflow.entities.model_registry.ModelVersion


def require_name(name: str) -> None:
    """Raise UsageError for a name that no model can have."""
    if set("/:@'\"") & set(name) or not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a model", hint="leave out / : @ and quotes: --name NAME")
    if (size := len(name.encode(errors="surrogatepass"))) > LONGEST_NAME:
        raise UsageError(f"the name of a model has at most {LONGEST_NAME} bytes, {name[:40]!r}... has {size}",
                         hint="--name NAME")


def champion_of(client: Client, name: str) -> Version | None:
    """Return the champion; None where the model, the alias or its version does not exist."""
    return version_by_alias(client, name, CHAMPION)


def trained_version(version: Version) -> str:
    """Return the number of the trained version behind a version whose labels may have been edited."""
    return str(version.tags.get(BASE, version.version))


def version_by_alias(client: Client, name: str, alias: str) -> Version | None:
    """Return the version that an alias names; None where the model, the alias or the version does not exist."""
    return _existing(client.get_model_version_by_alias, name, alias)


def version_by_number(client: Client, name: str, number: str) -> Version | None:
    """Return the version of a number; None where the model or the version does not exist, or it is no number."""
    if len(number) > LONGEST_NUMBER:    # MLflow's database could not look for it, and would seem to be damaged
        return None
    return _existing(client.get_model_version, name, number)


def _existing(get: Callable[[str, str], Version], name: str, which: str) -> Version | None:
    from mlflow.exceptions import MlflowException

    try:
        return get(name, which)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def versions_of(client: Client, name: str) -> list[Version]:
    """Return all versions of a model; none where there is no such model."""
    return list(all_pages(client.search_model_versions, filter_string=f"name = '{name}'"))


def version_of_retriever(client: Client, name: str, digest: str) -> Version | None:
    """Return the version that holds the retriever of a digest; None where there is none that is ready."""
    return next((version for version in versions_of(client, name)
                 if version.tags.get(DIGEST) == digest and version.status == "READY"), None)


def registered_digests(tracker: Tracker) -> set[str]:
    """Return the digests of all versions' retrievers, which garbage collection has to keep."""
    with tracker.required() as client:
        return {version.tags[DIGEST] for version in all_pages(client.search_model_versions) if DIGEST in version.tags}


def local_folder(uri: str) -> Path | None:
    """Return the local folder of an artifact location; None where it is on a server."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme else None


def did_you_mean(word: str, options: list[str]) -> str:
    """Return "did you mean ...?" for the end of a message where an option is near the word, else nothing."""
    from xcmodels.methods.presets import nearest  # imports torch, so only on an error

    return nearest(word, options) if options else ""
