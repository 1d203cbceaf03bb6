"""The journal of feedback, HOME/feedback/NAME.jsonl: one line a text that a reviewer has decided on.

It only grows. A line counts once its end is written; what a killed process left of one is ignored, and cut off by the
next that is written.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from data_contracts.errors import DamagedArtifact
from tasks.core.files import fsync, locked, make_folder, put_file, remove

LONGEST = 1 << 22    # bytes of a line, at most


@dataclass(frozen=True)
class Feedback:
    """A reviewer's decision on a text: uids of labels that are right, wrong, or right and were missing.

    content: a longer text, where queries have titles and contents. when: in UTC; request: the X-Request-ID of the
    answer that was judged; version: which version gave it.
    """

    text: str
    accepted: Sequence[str] = ()
    rejected: Sequence[str] = ()
    added: Sequence[str] = ()
    content: str = ""
    when: str = ""
    request: str = ""
    version: str = ""


class FeedbackJournal:
    """The journal of one model's feedback; a training reads up to the line where its first attempt found the end."""

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / "feedback" / f"{name}.jsonl"
        self._mark = self.path.with_suffix(".begun")    # of an unfinished training: lines, sha256, settings

    def append(self, feedback: Sequence[Feedback]) -> None:
        """Append feedback, which is on the disk when this returns; raise OSError where it does not take it."""
        lines = "".join(f"{json.dumps(asdict(each), ensure_ascii=False)}\n" for each in feedback).encode()
        make_folder(self.path.parent)
        # The folder's lock: that of the file, once it is moved away, is not that of the file that is written to.
        with locked(self.path.parent, fcntl.LOCK_EX), open(self.path, "r+b", 0, opener=_create) as file:
            end = _end_of_last_line(file)
            if end == 0:    # whoever made the file may have been killed before this
                fsync(self.path.parent)
            try:
                file.truncate(end)
                file.seek(end)
                left = memoryview(lines)
                while left:
                    left = left[file.write(left):]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def read(self, lines: int | None = None) -> list[Feedback]:
        """Return the feedback in the first `lines` lines, by default in all. Raises DamagedArtifact for a bad line."""
        return self._parsed(self._lines()[:lines])

    def begun(self, training: str = "") -> int | None:
        """Return how many lines an unfinished training reads; None where there is none, or they were moved away.

        training: a word for its settings, by default any.
        """
        return self._begun(self._lines(), training)

    def begin(self, training: str) -> list[Feedback]:
        """Return what a training learns from: as much as an unfinished one did, else all, which is marked for it.

        So a run that was killed resumes with the same feedback, whatever was posted meanwhile. training: a word for its
        settings; one with others than the unfinished one's reads all.
        """
        lines = self._lines()
        begun = self._begun(lines, training)
        read = lines[:begun]
        feedback = self._parsed(read)
        if read and begun is None:
            remove(part := self._mark.with_suffix(".new"))    # of a run that was killed as it wrote
            put_file(f"{len(read)} {_digest(read)} {training}\n".encode(), self._mark, os.replace, part)
        return feedback

    def end(self) -> None:
        """Let the next training read all feedback."""
        remove(self._mark)

    def _lines(self) -> list[bytes]:
        data = self.path.read_bytes() if self.path.exists() else b""
        return data.split(b"\n")[:-1]

    def _parsed(self, lines: Sequence[bytes]) -> list[Feedback]:
        out = []
        for number, line in enumerate(lines, start=1):
            try:
                row: dict[str, Any] = json.loads(line)
                out.append(Feedback(**row))
            except (ValueError, TypeError, RecursionError) as error:
                raise DamagedArtifact("the line is no feedback", where=f"{self.path}:{number}",
                                      hint="restore the file, or take the line out") from error
        return out

    def _begun(self, lines: Sequence[bytes], training: str) -> int | None:
        try:
            count, digest, marked = self._mark.read_text().split()
            begun = int(count)
        except (OSError, ValueError):
            return None
        return begun if training in ("", marked) and digest == _digest(lines[:begun]) else None


def _digest(lines: Sequence[bytes]) -> str:
    """Return the sha256 of lines: those of another journal in its place are others."""
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _create(path: str, flags: int) -> int:
    """Open a file that this user alone can read, which is made where there is none; return its descriptor."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _end_of_last_line(file: BinaryIO) -> int:
    """Return how many bytes of a file are whole lines."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - LONGEST)
    file.seek(start)
    return start + file.read(size - start).rfind(b"\n") + 1
