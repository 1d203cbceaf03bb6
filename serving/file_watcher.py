"""Detect changes to the files of the model version that is being served.

They are mapped into memory. Writing to one changes answers at once, and truncating one ends the process with SIGBUS at
the next read of it; neither is expected, and both are detected by size and modification time.
"""

import hashlib
import json
import os
import time
import weakref
from pathlib import Path

from tasks.core.store import MANIFEST


class Watch:
    """Keeps the files that the manifest in `folder` lists open, so that it checks the very files that are mapped.

    Files put under their names later do not matter. damage: names a file that is not as it was published, "" as long
    as none is known.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.damage = folder, ""
        self._looked = float("-inf")
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        self._sha256 = {str(entry["path"]): str(entry["sha256"]) for entry in listed}
        self._files: dict[str, int] = {}
        weakref.finalize(self, _close, self._files)
        for path in self._sha256:
            self._files[path] = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC)
        self._right = {path: os.fstat(file) for path, file in self._files.items()}    # status when last verified
        self._hashed = dict(self._right)                                             # status when last hashed

    def written(self, recent: float = 0.0) -> str:
        """Return a file that was written to since it was verified, "" for none; takes microseconds a file.

        recent: seconds for which an earlier check that found nothing still counts.
        """
        if time.monotonic() < self._looked + recent:
            return ""
        for path, file in self._files.items():
            now, right = os.fstat(file), self._right.get(path)
            if right is None or now.st_size != right.st_size or now.st_mtime_ns != right.st_mtime_ns:
                self._looked = float("-inf")
                return str(self.folder / path)
        self._looked = time.monotonic()
        return ""

    def verify(self, *, every: bool = False) -> None:
        """Hash each file whose status changed since it was last hashed, or every file, and set `damage`.

        A new hard link changes a file's ctime, but not its content.
        """
        for path, file in self._files.items():
            now, before = os.fstat(file), self._hashed[path]
            if every or (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
                    before.st_size, before.st_mtime_ns, before.st_ctime_ns):
                if _sha256(file) == self._sha256[path]:
                    self._right[path] = now
                else:
                    self._right.pop(path, None)
                    self._looked = float("-inf")
                self._hashed[path] = now    # not before it was read: an error of the disk may be over the next time
        bad = next((path for path in self._files if path not in self._right), "")
        self.damage = f"{self.folder / bad} was changed since it was published" if bad else ""


def _sha256(file: int) -> str:
    with open(file, "rb", closefd=False) as opened:
        opened.seek(0)    # it stands where it was read to the last time
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _close(files: dict[str, int]) -> None:
    for file in files.values():
        os.close(file)
