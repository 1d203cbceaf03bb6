"""Writing of raw data sets: atomic, and the same bytes for the same content."""

import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from tasks.core.hidden_folders import end_left, hidden_folder
from tasks.data.sources.raw import ABOUT

WRITER = "xcflow"
_SUFFIX = ".tmp"          # of the hidden folder that a data set is written in
_PREVIOUS = "previous"    # the earlier data set, while a new one takes its place
_OF_FILE_MANAGERS = (".DS_Store", ".directory", "Thumbs.db", "desktop.ini")    # in each folder that was looked at


@contextmanager
def raw_folder(out: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a hidden folder next to `out` to write into; it becomes `out` only when the block ends without an error.

    about: content of dataset.json; the list of files is added, by which a later call recognises the folder as ours.
    Raises UsageError where `out` holds anything that was not written here.
    """
    out = Path(os.path.realpath(out))
    recover(out)
    refuse_foreign(out)
    with hidden_folder(out, _SUFFIX, _put_back) as hidden:    # Ctrl-C or an error between the two renames, too
        data = hidden / out.name
        data.mkdir()  # the hidden folder is private; this one has the usual mode
        yield data
        names = sorted(path.name for path in data.iterdir())
        manifest = {**about, "written_by": WRITER, "files": [*names, ABOUT]}
        (data / ABOUT).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        refuse_foreign(out)  # hours may have passed
        if out.exists():
            # a folder that is not empty is not replaced atomically: for a moment there is none, never half of one
            os.rename(out, hidden / _PREVIOUS)
        os.rename(data, out)


def recover(out: Path) -> None:
    """Put back the data set that a killed import had moved away from `out`, and remove the folders that such left."""
    end_left(Path(os.path.realpath(out)), _SUFFIX, _put_back)


def _put_back(hidden: Path, out: Path) -> None:
    """Rename the earlier data set to `out` if there is none, and remove the folder that it was moved to."""
    if not os.path.lexists(out) and (hidden / _PREVIOUS).exists():
        os.rename(hidden / _PREVIOUS, out)
    shutil.rmtree(hidden, ignore_errors=True)


def refuse_foreign(out: Path) -> None:
    """Raise UsageError where `out` is a file, the current folder, or one with anything in it but a data set of ours."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, and a data set is a folder", hint="name another folder")
    if out.exists() and out.samefile("."):    # it would be removed under the user's shell
        raise UsageError(f"{out} is the current folder, which cannot be replaced", hint="cd .., and name it from there")
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if foreign := sorted(names.difference(ours(out).get("files", ()), _OF_FILE_MANAGERS)):
        raise UsageError(f"{out} is not empty and holds {foreign[0]!r}, which is not part of a data set written here",
                         hint=f"name a new folder, or look through this one and remove it: rm -r {out}")


def ours(out: Path) -> dict[str, Any]:
    """Return dataset.json of a data set written here, with `files` at least; {} where the folder has none."""
    try:
        manifest = json.loads((out / ABOUT).read_text(encoding="utf-8-sig"))    # as `describe` reads it
    except (OSError, ValueError):
        return {}
    if not isinstance(manifest, dict) or manifest.get("written_by") != WRITER:
        return {}
    files = manifest.get("files")
    return {**manifest, "files": [str(name) for name in files] if isinstance(files, list) else []}


def name_and_constants(out: Path) -> dict[str, Any]:
    """Return the name of a data set, and its propensity constants if it has any, as a user may have set them."""
    return {"name": out.resolve().name} | {key: value for key, value in ours(out).items()
                                           if key in ("name", "propensity")}


@contextmanager
def _text_file(path: Path) -> Iterator[Any]:
    """Open a file for writing bytes, as gzip where its name ends in .gz, without time or name in the gzip header."""
    with open(path, "wb") as plain:
        if path.suffix != ".gz":
            yield plain
            return
        with gzip.GzipFile(filename="", mode="wb", fileobj=plain, compresslevel=6, mtime=0) as packed:
            yield packed


@contextmanager
def line_writer(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes one line."""
    with _text_file(path) as stream:
        yield lambda text: stream.write(text.encode() + b"\n")


@contextmanager
def json_lines(path: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes one JSON object per line."""
    with line_writer(path) as write:
        yield lambda row: write(_json(row))


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line, and return how many."""
    return write_lines(path, map(_json, rows))


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


def json_row(uid: str, title: str, content: str, targets: Sequence[int] | Mapping[int, float] | None = None,
             ) -> dict[str, Any]:
    """Return a row of trn.json.gz or tst.json.gz; without targets, of lbl.json.gz.

    targets: the ids of its labels, all of relevance 1, or id -> relevance, which are sorted by id.
    """
    row: dict[str, Any] = {"uid": uid, "title": title, "content": content}
    if targets is None:
        return row
    by_id = dict(sorted(targets.items())) if isinstance(targets, Mapping) else dict.fromkeys(targets, 1.0)
    return {**row, "target_ind": list(by_id), "target_rel": list(by_id.values())}


def write_lines(path: Path, texts: Iterable[str]) -> int:
    """Write one text per line, and return how many."""
    count = 0
    with line_writer(path) as write:
        for text in texts:
            write(text)
            count += 1
    return count


def write_pairs(path: Path, pairs: Iterable[tuple[int, int]]) -> int:
    """Write "row label" lines, both 0-based, and return how many."""
    return write_lines(path, (f"{row} {label}" for row, label in pairs))


def write_sparse(path: Path, rows: Sequence[Sequence[int]], width: int) -> int:
    """Write a header "N L", then a line "id:1 id:1" per row, blank for an empty one; return the number of entries."""
    body = (" ".join(f"{column}:1" for column in row) for row in rows)
    write_lines(path, (line for part in ([f"{len(rows)} {width}"], body) for line in part))
    return sum(map(len, rows))
