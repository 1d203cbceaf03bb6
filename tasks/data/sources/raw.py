"""Which raw data set lies in a folder, told from the names of its files, and which tables it has."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from data_contracts.errors import ProjectError, UsageError
from data_contracts.schemas import SPLITS
from tasks.data.sources.formats import FORMATS, RawFormat

_EDGES = re.compile(r"(?P<anchor>.+)_(?:trn|tst|lbl)_X_Y\.(?:txt|npz)")
_SIDES = {"train": "trn", "test": "tst", "label": "lbl"}
ABOUT = "dataset.json"    # what the files do not say; all of it may be left out
# The papers' propensity constants (Jain et al., KDD 2016), by a word in the data set's name.
_PROPENSITY = {"amazon": (0.6, 2.6), "wikipedia-500k": (0.5, 0.4), "": (0.55, 1.5)}


@dataclass(frozen=True)
class RawDataSet:
    """A raw data set: `files` maps what a file is about, by the name of its main table, to its path.

    numbered: how many labels there are, where they have no texts but their numbers; dataset.json is their file then.
    sha256: of each file, by table, where `hashed` has found them: what is read of a file must have it.
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
    """Find out which data set is in a folder, from the names of its files and dataset.json.

    Its paths are absolute: workers, which read the files, may have been started in another folder.
    Raises UsageError for a folder or a file that is missing, naming every name that was looked for.
    """
    if folder.is_file():
        raise UsageError(f"{folder} is a file, a data set is a folder",
                         hint=f"make one of a table: xc data import {folder} DIR --text COLUMN --labels COLUMN")
    folder = folder.absolute()
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint="give the folder that holds trn.json.gz, tst.json.gz, ...")
    names = {path.name for path in folder.iterdir() if path.is_file()}
    form = next((each for each in FORMATS if names.intersection(each.files["queries.train"])), None)
    if form is None:
        looked = ", ".join(name for each in FORMATS for name in each.files["queries.train"])
        raise UsageError(f"{folder} holds no training queries; looked for {looked}",
                         hint="a table of texts and labels (.csv, .jsonl, .parquet) must be imported first")
    about = _about(folder)
    numbered = 0 if names.intersection(form.files["labels"]) else _labels(about, folder)
    files = {table: folder / ABOUT if numbered and table == "labels" else _find(folder, names, table, candidates)
             for table, candidates in form.files.items()}
    for split in SPLITS:
        if (name := f"filter_labels_{split}.txt") in names:
            files[f"filters.{split}"] = folder / name
    anchors = tuple(sorted({match["anchor"] for name in names if (match := _EDGES.fullmatch(name))}))
    for anchor in anchors:
        files |= _anchor_files(folder, names, anchor)
    return RawDataSet(folder, _name(about, folder), form, files, anchors, _constants(about, folder), numbered)


def hashed(data: RawDataSet, sha256: Callable[[Path], str]) -> RawDataSet:
    """Return the data set with the digest of each of its files, by which reading sees that one was replaced.

    Raises ProjectError where the folder has become another data set meanwhile: dataset.json is not read again.
    """
    out = replace(data, sha256={table: sha256(path) for table, path in data.files.items()})
    if describe(data.folder) != data:
        raise ProjectError(f"{data.folder} has changed while its files were hashed",
                           hint="run the same command again when nothing writes to it any more")
    return out


def _find(folder: Path, names: set[str], table: str, candidates: Sequence[str]) -> Path:
    """Return the first candidate that is in the folder."""
    for name in candidates:
        if name in names:
            return folder / name
    also = f', or, where labels have no texts, write how many there are to {ABOUT}: {{"labels": 670091}}'
    raise UsageError(f"{folder} has no file for {table}; looked for {', '.join(candidates)}",
                     hint=f"add the file, or rename the one that holds {table}{also if table == 'labels' else ''}")


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
    """Return what dataset.json says, nothing where there is none."""
    path = folder / ABOUT
    about: object = {}
    if path.exists():
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"it is not JSON: {error}", where=str(path), hint='write {"name": "..."}') from error
    if not isinstance(about, dict):
        raise UsageError(f"it must be an object, got {about!r}", where=str(path), hint='write {"name": "..."}')
    return about


def _name(about: Mapping[str, object], folder: Path) -> str:
    """Return a data set's name, by default its folder's."""
    name = about.get("name", folder.resolve().name)
    if not isinstance(name, str) or not name:
        raise UsageError(f"name must be a text, got {name!r}", where=str(folder / ABOUT))
    return name


def _constants(about: Mapping[str, object], folder: Path) -> tuple[float, float]:
    """Return a data set's propensity constants, by default those that its name suggests."""
    given = about.get("propensity")
    if given is None:
        name = _name(about, folder).lower()
        return next(pair for word, pair in _PROPENSITY.items() if word in name)
    pair = [given.get(key) for key in "ab"] if isinstance(given, dict) else []
    constants = [float(value) for value in pair if isinstance(value, int | float)
                 and type(value) is not bool and 0 < value < float("inf")]
    if len(constants) != 2:
        raise UsageError(f"propensity must have positive numbers a and b, got {given!r}", where=str(folder / ABOUT),
                         hint='write "propensity": {"a": 0.55, "b": 1.5}')
    return constants[0], constants[1]


def _labels(about: Mapping[str, object], folder: Path) -> int:
    """Return how many labels without texts there are, 0 where nothing is said of them."""
    count = about.get("labels", 0)
    if type(count) is not int or count < 0 or ("labels" in about and not count):
        raise UsageError(f"labels must be how many there are, got {count!r}", where=str(folder / ABOUT),
                         hint='write "labels": 670091, or add a file with their texts')
    return count


def tables(data: RawDataSet) -> list[str]:
    """Return the names of all tables of a data set, those without rows too."""
    return [table for group in groups(data) for table in tables_of(data, group)]


def groups(data: RawDataSet) -> list[str]:
    """Return the units of work, each one raw file (or none, where it may be absent), by their main table's name."""
    main = list(data.format.files) + [f"filters.{split}" for split in SPLITS]
    for anchor in data.anchors:
        main += [f"anchors.{anchor}", *(f"edges.{anchor}.{side}" for side in _SIDES)]
    return main


def tables_of(data: RawDataSet, group: str) -> list[str]:
    """Return the tables that one group yields: queries may come with their positives."""
    kind, _, split = group.partition(".")
    return [group, f"positives.{split}"] if kind == "queries" and data.format.positives_inside else [group]
