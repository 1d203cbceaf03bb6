"""Valid tables for tests to break, and a short way to check them."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.schemas import SCHEMAS, kind_of
from data_contracts.validate import validate
from data_contracts.verdict import Report

Rows = dict[str, list[dict]]
FILES = {"queries": "trn.json", "labels": "lbl.json", "positives": "trn.json", "filters": "filter.txt",
         "anchors": "category.txt", "edges": "category_trn.txt", "broader": "broader.tsv", "rejected": "m.jsonl",
         "groups": "groups_train.txt"}


def good() -> Rows:
    """Return valid tables: twelve training queries, six test queries, six labels and one anchor set."""
    def texts(prefix: str, count: int) -> list[dict]:
        return [{"id": i, "uid": f"{prefix}{i}", "title": f"{prefix} title {i}", "content": f"about {prefix} {i}"}
                for i in range(count)]

    edges = [{"node": i, "anchor": i % 3, "weight": 1.0} for i in range(6)]
    tokens = [{"id": i, "title": [i, 5], "content": [], "augmented": False} for i in range(12)]
    return {
        "queries.train": texts("train", 12), "queries.test": texts("test", 6), "labels": texts("label", 6),
        "positives.train": [{"query": i, "label": i % 6, "relevance": 1.0} for i in range(12)],
        "positives.test": [{"query": i, "label": i, "relevance": .5} for i in range(6)],
        "filters.train": [{"query": 0, "label": 0}, {"query": 1, "label": 1}], "filters.test": [],
        "rejected.train": [{"query": 0, "label": 3}, {"query": 1, "label": 3}],
        "groups.train": [{"query": i, "group": f"group {i // 2}"} for i in range(8)],
        "broader": [{"concept": f"label{i}", "broader": "top"} for i in (1, 2, 2)],
        "anchors.category": [{"id": i, "title": f"anchor {i}"} for i in range(3)],
        "edges.category.train": edges, "edges.category.label": edges, "walks.category.train": edges,
        "pruned.category.train": [{"node": i, "anchor": i % 3} for i in range(6)],
        "tokens.train": [*tokens, {"id": 12, "title": [3], "content": [1, 2], "augmented": True}],
        "clusters": [{"query": i, "cluster": i // 3} for i in range(12)],
        "negatives": [{"query": i, "labels": [(i + 1) % 6, (i + 2) % 6][:i % 3]} for i in range(12)],
    }


def put(root: Path, tables: Rows, split: Collection[str] = ("labels",)) -> Path:
    """Write tables, those in `split` as three shards; rows without a `line` are numbered from 1."""
    for table, rows in tables.items():
        schema = SCHEMAS[kind_of(table)]
        for shard, chosen in enumerate(np.array_split(np.arange(len(rows)), 3 if table in split else 1)):
            full = [{"file": FILES.get(kind_of(table)), "line": int(i) + 1, **rows[i]} for i in chosen]
            arrays = [pa.array([row[name] for row in full], type=schema.field(name).type) for name in schema.names]
            write_shard(root, table, shard, pa.table(arrays, names=schema.names))
    return root


def write_shard(root: Path, table: str, shard: int, data: pa.Table) -> Path:
    path = root / table / f"part-{shard:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, path)
    return path


def read_shard(root: Path, table: str, shard: int) -> pa.Table:
    return pq.read_table(root / table / f"part-{shard:05d}.parquet")


def check(tmp_path: Path, tables: Rows, **options) -> Report:
    root = put(tmp_path / "tables", tables, options.pop("split", options.get("only") or ("labels",)))
    return validate(root, report_dir=tmp_path / "report", **options)


def statuses(report: Report) -> dict[tuple[str, str], str]:
    return {(rule.rule, rule.table): rule.status for rule in report.rules if rule.status != "ok"}
