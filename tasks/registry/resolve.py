"""Lookup of a registered version by "NAME", "NAME@alias" or "NAME/3", verified."""

import logging
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import explained, remove
from tasks.core.manifest import MANIFEST, scan, verify
from tasks.core.store import Artifact, Store
from tasks.registry.tags import (
    CHAMPION,
    DIGEST,
    RETRIEVER_PATH,
    Version,
    did_you_mean,
    local_folder,
    version_by_alias,
    version_by_number,
    versions_of,
)
from tasks.tracking.mlflow_client import Client, all_pages
from tasks.tracking.tracker import Tracker
from xcmodels.retrieval.folder import read_facts

if TYPE_CHECKING:
    from xcmodels.retrieval.retriever import Retriever

REGISTER_AGAIN = "repeat the run that registered it, which writes it anew, or name another version"
_log = logging.getLogger(__name__)


class Resolved(NamedTuple):
    """A version of a registered model, and the verified folder of its retriever."""

    name: str
    version: str
    folder: Path
    digest: str


def load(model: str = "", home: Path | str = ".xc", mlflow: str = "") -> "Retriever":
    """Open the retriever that "NAME", "NAME@alias", "NAME/3" or "models:/NAME@alias" names, verified.

    An empty name means the only model of the home. Raises UsageError with the nearest name, DamagedArtifact where the
    files are not those that were registered.
    """
    from xcmodels.retrieval.retriever import Retriever

    if not isinstance(model or "", str):
        raise UsageError(f"{model!r} is not the name of a model",
                         hint="NAME, NAME@alias or NAME/3; xcflow.Retriever.load opens a folder")
    return Retriever.load(resolve(Tracker(Path(home), mlflow or None), model or None).folder)


def resolve(tracker: Tracker, spec: str | None = None) -> Resolved:
    """Return the version that `find` returns, with the verified folder of its retriever.

    Raises what `find` does, and DamagedArtifact where the files are not those that were registered.
    """
    version = find(tracker, spec)
    return Resolved(version.name, str(version.version), folder_of(tracker, version), version.tags[DIGEST])


def resolve_usable(tracker: Tracker, spec: str) -> Resolved:
    """Return the version that `resolve` returns, if this version of xcflow can answer with it.

    Raises what `resolve` does, and Unusable for a format of another version of xcflow.
    """
    resolved = resolve(tracker, spec)
    read_facts(resolved.folder)
    return resolved


def parts_of(spec: str) -> tuple[str, str, str]:
    """Return the name in a spec, its mark, "@", "/" or "", and the alias or version after that."""
    words = spec.removeprefix("models:/")
    return words.partition("@" if "@" in words else "/")


def find(tracker: Tracker, spec: str | None = None) -> Version:
    """Return the version that "NAME", "NAME@alias" or "NAME/3" names, without reading its files.

    NAME alone means its champion, or its newest version where it has none; None means the only model. Raises UsageError
    with the nearest name.
    """
    if tracker.is_empty:
        model_name(tracker)    # raises UsageError
    name, mark, which = parts_of(spec or "")
    if spec is not None and not name:
        raise UsageError(f"{spec!r} names no model", hint="NAME, NAME@alias or NAME/3; xc models lists them")
    with tracker.required() as client:
        # A single request where the name is right: a server asks every second.
        version = _named(client, name, mark, which) if name else None
        if version is not None and DIGEST in version.tags:
            return version
        name = model_name(tracker, None if spec is None else name)
        versions = {str(version.version): version for version in versions_of(client, name)}
        number = _number(name, mark, which, client.get_registered_model(name).aliases, versions)
        if not versions[number].tags.get(DIGEST):
            raise UsageError(f"{name}/{number} was not registered by xc", hint=f"name another version of {name}")
        return versions[number]


def folder_of(tracker: Tracker, version: Version) -> Path:
    """Return the verified folder of a version's retriever, in HOME or from MLflow."""
    digest = version.tags[DIGEST]
    if (folder := _stored(tracker.home, digest)) is not None:
        return folder
    with tracker.required() as client:
        return _fetched(tracker, client, version, digest)


def model_names(tracker: Tracker) -> list[str]:
    """Return the names of the registered models. Raises ServerError where MLflow cannot be asked."""
    if tracker.is_empty:
        return []
    with tracker.required() as client:
        return [model.name for model in all_pages(client.search_registered_models)]


def only_model(tracker: Tracker) -> str:
    """Return the name of the only registered model, "" where there is none. Raises UsageError where there are more."""
    names = model_names(tracker)
    if len(names) > 1:
        raise UsageError(f"there are {len(names)} models: {', '.join(names)}",
                         hint=f"--model {names[0]}")
    return names[0] if names else ""


def model_name(tracker: Tracker, name: str | None = None) -> str:
    """Return the name of a registered model, None meaning the only one. Raises UsageError with the nearest name."""
    names = [only_model(tracker)] if name is None else model_names(tracker)
    if not any(names):
        raise UsageError(f"no model is registered in {tracker.address}", hint="xc run --data DIR")
    if name is not None and name not in names:
        raise UsageError(f"no model {name!r}{did_you_mean(name, names)}")
    return names[0] if name is None else name


def _named(client: Client, name: str, mark: str, which: str) -> Version | None:
    """Return the version that `find` is asked for, None where it needs another look, or there is none."""
    if mark != "/":
        return version_by_alias(client, name, which if mark else CHAMPION)
    version = version_by_number(client, name, which)
    return version if version and str(version.version) == which else None    # MLflow takes "01" for 1


def _number(name: str, mark: str, which: str, aliases: Mapping[str, Any], versions: Mapping[str, Version]) -> str:
    if not versions:
        raise UsageError(f"model {name!r} has no version", hint="xc run --data DIR")
    if mark == "/":
        if which not in versions:
            raise UsageError(f"{name} has no version {which!r}{did_you_mean(which, list(versions))}")
        return which
    if not mark and CHAMPION not in aliases:
        return max(versions, key=int)
    alias = which if mark else CHAMPION
    if alias not in aliases:
        hint = f"xc promote {shlex.quote(f'{name}/VERSION')} --reason '...' makes a version the champion"
        raise UsageError(f"{name} has no alias {alias!r}{did_you_mean(alias, list(aliases))}",
                         hint=hint if alias == CHAMPION else "")
    if str(aliases[alias]) not in versions:
        raise UsageError(f"{name}@{alias} is version {aliases[alias]}, which was deleted",
                         hint=f"name another: {', '.join(f'{name}/{each}' for each in versions)}")
    return str(aliases[alias])


def _stored(home: Path, digest: str) -> Path | None:
    """Return the verified object in HOME; None where it is missing or damaged."""
    artifact = Artifact.of(digest)
    if not (home / artifact.path).is_dir():
        return None
    try:
        return Store(home, create=False).open(artifact)
    except (DamagedArtifact, UsageError) as error:
        _log.warning("%s; MLflow's copy is used", error.what)
        return None


def _fetched(tracker: Tracker, client: Client, version: Version, digest: str) -> Path:
    """Return MLflow's verified copy: in place where it is on this machine, else downloaded once to HOME/downloads."""
    if (place := local_folder(version.source)) is not None:
        return verified(place / RETRIEVER_PATH, digest)
    folder = tracker.home / "downloads" / digest
    if was_there := folder.exists():
        try:
            return verified(folder, digest)
        except DamagedArtifact as error:
            _log.warning("%s; it is downloaded again", error.what)
    part = folder.with_suffix(f".{os.getpid()}.part")
    with explained("fetch the version", part):
        part.mkdir(parents=True, exist_ok=True)
    try:
        download(tracker, client, version, RETRIEVER_PATH, part)
        whole = verified(next((path.parent for path in part.rglob(MANIFEST)), part), digest)
        if was_there:
            remove(folder)
        with suppress(OSError):    # another process was faster
            os.rename(whole, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return verified(folder, digest)


def model_folder(client: Client, version: Version) -> Path | None:
    """Return the folder of a version's model, maybe on another machine; None where a server has it."""
    return local_folder(client.get_model_version_download_uri(version.name, version.version))


def download(tracker: Tracker, client: Client, version: Version, inside: str, out: Path) -> None:
    """Copy the folder `inside` of a version's model, or all of it where that is empty, from MLflow to below `out`."""
    from mlflow.artifacts import download_artifacts

    source = client.get_model_version_download_uri(version.name, version.version)
    with explained("fetch the version", out):    # the disk of this machine, which is no failure of MLflow's
        download_artifacts(f"{source}/{inside}".rstrip("/"), dst_path=str(out), tracking_uri=tracker.uri)


def verified(folder: Path, digest: str) -> Path:
    """Return the folder.

    Raises DamagedArtifact unless it holds what the manifest with this digest lists, and ProjectError where a newer
    version of this program wrote it.
    """
    try:
        verify(folder, scan(folder)[0], digest=digest)
    except (OSError, DamagedArtifact) as error:
        wrong = error.what if isinstance(error, DamagedArtifact) else f"{error.filename}: {error.strerror}"
        raise DamagedArtifact(f"{folder} is not {digest[:12]} as it was registered: {wrong}",
                              hint=REGISTER_AGAIN) from error
    return folder
