"""A name becomes a folder: the version that "NAME", "NAME@alias" or "NAME/3" means, with its files verified."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import file_digest
from tasks.core.store import MANIFEST, Artifact, Store
from tasks.registry.tags import CHAMPION, DIGEST, INSIDE, Version, did_you_mean, local_folder, version_at
from tasks.tracking.mlflow_client import Client
from tasks.tracking.tracker import Tracker

AGAIN = "repeat the run that registered it, which writes it anew, or name another version"
_log = logging.getLogger(__name__)


class Resolved(NamedTuple):
    """A version of a registered model, and the verified folder of its retriever."""

    name: str
    version: str
    folder: Path
    digest: str


def resolve(tracker: Tracker, spec: str | None = None) -> Resolved:
    """Return what `find` finds, and the folder of its retriever, verified.

    Raises what `find` does, and DamagedArtifact where the files are not those that were registered.
    """
    version = find(tracker, spec)
    return Resolved(version.name, str(version.version), folder_of(tracker, version), version.tags[DIGEST])


def find(tracker: Tracker, spec: str | None = None) -> Version:
    """Return the version that "NAME", "NAME@alias" or "NAME/3" names; no file of it is looked at.

    NAME alone is its champion, or its newest version without one; None is the only model there is. Raises UsageError
    with the nearest name.
    """
    if tracker.embedded and not (tracker.home / "mlflow.db").exists():
        model_name(tracker)    # says so; making a database takes seconds
    name, mark, which = _parsed(spec or "")
    with tracker.required() as client:
        # One look where the name is right: what follows an alias asks every second.
        version = version_at(client, name, which if mark else CHAMPION) if name and mark != "/" else None
        if version is not None and DIGEST in version.tags:
            return version
        name = model_name(tracker, None if spec is None else name)
        versions = {str(each.version): each for each in client.search_model_versions(f"name = '{name}'")}
        number = _number(name, mark, which, client.get_registered_model(name).aliases, versions)
        if not versions[number].tags.get(DIGEST):
            raise UsageError(f"{name}/{number} was not registered by xc", hint=f"name another version of {name}")
        return versions[number]


def folder_of(tracker: Tracker, version: Version) -> Path:
    """Return the folder of a version's retriever, in HOME or from MLflow, with every file verified."""
    digest = version.tags[DIGEST]
    if (folder := _stored(tracker.home, digest)) is not None:
        return folder
    with tracker.required() as client:
        return _fetched(tracker, client, version, digest)


def model_name(tracker: Tracker, name: str | None = None) -> str:
    """Return the name of a registered model, None meaning the only one. Raises UsageError with the nearest name."""
    nothing = UsageError(f"no model is registered in {tracker.address}", hint="xc run --data DIR")
    if tracker.embedded and not (tracker.home / "mlflow.db").exists():
        raise nothing    # making a database takes seconds
    with tracker.required() as client:
        models = [model.name for model in client.search_registered_models()]
    if not models:
        raise nothing
    if name is None and len(models) > 1:
        raise UsageError(f"there are {len(models)} models: {', '.join(models)}", hint="name one of them")
    if name is not None and name not in models:
        raise UsageError(f"no model {name!r}{did_you_mean(name, models)}")
    return models[0] if name is None else name


def _parsed(spec: str) -> tuple[str, str, str]:
    """Return (name, "@" or "/" or "", alias or version)."""
    spec = spec.removeprefix("models:/")
    mark = "@" if "@" in spec else "/"
    name, found, which = spec.partition(mark)
    return name, found, which


def _number(name: str, mark: str, which: str, aliases: Mapping[str, Any], versions: Mapping[str, Version]) -> str:
    """Return the version that is meant."""
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
        raise UsageError(f"{name} has no alias {alias!r}{did_you_mean(alias, list(aliases))}")
    if str(aliases[alias]) not in versions:
        raise UsageError(f"{name}@{alias} is version {aliases[alias]}, which was deleted",
                         hint=f"name another: {', '.join(f'{name}/{each}' for each in versions)}")
    return str(aliases[alias])


def _stored(home: Path, digest: str) -> Path | None:
    """Return the verified object in HOME, None where there is none or it is damaged."""
    artifact = Artifact.of(digest)
    if not (home / artifact.path).is_dir():
        return None
    try:
        return Store(home, create=False).open(artifact)
    except (DamagedArtifact, UsageError) as error:
        _log.warning("%s; MLflow's copy is used", error.what)
        return None


def _fetched(tracker: Tracker, client: Client, version: Version, digest: str) -> Path:
    """Return MLflow's copy, verified: in place where it is on this machine, else downloaded once to HOME/downloads."""
    if (place := local_folder(version.source)) is not None:
        return verified(place / INSIDE, digest)
    folder = tracker.home / "downloads" / digest
    if folder.exists():
        return verified(folder, digest)
    part = folder.with_suffix(f".{os.getpid()}.part")
    part.mkdir(parents=True, exist_ok=True)
    try:
        download(tracker, client, version, INSIDE, part)
        with suppress(OSError):    # another process was faster
            os.rename(verified(next(each.parent for each in part.rglob(MANIFEST)), digest), folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return verified(folder, digest)


def model_folder(client: Client, version: Version) -> Path | None:
    """Return the folder of a version's model; None where it is behind a server. It may be another machine's."""
    return local_folder(client.get_model_version_download_uri(version.name, version.version))


def download(tracker: Tracker, client: Client, version: Version, inside: str, out: Path) -> None:
    """Copy a folder of a version's model, all of it where `inside` is empty, from MLflow to somewhere below `out`."""
    from mlflow.artifacts import download_artifacts

    source = client.get_model_version_download_uri(version.name, version.version)
    download_artifacts(f"{source}/{inside}".rstrip("/"), dst_path=str(out), tracking_uri=tracker.uri)


def verified(folder: Path, digest: str) -> Path:
    """Return a folder once it is known to hold what the manifest of this digest lists; else DamagedArtifact."""
    try:
        wrong = None if file_digest(folder / MANIFEST) == digest else MANIFEST
        if wrong is None:
            listed = {each["path"]: each["sha256"] for each in json.loads((folder / MANIFEST).read_bytes())["files"]}
            found = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if not each.is_dir()}
            strange = listed.keys() ^ (found - {MANIFEST})
            wrong = next((path for path in sorted(listed.keys() | strange) if path in strange
                          or file_digest(folder / path) != listed[path]), None)
    except OSError as error:
        wrong = f"{error.filename}: {error.strerror}"
    if wrong is not None:
        raise DamagedArtifact(f"{folder} is not {digest[:12]} as it was registered: {wrong}", hint=AGAIN)
    return folder
