"""Room on the disk for files that are mapped."""

import os
from pathlib import Path


def take_room(path: Path, size: int) -> None:
    """Take `size` bytes of the disk for a file, made if there is none; its bytes stay.

    A page of a mapped file that finds no room ends the process by SIGBUS; raises OSError here instead. A system without
    the call (macOS) takes the room as it writes.
    """
    with path.open("ab") as file:
        getattr(os, "posix_fallocate", lambda *_: None)(file.fileno(), 0, size)
