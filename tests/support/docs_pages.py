"""Parse the pages of the documentation: their blocks, the commands in them, and the output shown for each."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROMPT = "$ "
_PROGRAMS = {"xc", "make", "dask", "python", "curl", "pip", "prefect", "mlflow"}


@dataclass(frozen=True)
class Block:
    """A code block of a page: fenced with a language, or indented without one."""

    page: str
    line: int       # of its first line
    language: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


@dataclass
class Command:
    """A command of a page, with its continuation lines, and the output that is shown below it."""

    page: str
    line: int
    text: str
    output: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(path: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found: list[Block] = []
    lines = path.read_text().splitlines()
    at = 0
    while at < len(lines):
        start = at
        if (fence := re.fullmatch(r"```(\w*)", lines[at])) is not None:
            at = lines.index("```", at + 1)
            found.append(Block(path.name, start + 2, fence[1], tuple(lines[start + 1:at])))
        elif lines[at].startswith("    ") and not lines[at - 1].strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            while not lines[at - 1].strip():
                at -= 1
            found.append(Block(path.name, start + 1, "", tuple(line[4:] for line in lines[start:at])))
            continue
        at += 1
    return found


def commands(path: Path) -> list[Command]:
    """Return the commands of a page, in order: the lines that begin with a prompt."""
    return [command for block in blocks(path) if not block.language for command in _commands(block)]


def unmarked(path: Path) -> list[str]:
    """Return the first lines of blocks that look like commands and have no prompt."""
    return [f"{block.page}:{block.line}: {block.lines[0]}" for block in blocks(path)
            if not block.language and block.lines[0].split()[0] in _PROGRAMS]


def python_of(path: Path) -> str:
    """Return the code of a page that has one block of Python."""
    (code,) = [block.text for block in blocks(path) if block.language == "python"]
    return code


def spans(path: Path) -> list[str]:
    """Return the inline code (between backticks) of a page's text and tables."""
    shown = re.sub(r"^```.*?^```$|^    .*?$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [each.replace("\\|", "|") for each in re.findall(r"`([^`\n]+)`", shown)]


def _commands(block: Block) -> Iterator[Command]:
    made: Command | None = None
    open_until = ""
    for number, line in enumerate(block.lines, start=block.line):
        if made is not None and (open_until or made.text.endswith("\\")):
            made.text += f"\n{line}"
            open_until = "" if line == open_until else open_until
        elif line.startswith(PROMPT):
            if made is not None:
                yield made
            made = Command(block.page, number, line.removeprefix(PROMPT))
            open_until = found[1] if (found := re.search(r"<<'(\w+)'", line)) else ""
        elif made is not None:
            made.output.append(line)
    if made is not None:
        yield made


def differs(shown: list[str], out: str, said: str) -> str:
    """Return how the shape of a command's output differs from the shown one, "" if it does not.

    The shape of JSON is its keys and types; of other lines, the text before two blanks, with numbers ignored.
    """
    if shown and shown[0][:1] in ("{", "["):
        expected, found = (_shape(documents(text)) for text in (" ".join(shown), out))
        return "" if expected == found else f"shown is {expected}, found is {found}"
    found = [_unnumbered(line) for line in f"{out}\n{said}".splitlines()]
    for line in shown:
        head = re.match(r"(\S[^\s].*?) {2,}\S", line)
        if head and not any(each.startswith(_unnumbered(head[1])) for each in found):
            return f"no line begins with {head[1]!r}"
    return ""


def _unnumbered(line: str) -> str:
    """Return a line with every number replaced by 0."""
    return re.sub(r"\d[\d.,]*", "0", line)


def documents(text: str) -> list[Any]:
    """Parse consecutive JSON documents."""
    found, at = [], 0
    while (at := len(text) - len(text[at:].lstrip())) < len(text):
        document, at = json.JSONDecoder().raw_decode(text, at)
        found.append(document)
    return found


def _shape(value: Any) -> Any:
    """Return the keys and types of a JSON value; of a list those of its first element."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) else type(value).__name__
