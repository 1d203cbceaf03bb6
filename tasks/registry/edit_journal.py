"""The journal of label edits, HOME/labels/NAME.jsonl, applied to every later version.

It only grows. A line is one edit; the edits of one command count all or none, as only its last line says that none are
left to come. What a killed command left behind is ignored, and cut off by the next one.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from data_contracts.errors import DamagedArtifact, UsageError
from tasks.core.files import explained, fsync, locked, make_folder
from tasks.tracking.mlflow_run import user_name
from xcmodels.retrieval.label_editing import Edit

EDIT_LOCK_SECONDS = 600.0    # how long to wait for another command to apply its edits


@dataclass(frozen=True)
class JournalEntry:
    """One edit, and when and by whom it was requested."""

    when: str
    who: str
    edit: Edit


class Journal:
    """The journal of one model."""

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / "labels" / f"{name}.jsonl"

    def entries(self) -> list[JournalEntry]:
        """Return every edit in order. Raises DamagedArtifact for a line that is no edit."""
        return self._read()[0]

    def edits(self) -> list[Edit]:
        """Return every edit in order, without its time and user."""
        return [entry.edit for entry in self.entries()]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the journal against other writers. Raises UsageError where another has it for too long."""
        with explained("keep label edits", self.path):
            make_folder(self.path.parent)
            os.close(os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fsync(self.path.parent)
        with locked(self.path, fcntl.LOCK_EX, EDIT_LOCK_SECONDS) as acquired:
            if not acquired:
                raise UsageError(f"another command is editing the labels of {self.path.stem}",
                                 hint="run the same command again when it is done")
            yield

    def append(self, edits: Sequence[Edit]) -> None:
        """Append edits, all or none of them; to be called under `alone`."""
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name()}
        lines = [json.dumps({**stamp, "op": edit.op, "uid": edit.uid, "text": edit.text, "content": edit.content,
                             "left": len(edits) - number}, ensure_ascii=False)
                 for number, edit in enumerate(edits, start=1)]
        size = self._read()[1]
        with explained("keep label edits", self.path), open(self.path, "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> tuple[list[JournalEntry], int]:
        """Return the edits of complete commands, and how many bytes they take."""
        data = self.path.read_bytes() if self.path.exists() else b""
        entries: list[JournalEntry] = []
        complete, size, position, broken = 0, 0, 0, 0
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            position += len(line) + 1
            if (parsed := _entry(line)) is None:
                broken = broken or number
                continue
            if broken:    # not the end of what a killed command wrote: the file was changed
                raise DamagedArtifact("the line is no label edit", where=f"{self.path}:{broken}",
                                      hint="restore the file, or take the line out")
            entry, left = parsed
            entries.append(entry)
            if left == 0:
                complete, size = len(entries), position
        return entries[:complete], size


def _entry(line: bytes) -> tuple[JournalEntry, int] | None:
    """Return the edit in a line, and how many more of its command follow; None where it is no edit."""
    try:
        row: dict[str, Any] = json.loads(line)
        edit = Edit(row["op"], row["uid"], row["text"], row["content"])
        return JournalEntry(row["when"], row["who"], edit), row["left"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
