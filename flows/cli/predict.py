"""Predict labels of texts for the command line: texts in, JSON lines or CSV out."""

import csv
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from data_contracts.errors import ContractError, UsageError
from flows.cli.options import json_line
from tasks.core.wording import plural
from xcmodels.data.text import clean

CHUNK = 1024
BRANCH = "branch:"    # before the uid of a concept, for it and all that is narrower
COLUMNS = ("uid", "rank", "label_id", "label_uid", "label_text", "score", "confidence")
LONG, LINES = 4_000, 3    # a text of more characters, or as many lines, is likely a list of texts
Form = Literal["json", "csv"]


class Query(NamedTuple):
    """A text to tag."""

    uid: str
    text: str
    content: str = ""


def select(retriever: Any, only: Sequence[str], without: Sequence[str]) -> Any:
    """Return the retriever's selection of labels: each word is a uid, branch:UID, or @FILE with one of them a line.

    Raises UsageError for what is unknown, and for a file that cannot be read.
    """
    from xcmodels.retrieval.selection import UNDER, NoBranches, UnknownLabel
    from xcmodels.retrieval.uid_index import UidIndex

    def entries(words: Sequence[str]) -> list[Any]:
        lines = chain.from_iterable(_lines(word[1:]) if word.startswith("@") else [word] for word in words)
        return [{UNDER: line[len(BRANCH):]} if line.startswith(BRANCH) else line for line in lines]

    try:
        return retriever.select(entries(only) if only else None, entries(without))
    except UnknownLabel as error:
        name, _, uid, kind = error.unknown[0]
        hint = {"label": "xc export embeddings --out labels.parquet lists the uids of all labels",
                "concept": f"it is a concept: --{name} {BRANCH}{uid} takes the labels under it",
                "branch": "broader.tsv of the data set lists all"}[kind]
        if kind == "label" and (row := UidIndex(retriever.titles).rows([uid])[0]) >= 0:
            hint = f"labels are named by uid; that with this text: --{name} {shlex.quote(retriever.uids[row])}"
        what = "concept" if kind == "branch" else "label"
        more = f", nor {len(error.unknown) - 1:,} more" if len(error.unknown) > 1 else ""
        raise UsageError(f"--{name}: there is no {what} {uid!r}{more}", hint=hint) from error
    except NoBranches as error:
        raise UsageError(f"--{error.name} names a branch, but the model knows no broader relation",
                         hint="train it on data with a vocabulary: xc data import ... --vocabulary FILE") from error


def _lines(file: str) -> list[str]:
    from tasks.data.sources.files import text_lines

    hint = "give a file with a uid a line: @FILE"
    if not file:
        raise UsageError("@ names no file", hint=hint)
    try:
        lines = [line.strip() for _, line in text_lines(Path(file))]
    except OSError as error:    # of a name that is too long, say
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint=hint) from error
    if not any(lines):
        raise UsageError(f"{file} has no uid", hint=hint)
    return [line for line in lines if line]


def predict_texts(retriever: Any, texts: Iterable[str], k: int, form: Form = "json", *,
                  threshold: float = 0.0, selection: Any = None) -> None:
    """Write the labels of `texts` to stdout, with their positions as uids."""
    rows = list(texts)
    if len(rows) == 1 and (what := _list_likeness(rows[0])):
        _warn(f"{what} tagged as one text; where a list was meant: xc predict --input FILE, a text a line")
    found = answers(retriever, (Query(str(row), text) for row, text in enumerate(rows)), k, threshold, selection)
    _write_all(found, form)


def predict_file(retriever: Any, source: str, k: int, form: Form = "json",
                 columns: Mapping[str, str] | None = None, *, threshold: float = 0.0, selection: Any = None) -> None:
    """Write the labels of a table's rows, or of a text file's lines, to stdout; "-" is stdin.

    columns: role (uid, text or content) -> name of its column, where it is not the default.
    """
    lists: list[str] = []
    if not _write_all(answers(retriever, queries(source, columns or {}, lists), k, threshold, selection), form):
        _warn(f"there is no text in {source}")
    if lists:
        _warn(f"{plural(len(lists), 'line')} of {source} tagged as one text each, the first {lists[0]}; a text a line "
              "was meant, or a JSON object")


def queries(source: str, columns: Mapping[str, str], lists: list[str]) -> Iterator[Query]:
    """Yield each row's text and content, and its uid, or its position from 0 where it has none.

    Plain lines that look like lists of texts are added to `lists`. Warns at the end where only some rows have a uid.
    """
    from tasks.data.sources.columns import Layout
    from tasks.data.sources.tabular import read_rows

    names: dict[str, Sequence[str]] = {"uid": ("uid",), "text": ("text", "title"), "content": ("content",)}
    layout = Layout(names | {role: (name,) for role, name in columns.items()}, required=("text", *columns),
                    plain="" if columns else "text")
    uids, lacking = 0, ""    # how many rows have one; where the first row without is
    for position, row in enumerate(read_rows(source, layout)):
        if "text" not in row.cells:
            raise ContractError("the row has no text", where=row.where, hint='give one, "" where it is empty')
        if not row.names and (what := _list_likeness(row.cells["text"])):
            lists.append(f"line {row.number}, {what}")
        uid = row.text("uid")
        if "uid" in columns and not uid:    # its number may be the uid of another
            raise ContractError("the row has no uid", where=row.where, hint="give each row one, or leave out --uid")
        uids, lacking = uids + bool(uid), lacking or ("" if uid else row.where)
        yield Query(uid or str(position), row.text("text"), row.text("content"))
    if uids and lacking:
        _warn(f"{plural(position + 1 - uids, 'row')} without a uid got the row number in its place, which may be the "
              f"uid of another; the first is {lacking}")


def blocks(queries: Iterable[Query]) -> Iterator[list[Query]]:
    """Yield the queries in blocks of CHUNK; for none at all, one empty block, so that a file has its columns."""
    rows = iter(queries)
    yield list(islice(rows, CHUNK))
    while block := list(islice(rows, CHUNK)):
        yield block


def answers(retriever: Any, queries: Iterable[Query], k: int, threshold: float = 0.0,
            selection: Any = None) -> Iterator[list[tuple[str, list[Any]]]]:
    """Yield the uid and the Labels of each query, block by block; warn where no confidence was fitted."""
    from tasks.evaluation.gates import UNFITTED

    if not retriever.calibration.queries:
        _warn(UNFITTED)
    for block in blocks(queries):
        found = retriever.predict_among(selection, [query.text for query in block], k,
                                        [query.content for query in block], threshold)
        yield list(zip([query.uid for query in block], found, strict=True))


def ranked(uid: str, labels: list[Any]) -> list[tuple[Any, ...]]:
    """Return a row of COLUMNS for each label of a query."""
    return [(uid, rank, *label.to_json().values()) for rank, label in enumerate(labels, 1)]


def _write_all(found: Iterable[list[tuple[str, list[Any]]]], form: Form) -> int:
    """Write the labels of each query; return how many queries there were."""
    table, count = csv.writer(sys.stdout, lineterminator="\n"), 0
    if form == "csv":
        table.writerow(COLUMNS)
    for uid, labels in chain.from_iterable(found):
        count += 1
        if form == "json":
            print(json_line({"uid": uid, "labels": [label.to_json() for label in labels]}))
        else:    # for a text without a label a row without one, so that no text is missing
            table.writerows([_inert(cell) if isinstance(cell, str) else cell for cell in row]
                            for row in ranked(uid, labels) or [(uid, *[""] * (len(COLUMNS) - 1))])
    return count


def _inert(text: str) -> str:
    """Return a text that no spreadsheet reads as a formula, and no terminal as a control sequence."""
    plain = clean(text)
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain


def _list_likeness(text: str) -> str:
    """Return why a text looks like a list of texts, "3 lines", and "" where it does not."""
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(text), list):
                return f"a JSON array of {len(value):,}"
    lines = len([line for line in text.splitlines() if line.strip()])
    return plural(lines, "line") if lines >= LINES else plural(len(text), "character") if len(text) > LONG else ""


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
