"""Which half of a data set, train or test, the texts of an import are in: where they were, or else by their words."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.errors import ContractError, ProjectError
from tasks.data.sources.files import text_lines
from tasks.data.sources.writing import ours

UID = "uid_column"    # in dataset.json: the column that uids come from, where they are not the numbers of lines
Row = tuple[str, str, str]    # uid, title, content


def key_of(title: str, content: str) -> int:
    """Return what a text is known by: the first 64 bits of its SHA-1."""
    return _key(f"{title}\n{content}")


def _key(text: str) -> int:
    return int.from_bytes(hashlib.sha1(text.encode()).digest()[:8])


@dataclass(frozen=True)
class Halves:
    """The rule that puts a text into a half, whatever its uid and whatever other texts there are.

    share: of new texts, how many are for testing; a larger one takes texts from train to test alone, a smaller one the
    other way alone. before: whether a text that has its place already is for testing, by `key_of`.
    """

    share: float
    before: dict[int, bool] = field(default_factory=dict)

    def is_test(self, title: str, content: str) -> bool:
        """Say whether a text is for testing."""
        key = key_of(title, content)
        return self.before.get(key, (key >> 32) / 2**32 < self.share)


def halves(out: Path, share: float, rows: Iterable[Row], uid_column: str | None) -> Halves:
    """Return the rule for an import to `out`: a text stays where the data set of ours that lies there has it.

    One that was edited since stays, too, as far as its uid tells; where several rows have it, it is for testing if all
    of them were. `rows` are read only where that can matter. Raises ContractError where that data set is damaged.
    """
    about = ours(out)
    texts: dict[int, bool] = {}
    uids: dict[int, bool] = {}
    for stem, is_test in (("tst", True), ("trn", False)):    # what was in both was trained on
        if (name := f"{stem}.json.gz") in about.get("files", ()):
            for row in _points(out / name):
                texts[key_of(row["title"], row["content"])] = is_test
                if uid_column and about.get(UID):
                    uids[_key(row["uid"])] = is_test
    edited: dict[int, bool] = {}
    for uid, title, content in rows if uids else ():
        if (was := uids.get(_key(uid))) is not None and (key := key_of(title, content)) not in texts:
            edited[key] = edited.get(key, True) and was
    return Halves(share, texts | edited)


def _points(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the points of a file that an import wrote."""
    try:
        for _, line in text_lines(path):
            row = json.loads(line)
            yield {key: str(row[key]) for key in ("uid", "title", "content")}
    except (ProjectError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ContractError(f"{path} is damaged, so it cannot tell which texts it has for training and which for "
                            "testing", hint=f"remove it, and all texts are drawn anew: rm -r {path.parent}") from error
