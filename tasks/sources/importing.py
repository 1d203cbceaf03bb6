"""Import of a table of texts and label names, as people keep it, into the XC repository's raw format.

The file is read three times rather than held: to guess the separator, to collect the labels, to write; once more where
texts that were edited are to stay in the half that they were in.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, UsageError
from tasks.files import file_digest
from tasks.sources.files import refuse_changed, text_lines
from tasks.sources.halves import UID, Halves, halves, key_of
from tasks.sources.writing import json_lines, point, raw_folder, refuse_foreign, write_json_lines
from xcmodels.text import clean

SEPARATORS = (";", "|", ",")
_LOOKED_AT = 10_000  # label cells from which the separator is guessed
_RARE = 0.01  # a character in fewer of them is taken for part of a name
_SPLITS = {"train": False, "trn": False, "test": True, "tst": True}


@dataclass(frozen=True)
class _Row:
    """One row of the user's file: a text for each column that is in use, and the labels as they stand there."""

    where: str
    number: int
    texts: dict[str, str]
    labels: Any

    @property
    def text(self) -> tuple[str, str]:
        """Its title and its content."""
        return self.texts["text"], self.texts.get("content", "")


@dataclass(frozen=True)
class _Plan:
    """How the rows of a file become points: from which columns, split at what ("" for not at all), in which half."""

    file: Path
    columns: dict[str, str]  # role -> name of the column
    separator: str
    halves: Halves

    def points(self, skipped: Counter) -> Iterator[tuple[bool, str, str, str, list[str]]]:
        """Yield (is for testing, uid, title, content, label names) of every usable row, and count the others."""
        for row in _rows(self.file, self.columns):
            title, content = row.text
            labels = _labels(row, self.separator)
            if not title and not content:
                skipped["rows_without_text"] += 1
            elif not labels:
                skipped["rows_without_labels"] += 1
            else:
                yield self._is_test(row), row.texts.get("uid") or str(row.number), title, content, labels

    def _is_test(self, row: _Row) -> bool:
        if "split" in self.columns:
            name = row.texts["split"].lower()
            if name not in _SPLITS:
                raise ContractError(f"the split must be train or test, got {name!r}", where=row.where,
                                    hint=f"change column {self.columns['split']!r}, or leave it out and rows are drawn")
            return _SPLITS[name]
        return self.halves.is_test(*row.text)


@dataclass
class _Found:
    """What the second pass collects."""

    train: set[str] = field(default_factory=set)    # labels
    test: set[str] = field(default_factory=set)
    trained: set[int] = field(default_factory=set)    # texts, where a column and not the text decides on the half


def import_file(file: Path, out: Path, *, text: str, labels: str, content: str | None = None, uid: str | None = None,
                split: str | None = None, separator: str | None = None, test_fraction: float = 0.2) -> dict[str, Any]:
    """Write the rows of a .csv, .tsv, .jsonl or .parquet file as an XC repository folder, and return a summary.

    `text`, `labels`, `content`, `uid`, `split` name columns. Labels are a list, or a text split at `separator`: None
    guesses among ; | and , (the summary says how), "" takes the whole text for one label. They are sorted by name; a
    label's name is its title and its uid, so that a later import, with other labels, calls it the same. Without a split
    column a text stays in the half where a data set of ours in `out` has it; a new one is for testing by its SHA-1
    (`tasks.sources.halves`). Labels that no training row has are left out, as are test rows without another one; both
    are counted.
    Raises UsageError for a setting that cannot be meant, ContractError naming file and line of a bad row, and
    ProjectError for a file that is written to meanwhile.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"the share of test rows must be from 0 to below 1, got {test_fraction}", hint="--test 0.2")
    refuse_foreign(out)
    sha256 = file_digest(file) if file.is_file() else ""
    named = {"text": text, "labels": labels, "content": content, "uid": uid, "split": split}
    columns = {role: name for role, name in named.items() if name is not None}
    reason = "given"
    if separator is None:
        separator, reason = _guess(row.labels for row in _rows(file, columns))
    texts = ((row.texts.get("uid", ""), *row.text) for row in _rows(file, columns))
    plan = _Plan(file, columns, separator, Halves(0.0) if split else halves(out, test_fraction, texts, uid))
    skipped: Counter[str] = Counter(rows_without_text=0, rows_without_labels=0)
    found = _Found()
    for is_test, _, *words, names in plan.points(skipped):
        (found.test if is_test else found.train).update(names)
        if split and not is_test:
            found.trained.add(key_of(*words))
    if not found.train:
        raise ContractError(f"{file.name} has no training row with a text and a label "
                            f"({', '.join(f'{key}: {count}' for key, count in skipped.items())})", where=str(file),
                            hint="check the names of the columns, and the split column or the share of test rows")
    if test_fraction and split is None and not found.test:
        # also when the file is the training part of a split that was drawn by the same rule
        raise ContractError(f"none of the usable rows of {file.name} was drawn for testing with a share of "
                            f"{test_fraction}", where=str(file), hint="raise --test, or name a column: --split COLUMN")
    counts = _write(plan, out, found, sha256)
    return {**counts, **skipped, "labels_never_in_training": len(found.test - found.train), "separator": separator,
            "separator_reason": reason, **_split_reason(plan, out, counts)}


def _split_reason(plan: _Plan, out: Path, counts: dict[str, int]) -> dict[str, str]:
    """Return what is to be known of a split beyond its counts: {"split_reason": words}, or nothing."""
    if shared := counts.get("test_rows_with_a_text_of_train"):
        return {"split_reason": f"by column {plan.columns['split']!r} {shared:,} of {counts['test']:,} test rows have "
                                "a text that train has, and xc run refuses more than 1% (prepare.leak_share); without "
                                "--split equal texts lie in one half"}
    if plan.halves.before:
        return {"split_reason": f"texts that were in {out.name} stay in their half, new ones are drawn with share "
                                f"{plan.halves.share:g}; a new folder draws all"}
    return {}


def _write(plan: _Plan, out: Path, found: _Found, sha256: str) -> dict[str, int]:
    """Write the folder, unless the file has another `sha256` in the end, and return its counts."""
    names = sorted(found.train)
    ids = {name: number for number, name in enumerate(names)}
    counts: Counter[str] = Counter(train=0, test=0, labels=len(names), positives_train=0, positives_test=0,
                                   test_rows_without_known_labels=0)

    about = {"name": out.resolve().name} | ({UID: plan.columns["uid"]} if "uid" in plan.columns else {})
    with raw_folder(out, about) as made:
        with json_lines(made / "trn.json.gz") as train, json_lines(made / "tst.json.gz") as test:
            for is_test, uid, title, content, own in plan.points(Counter()):
                side = "test" if is_test else "train"
                if targets := sorted(ids[name] for name in own if name in ids):
                    (test if is_test else train)(point(uid, title, content, targets))
                    counts[side] += 1
                    counts[f"positives_{side}"] += len(targets)
                    if is_test and key_of(title, content) in found.trained:
                        counts["test_rows_with_a_text_of_train"] += 1
                else:
                    counts["test_rows_without_known_labels"] += 1
        write_json_lines(made / "lbl.json.gz", (point(name, name, "") for name in names))
        refuse_changed(plan.file, sha256)
    return dict(counts)


# ---- labels

def _guess(cells: Iterable[Any]) -> tuple[str, str]:
    """Return a separator and in words why: the first of ; | , that is in at least 1% of the first label cells."""
    texts = list(islice((cell for cell in cells if isinstance(cell, str) and cell), _LOOKED_AT))
    if not texts:
        return "", "the labels are lists"
    having = {mark: sum(mark in cell for cell in texts) for mark in SEPARATORS}
    seen = ", ".join(f"{count} have {mark!r}" for mark, count in having.items())
    chosen = next((mark for mark, count in having.items() if count and count >= _RARE * len(texts)), "")
    taken = f"{chosen!r} taken" if chosen else "each taken for one label"
    return chosen, f"guessed: of {len(texts)} label cells {seen}; {taken}, give a separator to decide otherwise"


def _labels(row: _Row, separator: str) -> list[str]:
    """Return the label names of a row, cleaned, each once, in their order."""
    value = row.labels
    if value is None:
        return []
    if isinstance(value, str):
        parts: list[Any] = value.split(separator) if separator else [value]
    elif isinstance(value, list):
        parts = value
    else:
        raise ContractError(f"labels must be a list or a text, got {value!r}", where=row.where)
    return list(dict.fromkeys(name for part in parts if (name := _plain(part, "a label", row.where))))


def _plain(value: Any, what: str, where: str) -> str:
    """Return a cell as clean text; whole numbers are written out, as ids often are numbers."""
    if value is None:
        return ""
    if type(value) not in (str, int):
        raise ContractError(f"{what} must be a text, got {value!r}", where=where)
    return clean(str(value))


# ---- rows

def _rows(file: Path, columns: dict[str, str]) -> Iterator[_Row]:
    """Yield the rows of a file with the columns in use.

    Raises UsageError for a kind of file that is not known or a column that is not there.
    """
    kinds = {".csv": _csv_rows, ".tsv": _csv_rows, ".jsonl": _json_rows, ".json": _json_rows, ".parquet": _parquet_rows}
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix != ".gz"]
    kind = kinds.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise UsageError(f"{file.name} is of no kind that can be imported", hint=f"known are {', '.join(kinds)}")
    if not file.is_file():
        raise UsageError(f"{file} does not exist", hint="check the path")
    for number, cells in kind(file, columns):
        where = f"{file.name}:{number}"
        texts = {role: _plain(cells.get(name), f"column {name!r}", where)
                 for role, name in columns.items() if role != "labels"}
        yield _Row(where, number, texts, cells.get(columns["labels"]))


def _check_columns(file: Path, columns: dict[str, str], present: list[str]) -> None:
    for role, name in columns.items():
        if name not in present:
            near = get_close_matches(name, present, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "name one of these columns"
            if len(present) == 1 and name in re.split(r"\W+", present[0]):
                hint = "a .csv file must separate its cells by commas, a .tsv file by tabs"
            raise UsageError(f"{file.name} has no column {name!r} for {role}; "
                             f"it has {', '.join(map(repr, present)) or 'none'}", hint=hint)
        if present.count(name) > 1:
            raise UsageError(f"{file.name} has {present.count(name)} columns {name!r}", hint="rename all but one")


def _csv_rows(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, cells) of a table with a header; the line is the one where the row begins."""
    csv.field_size_limit(1 << 30)
    # strict, as a quote that is not closed would otherwise swallow the rest of the file in silence
    reader = csv.reader((line + "\n" for _, line in text_lines(file)), strict=True,
                        delimiter="\t" if file.name.lower().removesuffix(".gz").endswith(".tsv") else ",")
    begin = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(file, columns, header)
        begin = reader.line_num + 1
        for cells in reader:
            begin, number = reader.line_num + 1, begin
            if not cells:
                continue
            if len(cells) != len(header):
                raise ContractError(f"the row has {len(cells)} cells and the header {len(header)}",
                                    where=f"{file.name}:{number}", hint="put a cell that holds the delimiter in quotes")
            yield number, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise ContractError(f"the row is not CSV: {error}", where=f"{file.name}:{begin}",
                            hint='a quote inside a quoted cell is written twice: "5"" disk"') from error


def _json_rows(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) of JSON lines; the first must have every column, a later one may leave some out."""
    first = True
    for number, line in text_lines(file):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
            if not isinstance(cells, dict):
                raise ValueError("it is no object")
        except (ValueError, RecursionError) as error:
            raise ContractError(f"the line is not a JSON object: {error}", where=f"{file.name}:{number}",
                                hint='each line is one object: {"text": "...", "labels": ["..."]}') from error
        if first:
            _check_columns(file, columns, list(cells))
        first = False
        yield number, cells


def _parquet_rows(file: Path, columns: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row from 1, cells) of a Parquet file, batch by batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            _check_columns(file, columns, table.schema_arrow.names)
            number = 0
            for batch in table.iter_batches(batch_size=4096, columns=sorted(set(columns.values()))):
                for cells in batch.to_pylist():
                    number += 1
                    yield number, cells
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ContractError(f"it is not a Parquet file that can be read: {error}", where=file.name) from error
