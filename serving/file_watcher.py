"""The files of a version that answers: whether they are still what was verified.

They are mapped into memory. Who writes to one changes answers at once, and who shortens one ends the process with
SIGBUS where it is read next; neither is to be expected, and both are noticed by what the kernel keeps of a file.
"""

import hashlib
import json
import os
import time
import weakref
from pathlib import Path

from tasks.core.store import MANIFEST


class Watch:
    """Holds the files that the manifest in `folder` lists open, so that those that are mapped are looked at.

    What lies under their names later does not matter. `damage` says which file is not as it was published, and "" as
    long as none is known.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.damage = folder, ""
        self._looked = float("-inf")
        listed = json.loads((folder / MANIFEST).read_bytes())["files"]
        self._sha256 = {str(each["path"]): str(each["sha256"]) for each in listed}
        self._files: dict[str, int] = {}
        weakref.finalize(self, _close, self._files)
        for path in self._sha256:
            self._files[path] = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC)
        self._right = {path: os.fstat(file) for path, file in self._files.items()}    # as it was when it was verified
        self._hashed = dict(self._right)                                             # as it was when it was hashed last

    def written(self, recent: float = 0.0) -> str:
        """Return a file that was written to since it was verified, "" for none; a look takes microseconds a file.

        recent: seconds for which a look that found nothing is taken for another.
        """
        if time.monotonic() < self._looked + recent:
            return ""
        for path, file in self._files.items():
            now, then = os.fstat(file), self._right.get(path)
            if then is None or now.st_size != then.st_size or now.st_mtime_ns != then.st_mtime_ns:
                self._looked = float("-inf")
                return str(self.folder / path)
        self._looked = time.monotonic()
        return ""

    def verify(self, *, every: bool = False) -> None:
        """Hash each file in which anything changed since it was hashed, or every one, and say so in `damage`.

        A further name changes a file's ctime, and nothing in it.
        """
        for path, file in self._files.items():
            now, before = os.fstat(file), self._hashed[path]
            if every or (now.st_size, now.st_mtime_ns, now.st_ctime_ns) != (
                    before.st_size, before.st_mtime_ns, before.st_ctime_ns):
                self._hashed[path] = now
                if _sha256(file) == self._sha256[path]:
                    self._right[path] = now
                else:
                    self._right.pop(path, None)
                    self._looked = float("-inf")
        bad = next((path for path in self._files if path not in self._right), "")
        self.damage = f"{self.folder / bad} was changed since it was published" if bad else ""


def _sha256(file: int) -> str:
    found, at = hashlib.sha256(), 0
    while part := os.pread(file, 1 << 20, at):
        found.update(part)
        at += len(part)
    return found.hexdigest()


def _close(files: dict[str, int]) -> None:
    for file in files.values():
        os.close(file)
