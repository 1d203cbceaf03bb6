"""The formats of raw data sets: names of their files, and parsers of their texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.data.sources.shards import Ids, TablePart
from tasks.data.sources.texts import Lines, json_texts, plain_texts

Positives = tuple[str, Ids]    # the table of the positives in the same lines, and the valid label ids


@dataclass(frozen=True)
class RawFormat:
    """A format; a data set has the first one of whose files of training queries one is in its folder.

    files: the possible names of each table's file; the first that exists is read. read: makes shards of lines of texts,
    given the file's name, the most rows per shard, the table, and the positives if the lines hold them.
    positives_inside: lines of queries hold their positives, which have no file of their own.
    """

    name: str
    files: Mapping[str, Sequence[str]]
    read: Callable[[Lines, str, int, str, Positives | None], Iterator[TablePart]]
    positives_inside: bool = False


def _plain(lines: Lines, file: str, size: int, table: str, positives: Positives | None) -> Iterator[TablePart]:
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
