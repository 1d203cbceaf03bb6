"""Text of the bytes that people's files hold: UTF-8, UTF-16 with a byte order mark, else Windows-1252 or Latin-1.

Some lines of a released data set are of the last kind, and so are the files of older programs.
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

WINDOWS, LATIN1 = "Windows-1252", "Latin-1"    # as Python knows them, too
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError)    # of bytes as they are read
_BLOCK = 1 << 20


def as_utf8(stream: "io.BufferedReader[io.RawIOBase]") -> "io.BufferedReader[io.RawIOBase]":
    """Return a stream of the same text in UTF-8 where one begins with UTF-16's byte order mark, else itself."""
    try:
        mark = stream.peek(2)[:2]
    except DAMAGE:
        mark = b""    # whoever reads the lines names it
    if mark not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream
    return io.BufferedReader(cast(io.RawIOBase, _FromUtf16(stream)), _BLOCK)


class _FromUtf16(io.RawIOBase):
    """Bytes of UTF-16 as bytes of UTF-8, so that what counts or cuts lines need not tell them apart."""

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
        self._older: Counter[str] = Counter()
        self._first = 0

    def text(self, number: int, line: bytes) -> str:
        """Return a line as text. Bytes 0x80 to 0x9F are what tells Windows-1252 from Latin-1.

        They are its dashes and quotes, and control characters in Latin-1, which no text holds.
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
        self._older[LATIN1 if text == line.decode(LATIN1) else WINDOWS] += 1
        return text

    def say(self, name: str, which: object) -> None:
        """Log what was not UTF-8 in a file, if anything was; once a process of the same file, `which` tells."""
        if self._older:
            _say(name, which, self._older.total(), WINDOWS if self._older[WINDOWS] else LATIN1, self._first)


@functools.lru_cache(maxsize=64)
def _say(name: str, _which: object, count: int, encoding: str, first: int) -> None:
    log.warning("%s: %d lines are not UTF-8 and were read as %s, the first is line %d; where letters are wrong, save "
                "the file as UTF-8", name, count, encoding, first)
