"""The tables of the benchmark, a table a question, written as JSON and Markdown after every row."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.scale import Scale
from benchmarks.measuring import write_whole

Row = Mapping[str, Any]
JSON, MARKDOWN = "gpu.json", "gpu.md"


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: the question it answers, the seconds it may take, and what yields its rows.

    A row is yielded as it is measured: what it took until then is kept if the next one fails or takes too long.
    """

    name: str
    question: str
    seconds: float
    rows: Callable[[Scale], Iterator[Row]]


@dataclass
class Table:
    """The rows of a part so far; ended: "" while it is measured, then "whole", or why rows are missing."""

    name: str
    question: str
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0
    ended: str = ""

    def lines(self) -> list[str]:
        """Return the table as Markdown; a column for each key of any row, in the order of their first row."""
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        cells = [[shown(row.get(key)) for key in columns] for row in self.rows]
        ended = "" if self.ended == "whole" else f" Not whole: {self.ended or 'it is being measured'}."
        return [f"## {self.name}", "", f"{self.question} In {self.seconds:.0f} s.{ended}", "",
                *[f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *cells) if columns]]


@dataclass(frozen=True)
class Results:
    """All tables; written to JSON and MARKDOWN in `folder`. about: the machine and the versions."""

    folder: Path
    about: Mapping[str, Any]
    tables: list[Table] = field(default_factory=list)

    def measure(self, part: Part, scale: Scale, within: Callable[[float], Any]) -> Table:
        """Measure a part, at most for its seconds, and write what it found after every row.

        within: a context manager that raises TimeoutError in its block after some seconds.
        """
        table, began = Table(part.name, part.question), time.perf_counter()
        self.tables.append(table)
        try:
            with within(part.seconds):
                for row in part.rows(scale):
                    table.rows.append(row)
                    table.seconds = time.perf_counter() - began
                    self.write()
            table.ended = "whole"
        except TimeoutError:
            table.ended = f"stopped after {time.perf_counter() - began:.1f} s"    # of fewer minutes it has a share
        except Exception as error:    # the other parts are measured anyway
            table.ended = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
        table.seconds = time.perf_counter() - began
        self.write()
        return table

    def write(self) -> None:
        """Write both files; a kill leaves the last ones whole."""
        told = {**self.about, "tables": [asdict(table) for table in self.tables]}
        heading = ["# A GPU's day", "", *(f"- {name}: {value}" for name, value in self.about.items())]
        pages = {JSON: json.dumps(told, indent=1), MARKDOWN: "\n".join(
            [*heading, *(line for table in self.tables for line in ("", *table.lines()))])}
        for name, text in pages.items():
            write_whole(self.folder / name, text + "\n")


def shown(value: object) -> str:
    """Return a value as a cell: a number by three digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")


def by_names(parts: Sequence[Part], words: str) -> list[Part]:
    """Return the parts that "steps,mining" names, in their order, or all for ""; ValueError for an unknown name."""
    names = [word.strip() for word in words.split(",") if word.strip()]
    known = [part.name for part in parts]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part {unknown[0]!r}; known: {', '.join(known)}")
    return [part for part in parts if part.name in names or not names]
