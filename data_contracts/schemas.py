"""A pyarrow schema for every table that passes between steps.

A table is a folder of Parquet shards, `<name>/part-00000.parquet`, `part-00001.parquet`, ...; shards of raw data
are numbered in the order of their rows. A name is a kind and, after dots, its split or anchor set: `queries.train`,
`positives.test`, `edges.category.label`. Ids are 0-based: the row of a query in its split, of a label in the label
file, of an anchor in the anchor file. `file` and `line` (1-based) are the origin of a row in the raw files, so that a
broken rule can show the line to correct.
"""

import pyarrow as pa

_ORIGIN = [pa.field("file", pa.dictionary(pa.int32(), pa.string()), nullable=False),
           pa.field("line", pa.int64(), nullable=False)]


def _table(*fields: tuple[str, pa.DataType], origin: bool = True) -> pa.Schema:
    own = [pa.field(name, kind, nullable=False) for name, kind in fields]
    return pa.schema(own + _ORIGIN if origin else own)


_TEXT = [("id", pa.int64()), ("uid", pa.string()), ("title", pa.string()), ("content", pa.string())]

SCHEMAS: dict[str, pa.Schema] = {
    # read from the user's files
    "queries": _table(*_TEXT),
    "labels": _table(*_TEXT),
    "anchors": _table(("id", pa.int64()), ("title", pa.string())),
    "positives": _table(("query", pa.int64()), ("label", pa.int64()), ("relevance", pa.float32())),
    "filters": _table(("query", pa.int64()), ("label", pa.int64())),
    "rejected": _table(("query", pa.int64()), ("label", pa.int64())),    # labels that reviewers said are wrong
    "groups": _table(("query", pa.int64()), ("group", pa.string())),    # bound texts are held out together
    "broader": _table(("concept", pa.string()), ("broader", pa.string())),    # uids, of labels and of other concepts
    "edges": _table(("node", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float32())),
    # computed by steps
    "tokens": _table(("id", pa.int64()), ("title", pa.list_(pa.int32())), ("content", pa.list_(pa.int32())),
                     ("augmented", pa.bool_()), origin=False),
    "walks": _table(("node", pa.int64()), ("anchor", pa.int64()), ("weight", pa.float32()), origin=False),
    "pruned": _table(("node", pa.int64()), ("anchor", pa.int64()), origin=False),
    "clusters": _table(("query", pa.int64()), ("cluster", pa.int32()), origin=False),
    "negatives": _table(("query", pa.int64()), ("labels", pa.list_(pa.int32())), origin=False),
}

SPLITS = ("train", "test")
FLOAT32_MAX = 3.4028234663852886e38    # the largest relevance or weight; infinity is above it, and NaN is in no range


def kind_of(table: str) -> str:
    """Return the kind of a table: `positives` for `positives.train`. Raises ValueError for an unknown kind."""
    kind = table.partition(".")[0]
    if kind not in SCHEMAS:
        raise ValueError(f"no schema for table {table!r}; kinds are {', '.join(SCHEMAS)}")
    return kind
