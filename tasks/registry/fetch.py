"""A version as an MLflow model in a folder of one's own, for MLflow's tools: its code runs only after it was verified.

What MLflow loads by a version's name it runs as it lies there. So the files are copied, each compared on the way with
the manifest of the registered model, and nothing but what that lists; the copy is there whole or not at all.
"""

import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path, PurePosixPath

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import explained
from tasks.core.manifest import MANIFEST
from tasks.registry.resolve import AGAIN, download, find, model_folder
from tasks.registry.tags import FILES, Version
from tasks.tracking.tracker import Tracker

CHUNK = 1 << 20


def fetch(tracker: Tracker, spec: str | None, out: Path) -> Version:
    """Write the version that `find` finds to the new folder `out`; nothing of it is loaded or run.

    Raises DamagedArtifact where a file is not as it was registered, UsageError where `out` is there already.
    """
    if os.path.lexists(out):
        raise UsageError(f"{out} is there already", hint="name a new folder, or move that one away")
    version = find(tracker, spec)
    if not (digest := version.tags.get(FILES)):
        raise UsageError(f"{version.name}/{version.version} was registered without a list of its files",
                         hint="repeat the run that registered it, which writes them anew; or: xc serve")
    part = out.absolute().with_name(f".{out.name}.{uuid.uuid4().hex}")
    with explained("write the model", out):
        try:
            os.makedirs(part.parent, exist_ok=True)
            os.mkdir(part, 0o700)
            with tracker.required() as client:
                source = model_folder(client, version)
                if source is None or not (tracker.embedded or source.is_dir()):
                    source = part / "downloaded"
                    source.mkdir()
                    download(tracker, client, version, "", source)
            _copy(source, part / "model", digest)
            os.rename(part / "model", out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return version


def _copy(source: Path, out: Path, digest: str) -> None:
    """Copy the files that a model's manifest lists, each with the sha256 that it has there."""
    manifest = _read(source / MANIFEST)
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise _changed(source / MANIFEST)
    out.mkdir(0o700)
    (out / MANIFEST).write_bytes(manifest)
    for each in json.loads(manifest)["files"]:
        path = PurePosixPath(each["path"])
        if path.is_absolute() or ".." in path.parts:
            raise _changed(source / MANIFEST)
        (out / path).parent.mkdir(0o700, parents=True, exist_ok=True)
        if _copy_file(source / path, out / path) != each["sha256"]:
            raise _changed(source / path)


def _copy_file(source: Path, target: Path) -> str:
    """Copy a file; -> the sha256 of what was written, whatever the source is by now."""
    found = hashlib.sha256()
    try:
        stream = open(source, "rb")    # noqa: SIM115  what fails here is the source
    except OSError as error:
        raise _changed(source) from error
    with stream, open(target, "xb") as copy:
        while block := stream.read(CHUNK):
            found.update(block)
            copy.write(block)
    return found.hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _changed(path) from error


def _changed(path: Path) -> DamagedArtifact:
    return DamagedArtifact(f"{path} is not as it was registered", hint=AGAIN)
