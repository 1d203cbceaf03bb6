"""Annif's document corpora: TSV, CSV and JSON lines of short texts, and folders of full texts.

Their formats are described in Annif's wiki, "Document corpus formats". Subjects are URIs, or labels, or both.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError
from tasks.data.sources.columns import Layout, Row
from tasks.data.sources.delimited import LOOKED_AT
from tasks.data.sources.files import text_lines
from tasks.data.sources.tabular import file_kind, read_rows

_URI = re.compile(r"<[^<>\s]+>|[A-Za-z][A-Za-z0-9+.-]*:\S+")
_SUBJECTS = (".tsv", ".key")    # ends of the files that hold a full text's subjects
_JSON_HINT = 'a document is {"text": "...", "subjects": [{"uri": "..."}]}, or has {"label": "..."}'


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, in angle brackets or without them."""
    return _URI.fullmatch(text) is not None


def bare_uri(uri: str) -> str:
    """Return a URI without blanks and angle brackets around it."""
    return uri.strip().removeprefix("<").removesuffix(">")


# ---- short texts

def is_tsv(path: Path) -> bool:
    """Return whether a file has lines of a text, a tab and URIs."""
    return file_kind(path) in (".tsv", ".txt", "") and any(
        tab and (words := uris.split()) and all(map(is_uri, words))
        for _, tab, uris in (line.partition("\t") for _, line in _first_lines(path)))


def read_tsv(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the documents of a TSV file: a text, a tab, and the URIs of its subjects with blanks between them.

    Raises ContractError for words that are no URIs: a header line, or names of subjects.
    """
    for number, line in text_lines(path):
        text, tab, uris = line.partition("\t")
        if line.strip():
            if not tab:
                raise ContractError(f"the line has no tab: {line[:80]!r}", where=f"{path}:{number}",
                                    hint="a line is a text, a tab, and the URIs of its subjects")
            if bad := [word for word in uris.split() if not is_uri(word)]:
                raise ContractError(f"{bad[0][:80]!r} is not a URI", where=f"{path}:{number}",
                                    hint="subjects are URIs with blanks between them; take out a header line, or name "
                                         "its columns: --text COLUMN --labels COLUMN")
            yield Row(f"{path}:{number}", number, {"text": text, "labels": [*map(bare_uri, uris.split())]}, {})


def is_csv(path: Path) -> bool:
    """Return whether a file is CSV with columns `text` and `subject_uris`."""
    header = next((line for _, line in _first_lines(path)), "") if file_kind(path) == ".csv" else ""
    return {"text", "subject_uris"} <= {cell.strip('" ') for cell in re.split("[,;\t]", header)}


def read_csv(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the documents of a CSV file, in any dialect that a table may have; the URIs have blanks between them.

    A document's uid is its document_id, where no other column is named for it and the file has this one.
    """
    for row in read_rows(path, Layout({"uid": ("document_id",), **columns}, tuple(columns))):
        yield replace(row, cells={**row.cells, "labels": [*map(bare_uri, row.text("labels").split())]})


def is_json(path: Path) -> bool:
    """Return whether a file has lines that are objects with a list of subjects."""
    return file_kind(path) in (".jsonl", ".json") and any(
        isinstance(document, dict) and isinstance(document.get("subjects"), list)
        for document in (_parsed(line) for _, line in _first_lines(path)))


def read_json(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the documents of JSON lines."""
    for number, line in text_lines(path):
        if line.strip():
            yield _document(line, f"{path}:{number}", number)


def _first_lines(path: Path) -> Iterator[tuple[int, str]]:
    lines = islice(text_lines(path), LOOKED_AT) if path.is_file() else iter(())
    return ((number, line) for number, line in lines if line.strip())


# ---- full texts

def is_folder(path: Path) -> bool:
    """Return whether a folder has texts (.txt), or documents in JSON (.json)."""
    return path.is_dir() and any(_files(path))


def read_folder(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the documents of a folder by name; a document's uid is its id in a JSON file, or its file's name.

    Its text is a full text, so a content, also where a JSON file has no title. The subjects of NAME.txt are in
    NAME.tsv, or else in NAME.key; without either it has none. Subjects without a text are a document without one.
    """
    files, subjects_of = _files(path), {(key.stem, key.suffix.lower()): key for key in _ending(path, _SUBJECTS)}
    for number, file in enumerate(files, 1):
        text = "\n".join(line for _, line in text_lines(file))
        if file.suffix.lower() == ".json":
            row = _document(text, str(file), number)
            full = {} if "content" in row.cells else {"text": None, "content": row.cells["text"]}
            yield replace(row, cells={**row.cells, **full, "uid": row.text("uid") or file.stem})
            continue
        subjects = next((key for end in _SUBJECTS if (key := subjects_of.get((file.stem, end)))), None)
        pairs = [_subject(line) for _, line in text_lines(subjects) if line.strip()] if subjects else []
        yield Row(str(subjects or file), number, {"uid": file.stem, "content": text, **_labels(pairs)}, {})
    names = {file.stem for file in files}
    alone = sorted(key for key in subjects_of.values() if key.stem not in names)
    for number, file in enumerate(alone, len(files) + 1):
        yield Row(str(file), number, {"uid": file.stem}, {})


def _files(folder: Path) -> list[Path]:
    return _ending(folder, (".txt", ".json"))


def _ending(folder: Path, ends: Sequence[str]) -> list[Path]:
    """Return the files with such an end, in any case; not hidden ones, such as ._NAME.txt, which macOS leaves."""
    return sorted(path for path in folder.iterdir()
                  if path.suffix.lower() in ends and not path.name.startswith(".") and path.is_file())


def _subject(line: str) -> tuple[str, str]:
    """Return the URI and the label of a line `<URI> tab label`, or of a line that is a label."""
    first, _, second = line.partition("\t")
    return (bare_uri(first), second.partition("\t")[0].strip()) if is_uri(first.strip()) else ("", line.strip())


# ---- subjects and JSON

def _labels(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the cells of subjects, each (URI, label), of which one may be ""."""
    return {"labels": [uri or label for uri, label in pairs], "also": [label for _, label in pairs]}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _document(text: str, where: str, number: int) -> Row:
    """Return the row of a document in JSON. A title among its metadata is the title, and its text the content."""
    data = _parsed(text)
    if not isinstance(data, dict):
        raise ContractError("it is not a JSON object", where=where, hint=_JSON_HINT)
    subjects, metadata = data.get("subjects") or [], data.get("metadata") or {}
    if not isinstance(subjects, list) or not all(isinstance(each, dict) and _texts(each, "uri", "label")
                                                 for each in subjects):
        raise ContractError(f"subjects must be a list of objects with a uri or a label, got {str(subjects)[:80]}",
                            where=where, hint=_JSON_HINT)
    pairs = [(bare_uri(each.get("uri") or ""), each.get("label") or "") for each in subjects]
    title = metadata.get("title") if isinstance(metadata, dict) else None
    words = {"text": title, "content": data.get("text")} if title else {"text": data.get("text")}
    return Row(where, number, {"uid": data.get("document_id"), **words, **_labels(pairs)}, {})


def _texts(subject: dict[str, Any], *keys: str) -> bool:
    """Return whether one of the values is a text, and no other is anything but a text."""
    values = [subject[key] for key in keys if subject.get(key) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)
