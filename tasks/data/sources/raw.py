"""Detection of the raw data set in a folder, and the list of its tables."""

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError
from data_contracts.schemas import SPLITS
from tasks.data.sources.formats import FORMATS, RawFormat

_EDGES = re.compile(r"(?P<anchor>.+)_(?:trn|tst|lbl)_X_Y\.(?:txt|npz)")
_SIDES = {"train": "trn", "test": "tst", "label": "lbl"}
GROUPS = "groups_train.txt"    # of each training query the name of its group, a blank line for none
BROADER = "broader.tsv"   # a concept's uid, a tab, the uid of a broader one
ABOUT = "dataset.json"    # optional facts: name, propensity constants, number of labels
_OPTIONAL = {"groups.train": GROUPS, "broader": BROADER}
# The papers' propensity constants (Jain et al., KDD 2016), by a word in the data set's name.
_PROPENSITY = {"amazon": (0.6, 2.6), "wikipedia-500k": (0.5, 0.4), "": (0.55, 1.5)}


@dataclass(frozen=True)
class RawDataSet:
    """A raw data set; files: the name of each file's main table -> its path.

    numbered: how many labels there are, where they have numbers but no texts; dataset.json is their file then.
    sha256: of each file, by table, once `hashed` has computed them: a file that is read must have it.
    """

    folder: Path
    name: str
    format: RawFormat
    files: Mapping[str, Path]
    anchors: tuple[str, ...]
    propensity: tuple[float, float]
    numbered: int = 0
    sha256: Mapping[str, str] = field(default_factory=dict)


def describe(folder: Path) -> RawDataSet:
    """Detect the data set in a folder, from the names of its files and dataset.json.

    Its paths are absolute, as the workers that read the files may have been started in another folder.
    Raises UsageError for a missing folder or file, with every name that was looked for.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file, a data set is a folder",
                         hint=f"make one of a table: xc data import {folder} DIR --text COLUMN --labels COLUMN")
    folder = folder.absolute()
    if not folder.is_dir():
        folders = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        near = difflib.get_close_matches(folder.name, folders, n=1)
        raise UsageError(f"{folder} is not a folder", hint=f"did you mean {folder.parent / near[0]}?" if near else
                         "name the folder of a data set; xc data import TABLE FOLDER makes one of a table")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    raw_format = next((known for known in FORMATS if names.intersection(known.files["queries.train"])), None)
    if raw_format is None:
        candidates = ", ".join(name for known in FORMATS for name in known.files["queries.train"])
        raise UsageError(f"{folder} holds no training queries; looked for {candidates}",
                         hint="a table of texts and labels (.csv, .jsonl, .parquet) must be imported first")
    about = _about(folder)
    numbered = 0 if names.intersection(raw_format.files["labels"]) else _label_count(about, folder)
    files = {table: folder / ABOUT if numbered and table == "labels" else _find(folder, names, table, file_names)
             for table, file_names in raw_format.files.items()}
    for split in SPLITS:
        if (name := f"filter_labels_{split}.txt") in names:
            files[f"filters.{split}"] = folder / name
    for table, name in _OPTIONAL.items():
        if name in names:
            files[table] = folder / name
    anchors = tuple(sorted({match["anchor"] for name in names if (match := _EDGES.fullmatch(name))}))
    for anchor in anchors:
        files |= _anchor_files(folder, names, anchor)
    return RawDataSet(folder, _name(about, folder), raw_format, files, anchors, _propensity(about, folder), numbered)


def hashed(data: RawDataSet, sha256: Callable[[Path], str]) -> RawDataSet:
    """Return the data set with the digest of each of its files, by which a later read detects changes.

    Raises ProjectError where the folder has become another data set meanwhile: dataset.json is not read again.
    """
    with_digests = replace(data, sha256={table: sha256(path) for table, path in data.files.items()})
    if describe(data.folder) != data:
        raise ProjectError(f"{data.folder} has changed while its files were hashed",
                           hint="run the same command again when nothing writes to it any more")
    return with_digests


def _find(folder: Path, names: set[str], table: str, candidates: Sequence[str]) -> Path:
    for name in candidates:
        if name in names:
            return folder / name
    extra = ""
    if table == "labels":
        extra = f', or, where labels have no texts, write how many there are to {ABOUT}: {{"labels": 670091}}'
    elif table.startswith("edges."):
        side = "query" if table.endswith(".train") else "label"
        extra = f", or, where no {side} has an edge, write a header, ROWS ANCHORS, and a blank line for each {side}"
    raise UsageError(f"{folder} has no file for {table}; looked for {', '.join(candidates)}",
                     hint=f"add the file, or rename the one that holds {table}{extra}")


def _anchor_files(folder: Path, names: set[str], anchor: str) -> dict[str, Path]:
    """Return the files of an anchor set; edges of test queries may be absent, as nothing is trained on them."""
    files = {f"anchors.{anchor}": _find(folder, names, f"anchors.{anchor}", [f"{anchor}.raw.txt"])}
    for side, stem in _SIDES.items():
        candidates = [f"{anchor}_{stem}_X_Y.{end}" for end in ("txt", "npz")]
        if side != "test" or names.intersection(candidates):
            table = f"edges.{anchor}.{side}"
            files[table] = _find(folder, names, table, candidates)
    return files


def _about(folder: Path) -> dict[str, object]:
    """Return the content of dataset.json, {} where there is none."""
    path = folder / ABOUT
    about: object = {}
    if path.exists():
        try:
            about = json.loads(path.read_text(encoding="utf-8-sig"))    # Windows' editors write the mark
        except ValueError as error:
            raise UsageError(f"it is not JSON: {error}", where=str(path), hint='write {"name": "..."}') from error
    if not isinstance(about, dict):
        raise UsageError(f"it must be an object, got {about!r}", where=str(path), hint='write {"name": "..."}')
    return about


def _name(about: Mapping[str, object], folder: Path) -> str:
    """Return a data set's name, by default its folder's."""
    name = about.get("name", folder.resolve().name)
    if not isinstance(name, str) or not name or any(unicodedata.category(char) == "Cc" for char in name):
        raise UsageError(f"name must be a text without control characters, got {name!r}", where=str(folder / ABOUT),
                         hint='write "name": "..."')
    return name


def _propensity(about: Mapping[str, object], folder: Path) -> tuple[float, float]:
    """Return a data set's propensity constants, by default those of its name."""
    if (value := about.get("propensity")) is None:
        name = _name(about, folder).lower()
        return next(pair for word, pair in _PROPENSITY.items() if word in name)
    pair = [value.get(key) for key in "ab"] if isinstance(value, dict) else []
    constants = [float(number) for number in pair if isinstance(number, int | float)
                 and type(number) is not bool and 0 < number < float("inf")]
    if len(constants) != 2:
        raise UsageError(f"propensity must have positive numbers a and b, got {value!r}", where=str(folder / ABOUT),
                         hint='write "propensity": {"a": 0.55, "b": 1.5}')
    return constants[0], constants[1]


def _label_count(about: Mapping[str, object], folder: Path) -> int:
    """Return the number of labels without texts in dataset.json, 0 where it has none."""
    count = about.get("labels", 0)
    if type(count) is not int or count < 0 or ("labels" in about and not count):
        raise UsageError(f"labels must be how many there are, got {count!r}", where=str(folder / ABOUT),
                         hint='write "labels": 670091, or add a file with their texts')
    return count


def tables(data: RawDataSet) -> list[str]:
    """Return the names of all tables of a data set, including those without rows."""
    return [table for unit in units(data) for table in tables_of(data, unit)]


def units(data: RawDataSet) -> list[str]:
    """Return the units of reading, one per raw file (which may be absent), by the name of its main table."""
    names = [*data.format.files, *(f"filters.{split}" for split in SPLITS)]
    names += [table for table in _OPTIONAL if table in data.files]
    for anchor in data.anchors:
        names += [f"anchors.{anchor}", *(f"edges.{anchor}.{side}" for side in _SIDES)]
    return names


def tables_of(data: RawDataSet, unit: str) -> list[str]:
    """Return the tables of one unit: queries may come with their positives."""
    kind, _, split = unit.partition(".")
    return [unit, f"positives.{split}"] if kind == "queries" and data.format.positives_inside else [unit]
