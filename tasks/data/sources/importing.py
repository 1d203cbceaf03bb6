"""Import of documents with labels into the XC repository's raw format.

The documents are read four times rather than kept in memory: to guess the separator, to find the spellings of a text,
to collect the labels, to write; and once more where rows of equal text are joined.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, UsageError
from tasks.core.wording import plural
from tasks.data.sources.annif import is_uri
from tasks.data.sources.columns import Row
from tasks.data.sources.documents import Documents, find_documents
from tasks.data.sources.files import refuse_other
from tasks.data.sources.joining import JoinedTexts
from tasks.data.sources.label_cells import guess_separator, label_names, reason_of_given, weigh
from tasks.data.sources.points import Point, refuse_same_uids
from tasks.data.sources.raw import BROADER, GROUPS
from tasks.data.sources.train_test import UID, SplitRule, key_of, split_rule
from tasks.data.sources.vocabulary import Vocabulary, read_vocabulary, write_broader, write_graphs
from tasks.data.sources.writing import (
    json_lines,
    json_row,
    line_writer,
    name_and_constants,
    raw_folder,
    recover,
    refuse_foreign,
    write_json_lines,
)

_IS_TEST = {"train": False, "trn": False, "test": True, "tst": True}


@dataclass
class _Collected:
    """What the second pass collects: labels, texts, and what is left out."""

    skipped: Counter[str]
    train: set[str] = field(default_factory=set)    # labels of training rows
    test: set[str] = field(default_factory=set)     # labels of test rows
    uids: "array[int]" = field(default_factory=lambda: array("Q"))    # `uid_key` of the rows
    texts: "array[int]" = field(default_factory=lambda: array("Q"))    # `text_key` of the rows that have one
    trained: set[int] = field(default_factory=set)    # `key_of` training texts, where a column decides on the split
    titles: dict[str, str] = field(default_factory=dict)    # label -> its title, where that is not its uid
    unknown: dict[str, str] = field(default_factory=dict)    # label that the vocabulary lacks -> where it is first


@dataclass(frozen=True)
class _Plan:
    """How the rows of documents become points: separator of labels ("" for none), their names, and train or test.

    has_uids: the user names a column of uids, so each row must have one.
    """

    documents: Documents
    has_uids: bool
    separator: str
    split_rule: SplitRule
    vocabulary: Vocabulary | None

    def points(self, collected: _Collected) -> Iterator[Point]:
        """Yield a point for every usable row; collect the labels' titles, and what is left out."""
        skipped = collected.skipped
        for row in self.documents.rows():
            uid, title, content = (row.text(role) for role in ("uid", "text", "content"))
            names = label_names(row, self.separator)
            if not title and not content:
                skipped["rows_without_text"] += 1
            elif not any(names):
                skipped["rows_without_labels"] += 1
            elif self.has_uids and not uid:    # its number would be another row's once lines are put in or taken out
                raise ContractError("the row has no uid", where=row.where, hint="give each row one, or leave out --uid")
            elif labels := self._labels(row, names, collected):
                yield Point(row.where, self._is_test(row), uid or str(row.number), bool(uid), title, content, labels,
                            row.text("group"))
            else:
                skipped["rows_without_vocabulary_labels"] += 1

    def uid_key(self, point: Point) -> int:
        """Return the key of a uid, which no other row has; in each half where the documents have halves of their own.

        A draw must not decide whether two rows with the same uid are accepted.
        """
        return key_of(point.uid, str(self.documents.splits and point.is_test))

    def _labels(self, row: Row, names: list[str], collected: _Collected) -> dict[str, float]:
        """Return uid -> weight of the labels of a row; with a vocabulary, of those that it has."""
        weights = weigh(row, names, self.separator, wanted="weight" in self.documents.columns)
        also = dict(zip(reversed(names), reversed(label_names(row, "", "also")), strict=False))
        if self.vocabulary is None:
            collected.titles |= {name: title for name in weights if (title := also.get(name)) and is_uri(name)}
            return weights
        labels: dict[str, float] = {}
        for name, weight in weights.items():    # the first name of a concept has its weight, as of a label
            if (uri := self.vocabulary.find(name, also.get(name, ""))) is None:
                collected.unknown.setdefault(name, row.where)
            else:
                labels.setdefault(uri, weight)
        return labels

    def _is_test(self, row: Row) -> bool:
        if self.documents.splits:
            name = row.text("split")
            if name.lower() not in _IS_TEST:
                raise ContractError(f"the split must be train or test, got {name[:80]!r}", where=row.where,
                                    hint=f"change column {row.names.get('split', 'split')!r}, or leave it out and rows "
                                         "are drawn")
            return _IS_TEST[name.lower()]
        return self.split_rule.is_test(row.text("text"), row.text("content"))


def import_file(path: Path, out: Path, *, text: str | None = None, labels: str | None = None,
                content: str | None = None, uid: str | None = None, split: str | None = None,
                weight: str | None = None, group: str | None = None, separator: str | None = None,
                test_fraction: float = 0.2, vocabulary: Path | None = None,
                languages: Sequence[str] = ()) -> dict[str, Any]:
    """Write documents with labels as an XC repository folder, and return a summary.

    `path` is a table, in any form that `read_rows` takes, or has one of the `FORMATS` of documents. `text`, `labels`,
    `content`, `uid`, `split`, `weight`, `group` name columns; a table must have the first two named. A weight is a
    number above 0 for all labels of a row, or as many as it has labels, in a list or separated as they are. Labels are
    a list, or a text split at `separator`: None guesses among ; | and , (the summary says how), "" takes the whole
    text as one label.
    Without a vocabulary a label's name is its title and its uid, or its uid is its URI where a format has both; so a
    label has the same uid in a later import with other labels. With one (`read_vocabulary`) a label is the concept
    that has its name or URI; others are counted and left out. Labels are sorted by uid.
    Rows of equal text are one text, with the labels of all and their weights added up, but for rows with a uid.
    Without a split column a text stays in the half where an earlier import to `out` has it; a new one is assigned by
    its SHA-1 (`tasks.data.sources.train_test`), those of a group together. Labels without a training row are left out,
    as are test rows without other labels; both are counted.
    Raises UsageError for an invalid setting, ContractError with file and line of a bad row, and ProjectError for a file
    that is written to meanwhile.
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"the share of test rows must be from 0 to below 1, got {test_fraction}", hint="--test 0.2")
    if languages and vocabulary is None:
        raise UsageError("a language is that of a vocabulary's names, and there is none", hint="--vocabulary FILE")
    recover(out)
    refuse_foreign(out)
    given = {"text": text, "labels": labels, "content": content, "uid": uid, "split": split, "weight": weight,
             "group": group}
    documents = find_documents(path, {role: name for role, name in given.items() if name is not None})
    sha256 = documents.digest()
    concepts = read_vocabulary(vocabulary, languages) if vocabulary else None
    cells = (row.cells.get("labels") for row in documents.rows())
    if separator is None:
        separator, reason = guess_separator(cells)
    else:
        reason = reason_of_given(separator, cells)
    texts = ((row.text("uid"), row.text("text"), row.text("content"), row.text("group")) for row in documents.rows())
    rule = SplitRule(0.0) if documents.splits else split_rule(out, test_fraction, texts, documents.uid_column)
    plan = _Plan(documents, uid is not None, separator, rule, concepts)
    collected = _collect(plan, test_fraction)
    counts = _write(plan, out, collected, sha256)
    return {**counts, **collected.skipped, "labels_never_in_training": len(collected.test - collected.train),
            **_vocabulary_counts(plan, collected),
            **({"rows_joined_reason": "rows of equal text are one text, with the labels of all"}
               if counts.get("rows_joined") else {}),
            **({"separator": separator, "separator_reason": reason} if reason else {}),
            **_split_reason(plan, out, counts)}


def _collect(plan: _Plan, test_fraction: float) -> _Collected:
    """Return the labels and texts of all rows. Raises ContractError where no run could train or be measured on them."""
    collected = _empty(plan)
    for point in plan.points(collected):
        (collected.test if point.is_test else collected.train).update(point.labels)
        if plan.documents.splits and not point.is_test:
            collected.trained.add(key_of(point.title, point.content))
        if (text := point.text_key) is not None:
            collected.texts.append(text)
        collected.uids.append(plan.uid_key(point))
    refuse_same_uids(collected.uids, ((plan.uid_key(point), point) for point in plan.points(_empty(plan))))
    _refuse_useless(plan, collected, test_fraction)
    return collected


def _refuse_useless(plan: _Plan, collected: _Collected, test_fraction: float) -> None:
    """Raise ContractError where no run could train or be measured on what was collected."""
    path, splits = plan.documents.path, plan.documents.splits
    if collected.unknown and not collected.train | collected.test and plan.vocabulary is not None:
        name, where = next(iter(collected.unknown.items()))
        raise ContractError(f"none of the labels is in {plan.vocabulary.file}: "
                            f"{plural(len(collected.unknown), 'label')}, the first is {name[:80]!r}", where=where,
                            hint="check that it is their vocabulary, and that names are in its --language")
    if not collected.train:
        raise _nothing_to_train(plan, collected)
    if test_fraction and not splits and not collected.test:
        # for example a file that is the training part of a split by the same rule
        raise ContractError(f"none of the usable rows of {path.name} was drawn for testing with a share of "
                            f"{test_fraction}", where=str(path),
                            hint="all have the same text: add others, or check that --text names the right column"
                            if len(set(collected.texts)) == 1 else "raise --test, or name a column: --split COLUMN")
    if (splits or test_fraction) and collected.test.isdisjoint(collected.train):
        raise ContractError("no row for testing has a label that a row for training has" if collected.test else
                            "no row is for testing", where=str(path),
                            hint="a run measures itself on such rows: add some, or choose others by --test or --split")


def _nothing_to_train(plan: _Plan, collected: _Collected) -> ContractError:
    """Return why there is no training row: there is no row, none is usable, or all are for testing."""
    where = str(plan.documents.path)
    if collected.test:
        return ContractError("all rows with a text and a label are for testing, none is for training", where=where,
                             hint="change the split of some" if plan.documents.splits else
                                  "lower --test, or name a column: --split COLUMN")
    if not collected.skipped.total():
        return ContractError("it has no rows", where=where, hint="check that it is the right file")
    columns = [f"--{role} {names[0]}" for role, names in plan.documents.columns.items() if role != "uid"]
    counts = ", ".join(f"{key}: {count}" for key, count in collected.skipped.items())
    return ContractError(f"no row has a text and a label ({counts})", where=where,
                         hint=f"check the columns that were read: {' '.join(columns)}" if columns else
                              "check that each text has its subjects where the format has them")


def _empty(plan: _Plan) -> _Collected:
    """Return what is collected before the first row."""
    known = {"rows_without_vocabulary_labels": 0} if plan.vocabulary else {}
    return _Collected(Counter(rows_without_text=0, rows_without_labels=0, **known))


def _vocabulary_counts(plan: _Plan, collected: _Collected) -> dict[str, Any]:
    """Return what of a vocabulary and of the labels is left out, {} without a vocabulary."""
    if plan.vocabulary is None:
        named = sum(is_uri(label) and label not in collected.titles for label in collected.train)
        reason = f"{named:,} labels have a URI for a text; a vocabulary has their names: --vocabulary FILE"
        return {"vocabulary_reason": reason} if named else {}
    first = next((f"; the first is {name[:80]!r} ({where})" for name, where in collected.unknown.items()), "")
    return {**plan.vocabulary.left_out, "labels_not_in_vocabulary": len(collected.unknown)} | (
        {"vocabulary_reason": f"labels that {plan.vocabulary.file.name} does not have are left out{first}"}
        if first else {})


def _split_reason(plan: _Plan, out: Path, counts: dict[str, int]) -> dict[str, str]:
    """Return a remark on the split, {"split_reason": text}, or nothing."""
    if shared := counts.get("test_rows_with_a_text_of_train"):
        column = plan.documents.columns.get("split")
        by, remedy = (f"column {column[0]!r}", "; without --split equal texts lie in one half") if column else (
            "the data's own split", "")
        return {"split_reason": f"by {by} {shared:,} of {counts['test']:,} test rows have a text that train has, and "
                                f"xc run refuses more than 1% (prepare.leak_share){remedy}"}
    if plan.split_rule.before:
        return {"split_reason": f"texts that were in {out.name} stay in their half, new ones are drawn with share "
                                f"{plan.split_rule.share:g}; a new folder draws all"}
    return {}


def _write(plan: _Plan, out: Path, collected: _Collected, sha256: str) -> dict[str, int]:
    """Write the folder, and return its counts. Raises ProjectError where the documents' `sha256` has changed."""
    names = sorted(collected.train)
    ids = {name: number for number, name in enumerate(names)}
    counts: Counter[str] = Counter(train=0, test=0, labels=len(names), positives_train=0, positives_test=0,
                                   test_rows_without_known_labels=0)

    def points() -> Iterator[tuple[Point, dict[int, float]]]:
        for point in plan.points(_empty(plan)):
            yield point, {ids[name]: weight for name, weight in point.labels.items() if name in ids}

    rows = ((point.text_key, targets, point.group) for point, targets in points())
    joined = JoinedTexts(collected.texts, rows, len(names), summed="weight" in plan.documents.columns)
    column = plan.documents.uid_column
    with raw_folder(out, name_and_constants(out) | ({UID: column} if column else {})) as folder:
        grouped = line_writer(folder / GROUPS) if "group" in plan.documents.columns else nullcontext(None)
        with json_lines(folder / "trn.json.gz") as train, json_lines(folder / "tst.json.gz") as test, grouped as group:
            for point, own in points():
                side = "test" if point.is_test else "train"
                if (targets := joined.targets(point.text_key, own)) is None:
                    counts["rows_joined"] += 1
                elif targets:
                    (test if point.is_test else train)(json_row(point.uid, point.title, point.content, targets))
                    counts[side] += 1
                    counts[f"positives_{side}"] += len(targets)
                    if group and not point.is_test:
                        group(joined.group(point.text_key, point.group))
                    if point.is_test and key_of(point.title, point.content) in collected.trained:
                        counts["test_rows_with_a_text_of_train"] += 1
                else:
                    counts["test_rows_without_known_labels"] += 1
        write_json_lines(folder / "lbl.json.gz", (_label(plan, collected, name) for name in names))
        if plan.vocabulary is not None:
            counts.update(write_graphs(plan.vocabulary, names, counts["train"], folder))
            counts.update(write_broader(plan.vocabulary, folder / BROADER))
        refuse_other(plan.documents.path, sha256, plan.documents.digest())
    return dict(counts)


def _label(plan: _Plan, collected: _Collected, uid: str) -> dict[str, Any]:
    """Return the row of a label."""
    if plan.vocabulary is not None:
        return json_row(uid, plan.vocabulary.concepts[uid].title, plan.vocabulary.concepts[uid].content)
    return json_row(uid, collected.titles.get(uid, uid), "")
