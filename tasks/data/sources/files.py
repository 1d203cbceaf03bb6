"""Lines of raw files or stdin, decompressed and decoded; detection of changed files.

Texts are UTF-8, or UTF-16 with a byte order mark. Some lines of the released data sets, and files of older programs,
are in Windows-1252 or Latin-1.
"""

import codecs
import functools
import gzip
import hashlib
import io
import logging
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from data_contracts.errors import ContractError, ProjectError, UsageError

STDIN = "-"    # instead of a path
_WINDOWS, _LATIN1 = "Windows-1252", "Latin-1"    # also names of Python's codecs
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)    # errors of reading damaged bytes
_GZIP = b"\x1f\x8b"    # its first bytes
_BLOCK = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """Every `of`-th block of `size` lines of a file, from block `number` on; all `of` shares make up the file."""

    size: int
    number: int = 0
    of: int = 1

    def block(self, line: int) -> int:
        """Return the block of a line; lines are counted from 1."""
        return (line - 1) // self.size

    def has(self, block: int) -> bool:
        """Return whether a block is in the share."""
        return block % self.of == self.number


WHOLE_FILE = Share(1)


def require_file(source: Path | str) -> None:
    """Raise UsageError where there is no such file; stdin is always there."""
    if source != STDIN and not os.path.exists(source):    # False of a name that is too long
        raise UsageError(f"{source} does not exist", hint="check the path")


class _Hashing(io.RawIOBase):
    """A file that computes the sha256 of what is read."""

    def __init__(self, file: Any) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # a file of bytes never has to wait
        count = self.file.readinto(buffer)
        self.sha256.update(buffer[:count])
        return count


@contextmanager
def _opened(path: Path | str, sha256: str = "") -> Iterator[Iterable[bytes]]:
    """Yield the lines of a file, to be read to its end: UTF-16 as UTF-8, and gzip decompressed.

    It is gzip where its name ends in .gz, or where it begins so: stdin has no name.
    Raises ProjectError where the block ends without an error and what was read has another `sha256`.
    """
    try:
        if path == STDIN and sys.stdin is None:
            raise UsageError("stdin is closed", hint="name a file in place of -")
        # stdin without its buffer, which would wait until it is full
        stdin = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer) if path == STDIN else None
        with nullcontext(stdin) if stdin else open(path, "rb", 0) as file:
            hashing = _Hashing(file)
            stream: io.BufferedReader[io.RawIOBase] = io.BufferedReader(hashing, _BLOCK)
            if Path(path).suffix.lower() == ".gz" or stream.peek(2)[:2] == _GZIP:
                # GzipFile splits lines in Python, which takes as long as decompressing them
                stream = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)), _BLOCK)
            yield _as_utf8(stream)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", hint="check the folder's path and the file's name") from error
    except (IsADirectoryError, PermissionError) as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name a file that you may read") from error
    refuse_other(path, sha256, hashing.sha256.hexdigest())


def _as_utf8(stream: "io.BufferedReader[io.RawIOBase]") -> Iterable[bytes]:
    try:
        mark = stream.peek(2)[:2]
    except _DAMAGE as error:    # where a header is cut, a further read would find an end of the file in its place
        return _raising(error)
    if mark not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream
    return (line.encode() for line in io.TextIOWrapper(stream, "utf-16", newline="\n"))


def _raising(error: Exception) -> Iterator[bytes]:
    """Raise the error when lines are read, so that it is told with where it stands."""
    raise error
    yield


def refuse_other(path: Path | str, expected: str, found: str) -> None:
    """Raise ProjectError where two digests of a file or folder differ; "" accepts any."""
    if expected and found != expected:
        raise ProjectError(f"{path} has changed since the run began: its sha256 is {found[:12]}, and was "
                           f"{expected[:12]}", hint="run the same command again when nothing writes to it any more")


def refuse_changed(path: Path, sha256: str) -> None:
    """Raise ProjectError where a file has another sha256; "" accepts any."""
    if sha256:
        with open(path, "rb") as file:
            refuse_other(path, sha256, hashlib.file_digest(file, "sha256").hexdigest())


def whole_file(path: Path, sha256: str = "") -> bytes:
    """Return all bytes of a file. Raises ProjectError where they have another sha256; "" accepts any."""
    data = path.read_bytes()
    refuse_other(path, sha256, hashlib.sha256(data).hexdigest())
    return data


def _damaged(path: Path | str, number: int, error: Exception) -> ContractError:
    name, where = _name(path), "stdin" if path == STDIN else str(path)
    after, where = (f"after line {number}", f"{where}:{number}") if number else ("in its first line", where)
    if isinstance(error, UnicodeDecodeError):
        return ContractError(f"{name} begins as UTF-16, and is damaged or cut short {after} ({error.reason})",
                             where=where, hint="save the file as UTF-8")
    return ContractError(f"the gzip data of {name} is damaged or cut short {after} ({error})", where=where,
                         hint="fetch or write the file again; check it with: gzip -t")


def _name(path: Path | str) -> str:
    return "stdin" if path == STDIN else Path(path).name


def lines(path: Path | str, sha256: str = "") -> Iterator[tuple[int, bytes]]:
    """Yield every line of a file with its number, counted from 1, without its line end.

    Raises UsageError when the file cannot be opened, ContractError when its gzip data or UTF-16 is damaged, and
    after the last line ProjectError when what was read has another `sha256`.
    """
    number = 0
    with _opened(path, sha256) as content:
        try:
            for number, line in enumerate(content, 1):
                yield number, (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")
        except _DAMAGE as error:
            raise _damaged(path, number, error) from error


def blocks(path: Path, share: Share, sha256: str = "") -> Iterator[tuple[int, Iterator[tuple[int, str]]]]:
    """Yield (number, lines) of every block of a share; the lines must be read before the next block.

    Lines are as `text_lines` yields them. A file without lines has an empty block 0. Raises what `lines` raises.
    """
    share_lines, number = text_lines(path, share, sha256), -1
    for number, block in groupby(share_lines, key=lambda line: share.block(line[0])):
        yield number, block
    if number < 0 and share.has(0):
        yield 0, iter(())


def text_lines(path: Path | str, share: Share = WHOLE_FILE, sha256: str = "") -> Iterator[tuple[int, str]]:
    """Yield every line of a share of a file as text with its number in the file, counted from 1.

    The whole file is read, and hashed, whatever the share. Raises what `lines` raises. How many lines are not UTF-8 is
    logged at the end.
    """
    others: Counter[str] = Counter()    # encoding -> lines that are not UTF-8
    first = 0
    for number, line in lines(path, sha256):
        if share.has(share.block(number)):
            try:
                text = line.decode()
            except UnicodeDecodeError:
                text, encoding = _decoded(line)
                others[encoding] += 1
                first = first or number
            yield number, text
    if others:
        _warn(_name(path), time.monotonic_ns() if path == STDIN else path,    # stdin differs each time
              others.total(), _WINDOWS if others[_WINDOWS] else _LATIN1, first)


def _decoded(line: bytes) -> tuple[str, str]:
    """Return a line that is not UTF-8 as text, and its encoding.

    Bytes 0x80 to 0x9F are dashes and quotes in Windows-1252, and control characters in Latin-1, which no text has.
    """
    latin1 = line.decode(_LATIN1)
    try:
        text = line.decode(_WINDOWS)
    except UnicodeDecodeError:
        return latin1, _LATIN1
    return text, _LATIN1 if text == latin1 else _WINDOWS


@functools.lru_cache(maxsize=64)
def _warn(name: str, _which: object, count: int, encoding: str, first: int) -> None:
    """Log a warning, once per process and file; `_which` identifies the file."""
    which = f"a line is not UTF-8 and was read as {encoding}, line" if count == 1 else (
        f"{count:,} lines are not UTF-8 and were read as {encoding}, the first is line")
    _log.warning("%s: %s %d; where letters are wrong, save the file as UTF-8", name, which, first)


def count_lines(path: Path, sha256: str = "") -> int:
    """Return how many lines a file has; a last line without a line end counts too.

    Raises what `lines` raises. Counted once per process until the file changes.
    """
    try:
        state = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return _count_lines(path, sha256, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _count_lines(path: Path, sha256: str, _size: int, _changed: int) -> int:
    return sum(1 for _ in lines(path, sha256))
