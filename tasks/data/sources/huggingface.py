"""Folders that `save_to_disk` of Hugging Face's `datasets` has written, with or without splits.

Read with pyarrow alone: a folder holds dataset_info.json (the columns' types, with names of classes), state.json (its
files) and files of Arrow batches; a folder of splits holds dataset_dict.json and a folder for each.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.errors import ContractError
from tasks.data.sources.columns import Layout, Row, required_columns

_SPLITS, _STATE, _INFO = "dataset_dict.json", "state.json", "dataset_info.json"


def is_dataset(path: Path) -> bool:
    """Return whether a folder holds a data set, or splits of one."""
    return (path / _SPLITS).is_file() or (path / _STATE).is_file()


def has_splits(path: Path) -> bool:
    """Return whether a folder holds the splits train and test."""
    return {"train", "test"} <= {*_splits(path)}


def read(path: Path, columns: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the rows of a data set; those of splits but test are for training, where both train and test exist."""
    number, splits = 0, has_splits(path) and "split" not in columns
    for split in _splits(path) or [""]:
        folder = path / split
        for row in _rows(folder, columns, number):
            number = row.number
            yield Row(row.where, number, {"split": "test" if split == "test" else "train", **row.cells} if splits
                      else row.cells, row.names)


def _splits(path: Path) -> list[str]:
    """Return the names of splits, in the order of dataset_dict.json; none for a data set without."""
    if not (path / _SPLITS).is_file():
        return []
    splits = _json(path / _SPLITS).get("splits")
    if not isinstance(splits, list) or not splits or not all(isinstance(name, str) for name in splits):
        raise ContractError(f"splits must be a list of names, got {splits!r}", where=str(path / _SPLITS))
    return splits


def _rows(folder: Path, columns: Mapping[str, Sequence[str]], before: int) -> Iterator[Row]:
    """Yield the rows of one data set, numbered from `before` + 1, one batch in memory at a time."""
    features = _json(folder / _INFO).get("features")
    classes = {name: _classes(feature) for name, feature in features.items()} if isinstance(features, dict) else {}
    number = 0
    for file in _files(folder):
        try:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as batches:
                names = required_columns(str(folder), Layout(columns, tuple(columns)), batches.schema.names)
                for batch in batches:
                    for cells in batch.select(sorted({*names.values()})).to_pylist():
                        number += 1
                        where = f"{folder}:{number}"
                        values = {role: cells[name] for role, name in names.items()}
                        values["labels"] = _named(values["labels"], classes.get(names["labels"], []), where)
                        yield Row(where, before + number, values, names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise ContractError(f"it is not an Arrow file that can be read: {error}", where=str(file),
                                hint="write the folder again with save_to_disk") from error


def _files(folder: Path) -> list[Path]:
    files = _json(folder / _STATE).get("_data_files")
    names = [str(each.get("filename")) for each in files if isinstance(each, dict)] if isinstance(files, list) else []
    if not names:
        raise ContractError("it names no files of the data set", where=str(folder / _STATE),
                            hint="write the folder again with save_to_disk")
    return [folder / Path(name).name for name in names]


def _classes(feature: Any) -> list[str]:
    """Return the names of a column of classes, or of lists of them; [] for another column."""
    if isinstance(feature, list):    # as older versions write a list
        return _classes(feature[0]) if feature else []
    if not isinstance(feature, dict):
        return []
    return feature.get("names", []) if feature.get("_type") == "ClassLabel" else _classes(feature.get("feature"))


def _named(value: Any, names: list[str], where: str) -> Any:
    """Return a cell with the names of its classes, if its column has any; -1 and None are no class."""
    if not names:
        return value
    numbers = value if isinstance(value, list) else [value]
    if bad := [number for number in numbers if number is not None and number >= len(names)]:
        raise ContractError(f"class {bad[0]} has no name, there are {len(names)}", where=where)
    return [names[number] for number in numbers if number is not None and number >= 0]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError(f"it cannot be read: {error}", where=str(path),
                            hint="write the folder again with save_to_disk") from error
    return value if isinstance(value, dict) else {}
