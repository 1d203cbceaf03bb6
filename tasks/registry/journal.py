"""The journal of label edits, HOME/labels/NAME.jsonl: what people asked for, in order, for every retriever to come.

It only grows. A line is one edit; what one command asked for is there as a whole or not at all, since its last line
alone says that nothing is left to come. What a killed command left behind is ignored, and cut off by the next one.
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

LOCK_SECONDS = 600.0    # as long as another command may take to apply its edits


@dataclass(frozen=True)
class Entry:
    """One edit, when it was asked for and by whom."""

    when: str
    who: str
    edit: Edit


class Journal:
    """The journal of one model."""

    def __init__(self, home: Path, name: str) -> None:
        self.path = home / "labels" / f"{name}.jsonl"

    def entries(self) -> list[Entry]:
        """Return every edit, the first one first. Raises DamagedArtifact for a line that is none."""
        return self._read()[0]

    def edits(self) -> list[Edit]:
        """Return every edit without when and by whom."""
        return [entry.edit for entry in self.entries()]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let nobody else write the journal or act on it meanwhile. Raises UsageError where somebody does for long."""
        with explained("keep label edits", self.path):
            make_folder(self.path.parent)
            os.close(os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fsync(self.path.parent)
        with locked(self.path, fcntl.LOCK_EX, LOCK_SECONDS) as mine:
            if not mine:
                raise UsageError(f"another command is editing the labels of {self.path.stem}",
                                 hint="run the same command again when it is done")
            yield

    def append(self, edits: Sequence[Edit]) -> None:
        """Write edits after those that are there, all or none of them; to be called where nobody else may write."""
        stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "who": user_name()}
        lines = [json.dumps({**stamp, "op": edit.op, "uid": edit.uid, "text": edit.text, "content": edit.content,
                             "left": len(edits) - number}, ensure_ascii=False)
                 for number, edit in enumerate(edits, start=1)]
        whole = self._read()[1]
        with explained("keep label edits", self.path), open(self.path, "r+b") as file:
            file.truncate(whole)
            file.seek(whole)
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> tuple[list[Entry], int]:
        """Return the edits of whole commands, and how many bytes those take."""
        data = self.path.read_bytes() if self.path.exists() else b""
        entries: list[Entry] = []
        kept, size, at, broken = 0, 0, 0, 0
        for number, line in enumerate(data.split(b"\n")[:-1], start=1):
            at += len(line) + 1
            found = _entry(line)
            if found is None:
                broken = broken or number
                continue
            if broken:    # not the end of what a killed command wrote: something was changed
                raise DamagedArtifact("the line is no label edit", where=f"{self.path}:{broken}",
                                      hint="restore the file, or take the line out")
            entry, left = found
            entries.append(entry)
            if left == 0:
                kept, size = len(entries), at
        return entries[:kept], size


def _entry(line: bytes) -> tuple[Entry, int] | None:
    """Return the edit that a line is, and how many more its command asked for."""
    try:
        row: dict[str, Any] = json.loads(line)
        return Entry(row["when"], row["who"], Edit(row["op"], row["uid"], row["text"], row["content"])), row["left"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
