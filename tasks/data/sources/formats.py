"""The formats of raw data sets: what their files are called, and how lines of texts are read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.data.sources.shards import Ids, Shard
from tasks.data.sources.texts import Lines, json_texts, plain_texts

Positives = tuple[str, Ids]    # the table of the positives in the same lines, and the ids that may stand there


@dataclass(frozen=True)
class RawFormat:
    """One format. A data set is of the first one that has a file of training queries in its folder.

    files: the names that the file of each table may have; the first that is there is read. read: makes shards of lines
    of texts, given the file's name, the most rows of a shard, the table, and the positives where the lines hold them.
    positives_inside: lines of queries hold their positives, so that these have no file.
    """

    name: str
    files: Mapping[str, Sequence[str]]
    read: Callable[[Lines, str, int, str, Positives | None], Iterator[Shard]]
    positives_inside: bool = False


def _plain(lines: Lines, file: str, size: int, table: str, positives: Positives | None) -> Iterator[Shard]:
    return plain_texts(lines, file, size, table)


def _json_names(stem: str) -> list[str]:
    return [f"{stem}{end}" for end in (".json.gz", ".jsonl.gz", ".json", ".jsonl")]


XC_JSON = RawFormat("xc-json", {"queries.train": _json_names("trn"), "queries.test": _json_names("tst"),
                                "labels": _json_names("lbl")}, json_texts, positives_inside=True)
XC_SPARSE = RawFormat("xc-sparse", {
    "queries.train": ["trn_X.txt", "trn_X.raw.txt", "trn.raw.txt"],
    "queries.test": ["tst_X.txt", "tst_X.raw.txt", "tst.raw.txt"],
    "labels": ["Y.txt", "Y.raw.txt", "lbl.raw.txt"],
    "positives.train": ["trn_X_Y.txt", "trn_X_Y.npz", "Y.trn.npz"],
    "positives.test": ["tst_X_Y.txt", "tst_X_Y.npz", "Y.tst.npz"]}, _plain)
FORMATS = (XC_JSON, XC_SPARSE)
