"""Tagging texts from the command line: texts in, one JSON object a line out."""

import gzip
import io
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from data_contracts.errors import ContractError, UsageError
from tasks.report_text import many

CHUNK = 1024
LONG, LINES = 4_000, 3    # characters, or lines, of what is more likely a list of texts than one


def open_retriever(model: str, home: Path, mlflow: str) -> Any:
    """Return the retriever that `model` names in the registry; "" is the only model there is."""
    from tasks.resolve import resolve
    from tasks.tracking import Tracker
    from xcmodels.retrieval import Retriever

    return Retriever.load(resolve(Tracker(home, mlflow or None), model or None).folder)


def predict_texts(retriever: Any, texts: Iterable[str], k: int) -> None:
    """Write the labels of `texts` to stdout, their uids being their places."""
    given = list(texts)
    if len(given) == 1 and (what := _listed(given[0])):
        _warn(f"{what} tagged as one text; where a list was meant: xc predict --input FILE, a text a line")
    _answer_all(retriever, ({"uid": str(row), "title": text, "content": ""} for row, text in enumerate(given)), k)


def predict_file(retriever: Any, source: str, k: int) -> None:
    """Write the labels of the lines of `source` to stdout; "-" is stdin."""
    lists: list[str] = []
    with _opened(source) as stream:
        _answer_all(retriever, _queries(stream, source, lists), k)
    if lists:
        _warn(f"{many(len(lists), 'line')} of {source} tagged as one text each, the first {lists[0]}; a text a line "
              "was meant, or a JSON object")


def _answer_all(retriever: Any, queries: Iterable[dict[str, str]], k: int) -> None:
    rows = iter(queries)
    while part := list(islice(rows, CHUNK)):
        _answer(retriever, part, k)


def _answer(retriever: Any, queries: list[dict[str, str]], k: int) -> None:
    answers = retriever.predict([query["title"] for query in queries], k, [query["content"] for query in queries])
    for query, labels in zip(queries, answers, strict=True):
        # A text of nothing but white space has nothing to be tagged by.
        found = labels if (query["title"] + query["content"]).strip() else []
        print(json.dumps({"uid": query["uid"], "labels": [
            {"id": label.id, "uid": label.uid, "text": label.text, "score": label.score} for label in found]}))


@contextmanager
def _opened(source: str) -> Iterator[TextIO]:
    """Yield the text stream that `source` names: "-" stdin, else a file, gzipped or not."""
    if source == "-":
        yield io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
        return
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no file {source}")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", errors="replace") as stream:
        yield stream


def _queries(stream: TextIO, source: str, lists: list[str]) -> Iterator[dict[str, str]]:
    """Yield uid, title and content of each line: XC JSON lines where the first line is one, else plain texts.

    Lines that look like lists of texts are noted in `lists`.
    """
    as_json = None
    for number, line in enumerate(stream):
        text = line.rstrip("\r\n")
        if as_json is None:
            as_json = text.lstrip().startswith("{")
        if not as_json and (what := _listed(text)):
            lists.append(f"line {number + 1}, {what}")
        yield _object(text, source, number) if as_json else {"uid": str(number), "title": text, "content": ""}


def _listed(text: str) -> str:
    """Return what it is about a text that looks like a list of texts, "" where nothing does."""
    if text.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(text), list):
                return f"a JSON array of {len(found):,}"
    lines = len([line for line in text.splitlines() if line.strip()])
    return many(lines, "line") if lines >= LINES else many(len(text), "character") if len(text) > LONG else ""


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _object(line: str, source: str, number: int) -> dict[str, str]:
    where = f"{source}:{number + 1}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"not a line of JSON: {error}", where=where,
                            hint='a line is {"uid": "...", "title": "...", "content": "..."}') from error
    if not isinstance(found, dict) or not isinstance(found.get("title"), str):
        raise ContractError("the line has no text under \"title\"", where=where)
    return {"uid": str(found.get("uid", number)), "title": found["title"], "content": str(found.get("content") or "")}
