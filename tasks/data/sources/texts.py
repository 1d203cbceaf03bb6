"""Parsers of texts: JSON lines with their positives, plain text, and pairs of uids.

Each gets some of a file's lines, with their numbers, and the file's name; a row's id is its line number less one. They
check each line alone; duplicates, empty texts and the like are left to the contract that follows.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError
from data_contracts.schemas import kind_of
from tasks.core.wording import plural
from tasks.data.sources.files import text_lines
from tasks.data.sources.shards import Ids, ShardBuffer, TablePart, check_relevance, short
from xcmodels.data.text import clean

Lines = Iterable[tuple[int, str]]


def json_texts(lines: Lines, file: str, size: int, table: str,
               positives: tuple[str, Ids] | None = None) -> Iterator[TablePart]:
    """Yield shards of a table of texts from JSON lines, and of its positives when their table and labels are given.

    Raises ContractError for a line that is not the JSON object it must be, or a label id that does not exist.
    """
    texts = ShardBuffer(table, file, size)
    pairs, labels = (ShardBuffer(positives[0], file, size), positives[1]) if positives else (None, None)
    for number, line in lines:
        where, row = f"{file}:{number}", number - 1
        entry = _object(line, where)
        uid, title, content = (_text(entry, key, where) for key in ("uid", "title", "content"))
        texts.add(row, uid, title, content, number)
        texts.characters += len(title) + len(content)
        yield from texts.full()
        if pairs is not None and labels is not None:
            ids, relevance = _targets(entry, labels, where)
            pairs.extend([row] * len(ids), ids, relevance, [number] * len(ids))
            yield from pairs.full()
    yield from texts.rest()
    if pairs is not None:
        yield from pairs.rest()


def _object(line: str, where: str) -> dict:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the line is not JSON: {error}" if line.strip() else "the line is blank", where=where,
                            hint='each line is one object: {"uid": "...", "title": "...", "content": "..."}') from error
    if not isinstance(entry, dict):
        raise ContractError(f"the line is JSON but not an object: {short(repr(entry))}", where=where,
                            hint='each line is one object: {"uid": "...", "title": "...", "content": "..."}')
    return entry


def _value(entry: dict, key: str, kind: type, where: str) -> Any:
    if key not in entry:
        raise ContractError(f"the key {key!r} is missing; the line has {', '.join(map(repr, entry)) or 'no keys'}",
                            where=where, hint='write an empty value where there is none, "" or []')
    value = entry[key]
    if not isinstance(value, kind):
        expected = "string" if kind is str else "list"
        raise ContractError(f"{key} must be a {expected}, got {short(repr(value))}", where=where)
    return value


def _text(entry: dict, key: str, where: str) -> str:
    return clean(_value(entry, key, str, where))


def _targets(entry: dict, labels: Ids, where: str) -> tuple[list[int], list[float]]:
    ids = _value(entry, "target_ind", list, where)
    relevance = _value(entry, "target_rel", list, where) if "target_rel" in entry else [1.0] * len(ids)
    if len(ids) != len(relevance):
        raise ContractError(f"target_ind has {plural(len(ids), 'value')} and target_rel {len(relevance)}", where=where,
                            hint="each label id needs one relevance; leave out target_rel where all count the same")
    for label in ids:
        if type(label) is not int:  # bool is an int to isinstance
            raise ContractError(f"target_ind must hold whole numbers, got {short(repr(label))}", where=where)
        if not 0 <= label < labels.count:
            labels.refuse(label, where)
    for value in relevance:
        if type(value) not in (int, float):
            raise ContractError(f"target_rel must hold numbers, got {short(repr(value))}", where=where)
        check_relevance(value, where)
    return ids, relevance


def plain_texts(lines: Lines, file: str, size: int, table: str) -> Iterator[TablePart]:
    """Yield shards of queries, labels or anchors from a file with one text per line; the uid is the row's number."""
    buffer = ShardBuffer(table, file, size)
    anchors = kind_of(table) == "anchors"
    for number, line in lines:
        row, title = number - 1, clean(line)
        if anchors:
            buffer.add(row, title, number)
        else:
            buffer.add(row, str(row), title, "", number)
        buffer.characters += len(title)
        yield from buffer.full()
    yield from buffer.rest()


def group_names(path: Path, size: int, table: str, queries: Ids, sha256: str = "") -> Iterator[TablePart]:
    """Yield shards of the queries' groups, from a line with the name of its group for each query, blank for none.

    Raises ContractError where there are more or fewer lines than queries.
    """
    buffer, number = ShardBuffer(table, path.name, size), 0
    for number, line in text_lines(path, sha256=sha256):
        if name := clean(line):
            buffer.add(number - 1, name, number)
        yield from buffer.full()
    if number != queries.count:
        raise ContractError(f"it has {plural(number, 'line')}, and {queries.file} {queries.count}", where=path.name,
                            hint="write a line for each query, a blank one where it has no group")
    yield from buffer.rest()


def broader_pairs(path: Path, size: int, table: str, sha256: str = "") -> Iterator[TablePart]:
    """Yield shards of the broader relation, from lines of a concept's uid, a tab, and the uid of a broader one.

    Raises ContractError for another line.
    """
    buffer = ShardBuffer(table, path.name, size)
    for number, line in text_lines(path, sha256=sha256):
        if not line.strip():
            continue
        uids = [clean(uid) for uid in line.split("\t")]
        if len(uids) != 2 or not all(uids):
            raise ContractError(f"the line is not two uids with a tab between: {short(repr(line))}",
                                where=f"{path.name}:{number}", hint="a concept, a tab, and one that is broader")
        buffer.add(*uids, number)
        yield from buffer.full()
    yield from buffer.rest()


def numbered_labels(count: int, file: str, size: int, table: str) -> Iterator[TablePart]:
    """Yield shards of labels without texts: each has its number as text, and line 1 of the file as its line."""
    buffer = ShardBuffer(table, file, size)
    for row in range(count):
        buffer.add(row, str(row), str(row), "", 1)
        yield from buffer.full()
    yield from buffer.rest()
