"""Shards of tables: buffers of rows, and validation of ids and relevances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from data_contracts.errors import ContractError
from data_contracts.schemas import FLOAT32_MAX, SCHEMAS, kind_of

TablePart = tuple[str, pa.Table]    # the name of a table, and the rows of one of its shards

# A shard ends early at this many characters, so that long articles do not exceed a worker's memory.
SHARD_CHARACTERS = 1 << 26
PAIRS = 8    # a shard of pairs of ids has this many times the rows of a shard of texts


@dataclass(frozen=True)
class Ids:
    """Valid ids, 0 to count - 1; what: what they identify, file: the file with one of its `unit` per id."""

    what: str
    count: int
    file: str
    unit: str = "lines"

    def refuse(self, value: int, where: str) -> NoReturn:
        usable = f"0 to {self.count - 1} can be used here" if self.count else "it is empty, so none can be used"
        size = f"{self.count} {self.unit}"
        raise ContractError(f"{self.what} id {short(str(value))} is not in {self.file}, which has {size}",
                            where=where, hint=f"ids are 0-based numbers of the {self.unit} of {self.file}: {usable}")


def short(text: str) -> str:
    """Return a text cut to at most 80 characters for a message."""
    return text if len(text) <= 80 else text[:77] + "..."


def rows_in(table: str, size: int) -> int:
    """Return how many rows a shard of a table has: `size` for texts, more for pairs of ids, which are small."""
    return size if kind_of(table) in ("queries", "labels", "anchors") else PAIRS * size


class ShardBuffer:
    """A buffer of rows of one table, stored by column until they fill a shard."""

    def __init__(self, table: str, file: str, size: int) -> None:
        self.table, self.file, self.size = table, file, rows_in(table, size)
        self.schema = SCHEMAS[kind_of(table)]
        self.columns: list[list] = [[] for name in self.schema.names if name != "file"]
        self.characters = 0
        self.has_cut = False

    def add(self, *row: object) -> None:
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)

    def extend(self, *columns: Sequence) -> None:
        for column, values in zip(self.columns, columns, strict=True):
            column.extend(values)

    def full(self) -> Iterator[TablePart]:
        """Yield all complete shards."""
        while len(self.columns[0]) >= self.size or self.characters >= SHARD_CHARACTERS:
            yield self._cut()

    def rest(self) -> Iterator[TablePart]:
        """Yield the remaining rows; for a table without rows, one empty shard, which has the schema."""
        while self.columns[0] or not self.has_cut:
            yield self._cut()

    def _cut(self) -> TablePart:
        cut = [column[:self.size] for column in self.columns]
        self.columns = [column[self.size:] for column in self.columns]
        self.characters, self.has_cut = 0, True
        return self.table, shard(self.schema, self.file, cut)


def shard(schema: pa.Schema, file: str, columns: Sequence[Any]) -> pa.Table:
    """Return a table with exactly this schema; columns: in order, without `file`, which is one value for all rows."""
    values = iter(columns)
    rows = len(columns[0])
    arrays = []
    for field in schema:
        if field.name == "file":
            array = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([file], pa.string()))
        elif pa.types.is_string(field.type):
            array = pa.array(next(values), field.type)
        else:  # through numpy: pyarrow refuses integers that float32 has to round
            array = pa.array(np.asarray(next(values), field.type.to_pandas_dtype()))
        arrays.append(array)
    return pa.table(arrays, schema=schema)


def check_relevance(value: float, where: str) -> None:
    if not abs(value) <= FLOAT32_MAX:  # this form refuses NaN too
        raise ContractError(f"relevance must be a finite number, got {value!r}", where=where,
                            hint="give 1 where a label applies and leave out the pair where it does not")
