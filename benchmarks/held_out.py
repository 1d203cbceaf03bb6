"""Cut a validation data set from the training texts of another, to choose settings by, so that its test stays unseen.

    python -m benchmarks.held_out DATA OUT

DATA is a raw folder in the XC JSON-lines format, as `benchmarks.datasets` and `xc data wordnet` write it. A sixth
of its training texts, by a hash of their uid or group, are the test of OUT. Of their labels, those without another
training text are left out, and a pair that training shows the other way round is a filter pair, as in WordNet's own
test: where it counts, settings win by which a model learns its training pairs by heart. Metadata graphs are left
behind.
"""

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import JsonLines, run
from benchmarks.datasets.building import hash_fraction
from data_contracts.errors import UsageError
from tasks.data.sources.raw import ABOUT, GROUPS
from tasks.data.sources.writing import raw_folder, write_json_lines, write_lines, write_pairs

SHARE = 1 / 6
KEPT = ("propensity", "licence")    # of what dataset.json says of the data

Row = Mapping[str, Any]
Pairs = list[tuple[int, int]]


def main(data: JsonLines, out: Path) -> None:
    """Write the validation data set, and print how many texts it has and how many pairs do not count.

    Raises UsageError where OUT is DATA, which would lose its test.
    """
    if out.exists() and out.samefile(data):
        raise UsageError(f"OUT is DATA, {data}, which it would replace", hint="name another folder")
    rows = list(read_rows(data / "trn.json.gz"))
    filters = data / "filter_labels_train.txt"
    own = _by_first(map(int, line.split()) for line in filters.read_text().splitlines()) if filters.exists() else {}
    groups = (data / GROUPS).read_text().splitlines() if (data / GROUPS).exists() else [""] * len(rows)
    train, held, hidden = hold_out(rows, own, [hash_fraction(group or row["uid"], "held out") < SHARE
                                               for row, group in zip(rows, groups, strict=True)])
    about = json.loads((data / ABOUT).read_text()) if (data / ABOUT).exists() else {}
    with raw_folder(out, {"name": out.name} | {key: about[key] for key in KEPT if key in about}) as folder:
        write_json_lines(folder / "trn.json.gz", (rows[number] for number in train))
        write_json_lines(folder / "tst.json.gz", held)
        shutil.copyfile(data / "lbl.json.gz", folder / "lbl.json.gz")
        if any(groups):
            write_lines(folder / GROUPS, (groups[number] for number in train))
        write_pairs(folder / "filter_labels_train.txt",
                    [(place, label) for place, number in enumerate(train) for label in own.get(number, ())])
        write_pairs(folder / "filter_labels_test.txt", hidden)
    unseen = set(hidden)
    count = sum((place, label) in unseen for place, row in enumerate(held) for label in row["target_ind"])
    print(f"{len(train):,} training texts, {len(held):,} held out; {count:,} of their pairs do not count")


def hold_out(rows: Sequence[Row], own: Mapping[int, Sequence[int]],
             is_held: Sequence[bool]) -> tuple[list[int], list[Row], Pairs]:
    """Return the numbers of the training rows, the rows held out with their labels, and the filter pairs of these.

    own: the labels that a row itself is, by its number, as filter pairs of training texts say. A row of which no label
    is left is left out. The rule of xcmodels.data.judged_answers.JudgedAnswers, on a raw folder.
    """
    train = [number for number, held in enumerate(is_held) if not held]
    having = _by_first((label, number) for number in train for label in rows[number]["target_ind"])
    kept, hidden = list[Row](), Pairs()
    for number, row in enumerate(rows):
        if not is_held[number]:
            continue
        pairs = [(label, weight) for label, weight in zip(row["target_ind"], row["target_rel"], strict=True)
                 if label in having]
        itself = own.get(number, ())
        shown = (label for mine in itself for other in having.get(mine, ()) for label in own.get(other, ()))
        unseen = {*itself, *shown}
        if any(label not in unseen for label, _ in pairs):
            hidden += [(len(kept), label) for label in sorted(unseen)]
            kept.append({**row, "target_ind": [label for label, _ in pairs],
                         "target_rel": [weight for _, weight in pairs]})
    return train, kept, hidden


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a raw folder's JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def _by_first(pairs: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Return the second members of pairs by their first."""
    found = defaultdict[int, list[int]](list)
    for first, second in pairs:
        found[first].append(second)
    return dict(found)


if __name__ == "__main__":
    run(main, __doc__)
