"""Verified copies of registered models, as MLflow models in a new folder.

MLflow runs the code of a model that it loads by name without any check. So only the files that the manifest of the
registered model lists are copied, each compared with its sha256; the copy is complete or not there at all.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path, PurePosixPath
from stat import S_ISREG
from typing import BinaryIO

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import explained, file_digest
from tasks.core.hidden_folders import new_folder
from tasks.core.manifest import MANIFEST
from tasks.registry.resolve import REGISTER_AGAIN, download, find, model_folder
from tasks.registry.tags import FILES, Version
from tasks.tracking.tracker import Tracker


def fetch(tracker: Tracker, spec: str | None, out: Path) -> Version:
    """Copy the version that `find` returns to the new folder `out`; nothing of it is loaded or run.

    Raises DamagedArtifact where a file is not as it was registered, UsageError where `out` exists or cannot be made.
    """
    if os.path.lexists(out):
        raise UsageError(f"{out} is there already", hint="name a new folder, or move that one away")
    version = find(tracker, spec)
    if not (digest := version.tags.get(FILES)):
        raise UsageError(f"{version.name}/{version.version} was registered without a list of its files",
                         hint="repeat the run that registered it, which writes them anew; or: xc serve")
    with explained("write the model", out), new_folder(out) as made:
        with tracker.required() as client:
            source = model_folder(client, version)
            if source is None or not (tracker.embedded or source.is_dir()):
                source = made.with_name("downloaded")
                source.mkdir()
                download(tracker, client, version, "", source)
        _copy(source, made, digest)
    return version


def _copy(source: Path, out: Path, digest: str) -> None:
    with _opened(source / MANIFEST) as listing:
        manifest = listing.read()
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise _changed(source / MANIFEST)
    out.mkdir(0o700)
    (out / MANIFEST).write_bytes(manifest)
    for file in json.loads(manifest)["files"]:
        path = PurePosixPath(file["path"])
        if path.is_absolute() or ".." in path.parts:
            raise _changed(source / MANIFEST)
        (out / path).parent.mkdir(0o700, parents=True, exist_ok=True)
        with _opened(source / path) as original, open(out / path, "xb") as copy:
            shutil.copyfileobj(original, copy)
        if file_digest(out / path) != file["sha256"]:    # of what was written, as the source may have changed meanwhile
            raise _changed(source / path)


def _opened(path: Path) -> BinaryIO:
    try:
        if not S_ISREG(path.lstat().st_mode):    # a FIFO would be waited for
            raise _changed(path)
        return open(path, "rb")
    except OSError as error:
        raise _changed(path) from error


def _changed(path: Path) -> DamagedArtifact:
    return DamagedArtifact(f"{path} is not as it was registered", hint=REGISTER_AGAIN)
