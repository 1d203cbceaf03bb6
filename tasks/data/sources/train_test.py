"""Assignment of imported texts to train or test: as in an earlier import, else by hash."""

import hashlib
import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_contracts.errors import ContractError, ProjectError
from tasks.data.sources.files import text_lines
from tasks.data.sources.writing import ours
from xcmodels.data.groups import components

UID = "uid_column"    # in dataset.json: the column with the uids, where they are not line numbers


def key_of(title: str, content: str) -> int:
    """Return the key of a text: the first 64 bits of its SHA-1."""
    return _key(f"{title}\n{content}")


def folded_key(title: str, content: str) -> int:
    """Return the key of a text's folded form: in lower case, with single spaces, as most tokenizers read it."""
    return key_of(*(" ".join(part.casefold().split()) for part in (title, content)))


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:8])


@dataclass(frozen=True)
class SplitRule:
    """The rule that assigns a text to train or test, independent of its uid and of texts that it is not bound to.

    share: the share of new texts for testing; a larger one only moves texts from train to test, a smaller one only the
    other way. before: whether a text of an earlier import is for testing, by `key_of`. drawn_by: key of each text that
    a group, or a difference in case or white space alone, binds to others -> the key that draws the half of all.
    """

    share: float
    before: dict[int, bool] = field(default_factory=dict)
    drawn_by: dict[int, int] = field(default_factory=dict)

    def is_test(self, title: str, content: str) -> bool:
        """Return whether a text is for testing."""
        key = key_of(title, content)
        key = self.drawn_by.get(key, key)
        return self.before.get(key, (key >> 32) / 2**32 < self.share)


def split_rule(out: Path, share: float, rows: Iterable[tuple[str, str, str, str]],
               uid_column: str | None) -> SplitRule:
    """Return the rule for an import to `out`: a text stays in the half where an earlier import to `out` has it.

    A text that was edited since stays, too, if its uid is known; where several rows have the text, it is for testing if
    all of them were, as are texts that are bound. rows: uid, title, content and group, "" for none; 24 bytes of each
    are kept meanwhile.
    Raises ContractError where the earlier import is damaged.
    """
    keys, folds, groups = array("Q"), array("Q"), array("Q")

    def noted_key(title: str, content: str, group: str = "") -> int:
        keys.append(key_of(title, content))
        folds.append(folded_key(title, content))
        groups.append(_key(f"group {group}") if group else 0)
        return keys[-1]

    about = ours(out)
    texts: dict[int, bool] = {}
    uids: dict[int, bool] = {}
    for stem, is_test in (("tst", True), ("trn", False)):    # what was in both was trained on
        if (name := f"{stem}.json.gz") in about.get("files", ()):
            for row in _points(out / name):
                texts[noted_key(row["title"], row["content"])] = is_test
                if uid_column and about.get(UID):
                    uids[_key(row["uid"])] = is_test
    edited: dict[int, bool] = {}
    for uid, title, content, group in rows:
        key = noted_key(title, content, group)
        if (was_test := uids.get(_key(uid)) if uids else None) is not None and key not in texts:
            edited[key] = edited.get(key, True) and was_test
    before, drawn_by, drawn = texts | edited, _drawn_by(keys, folds, groups), dict[int, bool]()
    for key, common in drawn_by.items():
        if key in before:
            drawn[common] = drawn.get(common, True) and before[key]
    return SplitRule(share, before | drawn, drawn_by)


def _drawn_by(keys: "array[int]", folds: "array[int]", groups: "array[int]") -> dict[int, int]:
    """Return, by the key of each text that has another spelling or a group, the key that draws it and all bound to it.

    That is the lowest key of their groups, or else the key of their folded form.
    """
    folded, fold = np.unique(np.asarray(folds), return_inverse=True)
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    grouped = np.asarray(groups) > 0
    part = components(fold, np.where(grouped, group, -1))
    common, lowest = (np.full(len(folded), np.iinfo(np.uint64).max) for _ in range(2))
    np.minimum.at(common, part, folded[fold])
    np.minimum.at(lowest, part[grouped], names[group[grouped]])
    has_group = lowest < np.iinfo(np.uint64).max
    common[has_group] = lowest[has_group]
    texts, first = np.unique(np.asarray(keys), return_index=True)
    part = part[first]
    chosen = ((np.bincount(part, minlength=len(folded)) > 1) | has_group)[part]
    return dict(zip(texts[chosen].tolist(), common[part[chosen]].tolist(), strict=True))


def _points(path: Path) -> Iterable[dict[str, Any]]:
    try:
        for _, line in text_lines(path):
            row = json.loads(line)
            yield {key: str(row[key]) for key in ("uid", "title", "content")}
    except (ProjectError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ContractError(f"{path} is damaged, so it cannot tell which texts it has for training and which for "
                            "testing", hint=f"remove it, and all texts are drawn anew: rm -r {path.parent}") from error
