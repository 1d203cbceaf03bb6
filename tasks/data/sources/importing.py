"""Import of a table of texts and label names into the XC repository's raw format.

The file is read three times rather than kept in memory: to guess the separator, to collect the labels, to write; and
once more where edited texts are to stay in train or test.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data_contracts.errors import ContractError, UsageError
from tasks.core.files import file_digest
from tasks.data.sources.files import refuse_changed
from tasks.data.sources.tabular import Layout, Row, plain, read_rows
from tasks.data.sources.train_test import UID, SplitRule, key_of, split_rule
from tasks.data.sources.writing import json_lines, point, raw_folder, refuse_foreign, write_json_lines

SEPARATORS = (";", "|", ",")
_LOOKED_AT = 10_000  # label cells from which the separator is guessed
_RARE = 0.01  # a character in a smaller share of them is taken as part of a name
_WEIGHTS = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)    # that a table can hold
_IS_TEST = {"train": False, "trn": False, "test": True, "tst": True}


@dataclass(frozen=True)
class _Plan:
    """How the rows of a file become points: columns, separator of labels ("" for none), and train or test."""

    file: Path
    columns: dict[str, str]  # role -> name of the column
    separator: str
    split_rule: SplitRule

    def points(self, skipped: Counter) -> Iterator[tuple[bool, str, str, str, dict[str, float]]]:
        """Yield (is for testing, uid, title, content, label name -> weight) of every usable row; count the others."""
        for row in _rows(self.file, self.columns):
            uid, title, content = (row.text(role) for role in ("uid", "text", "content"))
            labels = _labels(row, self.separator)
            if not title and not content:
                skipped["rows_without_text"] += 1
            elif not any(labels):
                skipped["rows_without_labels"] += 1
            else:
                weighted = _weighted(row, labels, self.separator)
                yield self._is_test(row), uid or str(row.number), title, content, weighted

    def _is_test(self, row: Row) -> bool:
        if "split" in self.columns:
            name = row.text("split").lower()
            if name not in _IS_TEST:
                raise ContractError(f"the split must be train or test, got {name!r}", where=row.where,
                                    hint=f"change column {self.columns['split']!r}, or leave it out and rows are drawn")
            return _IS_TEST[name]
        return self.split_rule.is_test(row.text("text"), row.text("content"))


@dataclass
class _Collected:
    """The labels and texts that the second pass collects."""

    train: set[str] = field(default_factory=set)    # labels of training rows
    test: set[str] = field(default_factory=set)     # labels of test rows
    trained: set[int] = field(default_factory=set)    # `key_of` training texts, where a column decides on the split


def import_file(file: Path, out: Path, *, text: str, labels: str, content: str | None = None, uid: str | None = None,
                split: str | None = None, weight: str | None = None, separator: str | None = None,
                test_fraction: float = 0.2) -> dict[str, Any]:
    """Write the rows of a table, in any form that `read_rows` takes, as an XC repository folder, and return a summary.

    `text`, `labels`, `content`, `uid`, `split`, `weight` name columns. A weight is a number above 0 for all labels of a
    row, or as many as it has labels, in a list or separated as they are. Labels are a list, or a text split at
    `separator`: None guesses among ; | and , (the summary says how), "" takes the whole text as one label. They are
    sorted by name; a label's name is its title and its uid, so that it is the same in a later import with other labels.
    Without a split
    column a text stays in the half where an earlier import to `out` has it; a new one is assigned by its SHA-1
    (`tasks.data.sources.train_test`). Labels without a training row are left out, as are test rows without other
    labels; both are counted.
    Raises UsageError for an invalid setting, ContractError with file and line of a bad row, and ProjectError for a file
    that is written to meanwhile.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"the share of test rows must be from 0 to below 1, got {test_fraction}", hint="--test 0.2")
    refuse_foreign(out)
    sha256 = file_digest(file) if file.is_file() else ""
    names_by_role = {"text": text, "labels": labels, "content": content, "uid": uid, "split": split, "weight": weight}
    columns = {role: name for role, name in names_by_role.items() if name is not None}
    reason = "given"
    if separator is None:
        separator, reason = _guess(row.cells.get("labels") for row in _rows(file, columns))
    texts = ((row.text("uid"), row.text("text"), row.text("content")) for row in _rows(file, columns))
    plan = _Plan(file, columns, separator, SplitRule(0.0) if split else split_rule(out, test_fraction, texts, uid))
    skipped: Counter[str] = Counter(rows_without_text=0, rows_without_labels=0)
    collected = _Collected()
    for is_test, _, *words, names in plan.points(skipped):
        (collected.test if is_test else collected.train).update(names)
        if split and not is_test:
            collected.trained.add(key_of(*words))
    if not collected.train:
        raise ContractError(f"{file.name} has no training row with a text and a label "
                            f"({', '.join(f'{key}: {count}' for key, count in skipped.items())})", where=str(file),
                            hint="check the names of the columns, and the split column or the share of test rows")
    if test_fraction and split is None and not collected.test:
        # for example a file that is the training part of a split by the same rule
        raise ContractError(f"none of the usable rows of {file.name} was drawn for testing with a share of "
                            f"{test_fraction}", where=str(file), hint="raise --test, or name a column: --split COLUMN")
    if (split or test_fraction) and collected.test.isdisjoint(collected.train):
        raise ContractError(f"no row of {file.name} for testing has a label that a row for training has",
                            where=str(file), hint="a run measures itself on such rows: add some, or choose others "
                                                  "by --test or --split")
    counts = _write(plan, out, collected, sha256)
    return {**counts, **skipped, "labels_never_in_training": len(collected.test - collected.train),
            "separator": separator, "separator_reason": reason, **_split_reason(plan, out, counts)}


def _rows(file: Path, columns: dict[str, str]) -> Iterator[Row]:
    if file.exists() and not file.is_file():
        raise UsageError(f"{file} is no file that can be read more than once", hint="name a file")
    return read_rows(file, Layout({role: (name,) for role, name in columns.items()}, tuple(columns)))


def _split_reason(plan: _Plan, out: Path, counts: dict[str, int]) -> dict[str, str]:
    """Return a remark on the split, {"split_reason": text}, or nothing."""
    if shared := counts.get("test_rows_with_a_text_of_train"):
        return {"split_reason": f"by column {plan.columns['split']!r} {shared:,} of {counts['test']:,} test rows have "
                                "a text that train has, and xc run refuses more than 1% (prepare.leak_share); without "
                                "--split equal texts lie in one half"}
    if plan.split_rule.before:
        return {"split_reason": f"texts that were in {out.name} stay in their half, new ones are drawn with share "
                                f"{plan.split_rule.share:g}; a new folder draws all"}
    return {}


def _write(plan: _Plan, out: Path, collected: _Collected, sha256: str) -> dict[str, int]:
    """Write the folder, and return its counts. Raises ProjectError where the file's `sha256` has changed."""
    names = sorted(collected.train)
    ids = {name: number for number, name in enumerate(names)}
    counts: Counter[str] = Counter(train=0, test=0, labels=len(names), positives_train=0, positives_test=0,
                                   test_rows_without_known_labels=0)

    about = {"name": out.resolve().name} | ({UID: plan.columns["uid"]} if "uid" in plan.columns else {})
    with raw_folder(out, about) as folder:
        with json_lines(folder / "trn.json.gz") as train, json_lines(folder / "tst.json.gz") as test:
            for is_test, uid, title, content, labels in plan.points(Counter()):
                side = "test" if is_test else "train"
                if targets := {ids[name]: weight for name, weight in labels.items() if name in ids}:
                    (test if is_test else train)(point(uid, title, content, targets))
                    counts[side] += 1
                    counts[f"positives_{side}"] += len(targets)
                    if is_test and key_of(title, content) in collected.trained:
                        counts["test_rows_with_a_text_of_train"] += 1
                else:
                    counts["test_rows_without_known_labels"] += 1
        write_json_lines(folder / "lbl.json.gz", (point(name, name, "") for name in names))
        refuse_changed(plan.file, sha256)
    return dict(counts)


# ---- labels

def _guess(cells: Iterable[Any]) -> tuple[str, str]:
    """Return a separator and the reason: the first of ; | , that is in at least 1% of the first label cells."""
    texts = list(islice((cell for cell in cells if isinstance(cell, str) and cell), _LOOKED_AT))
    if not texts:
        return "", "the labels are lists"
    counts = {mark: sum(mark in cell for cell in texts) for mark in SEPARATORS}
    seen = ", ".join(f"{count} have {mark!r}" for mark, count in counts.items())
    chosen = next((mark for mark, count in counts.items() if count and count >= _RARE * len(texts)), "")
    taken = f"{chosen!r} taken" if chosen else "each taken for one label"
    return chosen, f"guessed: of {len(texts)} label cells {seen}; {taken}, give a separator to decide otherwise"


def _labels(row: Row, separator: str) -> list[str]:
    """Return the label names of a row, cleaned, in order; "" for one that is blank."""
    value = row.cells.get("labels")
    if value is not None and not isinstance(value, str | list):
        raise ContractError(f"labels must be a list or a text, got {value!r}", where=row.where)
    return [plain(part, "a label", row.where) for part in _parts(value, separator)]


def _parts(value: Any, separator: str) -> list[Any]:
    """Return the parts of a cell: of a list, or of a text split at the separator."""
    if isinstance(value, str):
        return value.split(separator) if separator else [value]
    return value if isinstance(value, list) else [] if value is None else [value]


def _weighted(row: Row, names: list[str], separator: str) -> dict[str, float]:
    """Return label name -> weight, 1 without a column of weights; a name that stands twice has its first weight."""
    weights = [_weight(part, row.where) for part in _parts(row.cells.get("weight"), separator)] or [1.0]
    if len(weights) not in (1, len(names)):
        raise ContractError(f"the row has {len(names)} labels and {len(weights)} weights", where=row.where,
                            hint="give one weight for all of them, or one for each")
    weights *= len(names) if len(weights) == 1 else 1
    return {name: weight for name, weight in reversed([*zip(names, weights, strict=True)]) if name}


def _weight(value: Any, where: str) -> float:
    """Return a weight as a number; raise ContractError where it is none, or not one that float32 holds above 0."""
    try:
        weight = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError, OverflowError):
        weight = 0.0
    if not _WEIGHTS[0] <= weight <= _WEIGHTS[1]:
        raise ContractError(f"a weight must be a number above 0, got {value!r}", where=where,
                            hint="leave out rows that should not count, or name another column: --weight COLUMN")
    return weight
