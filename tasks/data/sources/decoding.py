"""Text decoding: UTF-8, UTF-16 with a byte order mark, else Windows-1252 or Latin-1.

Some lines of the released data sets, and files of older programs, are in Windows-1252 or Latin-1.
"""

import codecs
import functools
import gzip
import io
import logging
import zlib
from collections import Counter
from typing import cast

log = logging.getLogger(__name__)

WINDOWS, LATIN1 = "Windows-1252", "Latin-1"    # also names of Python's codecs
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)    # errors of reading damaged bytes
_BLOCK = 1 << 20


def as_utf8(stream: "io.BufferedReader[io.RawIOBase]") -> "io.BufferedReader[io.RawIOBase]":
    """Return a stream that begins with UTF-16's byte order mark converted to UTF-8, any other as it is."""
    try:
        mark = stream.peek(2)[:2]
    except DAMAGE:
        mark = b""    # raised again, with a line number, when lines are read
    if mark not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream
    return io.BufferedReader(cast(io.RawIOBase, _FromUtf16(stream)), _BLOCK)


class _FromUtf16(io.RawIOBase):
    """A UTF-16 stream converted to UTF-8, so that lines are counted and split as in any other."""

    def __init__(self, stream: "io.BufferedReader[io.RawIOBase]") -> None:
        self._stream, self._rest = stream, b""
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # it never has to wait
        block = b"."
        while not self._rest and block:
            block = self._stream.read1(_BLOCK)
            self._rest = self._decoder.decode(block, final=not block).encode()
        part, self._rest = self._rest[:len(buffer)], self._rest[len(buffer):]
        buffer[:len(part)] = part
        return len(part)


class Decoder:
    """Lines of one file as text; it counts those that are not UTF-8."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()    # encoding -> lines that are not UTF-8
        self._first = 0

    def text(self, number: int, line: bytes) -> str:
        """Return a line as text.

        Bytes 0x80 to 0x9F are dashes and quotes in Windows-1252, and control characters in Latin-1, which no text has.
        """
        try:
            return line.decode()
        except UnicodeDecodeError:
            pass
        self._first = self._first or number
        try:
            text = line.decode(WINDOWS)
        except UnicodeDecodeError:
            text = line.decode(LATIN1)
        self._counts[LATIN1 if text == line.decode(LATIN1) else WINDOWS] += 1
        return text

    def say(self, name: str, which: object) -> None:
        """Log a warning of lines that were not UTF-8, once per process and file; `which` identifies the file."""
        if self._counts:
            _warn(name, which, self._counts.total(), WINDOWS if self._counts[WINDOWS] else LATIN1, self._first)


@functools.lru_cache(maxsize=64)
def _warn(name: str, _which: object, count: int, encoding: str, first: int) -> None:
    log.warning("%s: %d lines are not UTF-8 and were read as %s, the first is line %d; where letters are wrong, save "
                "the file as UTF-8", name, count, encoding, first)
