"""MARC records of a library's catalogue: MARC 21 (binary, in MARC-8 or UTF-8) and MARCXML.

A column is a field with its subfields: 245ab is title and subtitle, 650a the topical headings, 6xxa all headings, 001
the number of the record.
"""

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast
from xml.etree.ElementTree import Element, ParseError, iterparse

from data_contracts.errors import ContractError, UsageError
from tasks.data.sources.columns import Row
from tasks.data.sources.tabular import file_kind

# A record: tag and value of each control field, tag and (code, value) of each subfield of the others.
Fields = list[tuple[str, str | list[tuple[str, str]]]]
_COLUMN = re.compile(r"([0-9][0-9xX]{2})([a-z0-9]*)")
_BINARY = re.compile(rb"[0-9]{5}.{5}[ 0-9]{7}.{3}45")    # the leader's length, base address and entry map
_XML = re.compile(rb"MARC21/slim|<(\w+:)?record\b[^>]*>\s*<(\w+:)?(leader|controlfield|datafield)\b")
_LEADS, _BETWEEN = 5, b"\r\n\x1a\0"    # bytes that pymarc reads of a record first; what may be before them
_MARK = 9 - _LEADS    # in the others, the place of the leader's mark of UTF-8
_NOT_MARC8 = re.compile("Unable to parse character.*|Multi-byte position.*")    # as pymarc says on stderr
_SEPARATED = re.compile(r"[\s/:;,=]+$")    # ISBD's punctuation before the next part of a record
_FULL_STOP = re.compile(r"(?<=[^\W\d_]{4})\.$")    # at the end of a heading, but not of "etc."


def is_marc(path: Path) -> bool:
    """Return whether a file is called so, begins with a record of MARC 21 or is MARCXML."""
    return path.is_file() and (_is_binary(path) or _is_xml(_head(path)))


def read(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the records of a file. Raises UsageError for a column that is no field with subfields."""
    wanted = {role: _column(role, names[0]) for role, names in columns.items()}
    for number, fields in enumerate(_records(path), 1):
        cells: dict[str, Any] = {}
        for role, (tag, codes) in wanted.items():
            found = [value for name, value in fields if tag.fullmatch(name)]
            if role == "labels":
                named = [(heading, _authority(value)) for value in found if (heading := _heading(value, codes))]
                cells |= {"labels": [name for name, _ in named], "also": [number for _, number in named]}
            else:
                cells[role] = _SEPARATED.sub("", " ".join(part for value in found for part in _parts(value, codes)))
        yield Row(f"{path}, record {number}", number, cells, {role: names[0] for role, names in columns.items()})


def _column(role: str, name: str) -> tuple[re.Pattern[str], str]:
    """Return the tags and the subfields of a column."""
    if (match := _COLUMN.fullmatch(name)) is None:
        raise UsageError(f"a column of MARC is a field with its subfields, got {name!r} for {role}",
                         hint="for example --text 245ab --labels 650a, or 6xxa for all subject headings")
    return re.compile(match[1].lower().replace("x", "[0-9]")), match[2]


def _parts(value: str | list[tuple[str, str]], codes: str) -> list[str]:
    """Return the text of a control field, or those of the subfields with the codes, in order; all without codes."""
    parts = [value] if isinstance(value, str) else [part for code, part in value if not codes or code in codes]
    return [part.strip() for part in parts if part.strip()]


def _heading(value: str | list[tuple[str, str]], codes: str) -> str:
    """Return a subject heading, its subdivisions separated as catalogues do."""
    return " -- ".join(_FULL_STOP.sub("", _SEPARATED.sub("", part)) for part in _parts(value, codes or "a"))


def _authority(value: str | list[tuple[str, str]]) -> str:
    """Return the URI or the number of a heading's authority record ($0), "" without one."""
    numbers = _parts(value, "0") if isinstance(value, list) else []
    chosen = next((number for number in numbers if "://" in number), numbers[0] if numbers else "")
    return re.sub(r"^\([^)]*\)(?=\w+://)", "", chosen)


# ---- files

def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb"))


def _is_xml(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<") and _XML.search(head) is not None


def _is_binary(path: Path) -> bool:
    return file_kind(path) in (".mrc", ".marc") or _BINARY.match(_head(path)) is not None


def _head(path: Path) -> bytes:
    try:
        with _open(path) as file:
            return file.read(65_536)
    except (OSError, EOFError, zlib.error):
        return b""    # whoever reads the file says what is wrong


def _records(path: Path) -> Iterator[Fields]:
    try:
        yield from _binary_records(path) if _is_binary(path) else _xml_records(path)
    except (OSError, EOFError, zlib.error) as error:
        raise ContractError(f"the file cannot be read: {error}", where=str(path),
                            hint="fetch or write it again") from error


class _Records:
    """The bytes of records for pymarc's reader, which reads 5 of a leader, then the rest of the record.

    Line ends and end-of-file marks between records are passed over, as editors and FTP in text mode leave them. A
    record in UTF-8 gets the leader's mark of it, which UNIMARC does not have and many programs leave out: without it
    all bytes would be read as MARC-8, most of them as other letters.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(max(size, 0))    # less than 0 where a leader says so: the reader refuses the record
        while size == _LEADS and data[:1] and data[:1] in _BETWEEN:
            data = data.lstrip(_BETWEEN)
            data += self._file.read(_LEADS - len(data))
        if size != _LEADS and not data.isascii() and _is_utf8(data):
            data = data[:_MARK] + b"a" + data[_MARK + 1:]
        return data


def _is_utf8(data: bytes) -> bool:
    """Return whether bytes are UTF-8; letters of MARC-8 are not, as a mark stands before an ASCII letter there."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _binary_records(path: Path) -> Iterator[Fields]:
    from pymarc import MARCReader

    with _open(path) as file:
        reader = MARCReader(cast(BinaryIO, _Records(file)), to_unicode=True, permissive=True, utf8_handling="strict")
        for number in count(1):
            with redirect_stderr(StringIO()) as said:
                record = next(reader, None)
            if not reader.current_chunk:    # the end
                return
            lost = _NOT_MARC8.search(said.getvalue())    # pymarc reads a blank for it
            if record is None or lost:
                raise ContractError(f"the record cannot be read: {lost[0] if lost else reader.current_exception}",
                                    where=f"{path}, record {number}", hint="export the file again, as MARC 21 in UTF-8")
            yield [(field.tag, field.data or "") if field.control_field else
                   (field.tag, [(part.code, part.value) for part in field.subfields]) for field in record.fields]


def _xml_records(path: Path) -> Iterator[Fields]:
    try:
        with _open(path) as file:
            for _, element in iterparse(file):
                if _local(element) == "record":
                    if fields := [_xml_field(child) for child in element if _local(child).endswith("field")]:
                        yield fields
                    element.clear()
    except ParseError as error:
        raise ContractError(f"the file is not XML: {error}", where=f"{path}:{error.position[0]}",
                            hint="export the file again, as MARCXML") from error
    except (ValueError, LookupError) as error:    # of an encoding that expat does not know
        raise ContractError(f"its encoding cannot be read: {error}", where=str(path),
                            hint="save it as UTF-8") from error


def _xml_field(element: Element) -> tuple[str, str | list[tuple[str, str]]]:
    tag = element.get("tag", "")
    if _local(element) == "controlfield":
        return tag, element.text or ""
    return tag, [(part.get("code", ""), part.text or "") for part in element]


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
