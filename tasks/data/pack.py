"""The pack step: tables and tokens become the memory-mapped arrays of a corpus."""

import json
import mmap
import operator
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.disk_room import take_room
from tasks.core.step import StepContext
from tasks.data.tables import SIDE_TABLES, column_parts, count_rows, shards
from xcmodels.data import seeds, seen_texts
from xcmodels.data.corpus import BITS, Ragged, Side, Texts
from xcmodels.data.groups import components
from xcmodels.data.label_branches import Branches
from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.ranges import in_ranges
from xcmodels.data.sorted_ids import unique
from xcmodels.data.text import shown
from xcmodels.data.tokens import Tokenizer

LARGEST = 0.2    # share of the validation split that one text or one group may have where there are others


def pack(config: PrepareConfig, facts: dict, seed: int, context: StepContext) -> None:
    """Write the arrays that training maps (`xcmodels.data.corpus`), on Dask; no two jobs write the same file."""
    tables, tokens, out = context.inputs["tables"], context.inputs["tokens"], context.out
    counts = {side: count_rows(tables / table) for side, table in SIDE_TABLES.items()}
    augmented = count_rows(tokens / "tokens.train") - counts["train"]
    jobs = [*_jobs(context.inputs, facts["anchors"], counts, augmented, out)]
    if config.weight_power:
        jobs.append((_pack_weights, tables / "positives.train", augmented, config.weight_power, out))
    for _ in context.workers.map(operator.call, jobs,
                                 name=lambda task: f"packing ({task[0].__name__.strip('_')})"):
        pass
    shutil.copytree(tokens / "tokenizer", out / "tokenizer")
    vocabulary = Tokenizer.load(out / "tokenizer").size
    np.save(out / "idf.npy", _idf(out, vocabulary))
    groups = _groups(tables / "groups.train", counts["train"])
    np.save(out / "validation.npy", _validation(out, groups, config, seed))
    (out / "corpus.json").write_text(json.dumps(
        {**facts, **counts, "augmented": augmented, "vocabulary": vocabulary}, indent=1, sort_keys=True) + "\n")
    context.say(f"{counts['train']:,} training queries, {counts['label']:,} labels, {counts['test']:,} test queries")


def _jobs(inputs: Mapping[str, Path], anchors: Sequence[str], counts: dict[str, int], augmented: int,
          out: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the packing jobs, as functions with their arguments, the longest ones first."""
    tables = inputs["tables"]
    yield _pack_texts, tables / "queries.train", out, "train.text", "title", "content"
    for side in (*SIDE_TABLES, *(f"anchors.{anchor}" for anchor in anchors)):
        yield _pack_tokens, inputs["tokens"] / f"tokens.{side}", out, side
    for anchor in anchors:
        yield _pack_walks, inputs["walks"], anchor, counts, augmented, out
    for split in ("train", "test"):
        yield _pack_labels, tables, split, counts[split], augmented if split == "train" else 0, out
    for column in ("title", "content", "uid"):
        yield _pack_texts, tables / "queries.test", out, f"test.{column}", column
    for column in ("uid", "title"):
        yield _pack_texts, tables / "labels", out, f"label.{column}", column
    if (tables / "broader").exists():
        yield _pack_branches, tables / "broader", out


def _pack_texts(table: Path, out: Path, name: str, *columns: str) -> None:
    """Write a column of texts, or two columns joined to one text per row."""
    texts = (chain.from_iterable(column_parts(table, column)) for column in columns)
    Texts.save(out, name, map(shown, *texts) if len(columns) == 2 else chain(*texts))


def _pack_branches(table: Path, out: Path) -> None:
    """Write the broader relation of the vocabulary."""
    Branches.save(out, zip(*(chain(*column_parts(table, column)) for column in ("concept", "broader")), strict=True))


def _pack_labels(tables: Path, split: str, queries: int, augmented: int, out: Path) -> None:
    """Write a split's positives, filters and rejected labels; an augmented query, of a label's text, has that label."""
    keys = _keys(tables / f"positives.{split}", "query", "label", augmented)
    if augmented:
        labels = np.arange(augmented)
        keys[-augmented:] = queries + labels << BITS | labels
    Ragged.of_keys(keys, queries + augmented).save(out, f"positives.{split}")
    filters = _keys(tables / f"filters.{split}", "query", "label")
    Ragged.of_keys(filters, queries + augmented).save(out, f"filters.{split}")
    if (rejected := tables / f"rejected.{split}").exists():
        Ragged.of_keys(_keys(rejected, "query", "label"), queries + augmented).save(out, f"rejected.{split}")


def _pack_weights(positives: Path, augmented: int, power: float, out: Path) -> None:
    """Write relevance^power of the training positives, in their order and 1 on average, unless all are equal.

    That on average keeps learning rates what they are. An augmented query's own label weighs 1.
    """
    relevance = np.concatenate([np.empty(0, np.float32), *(pq.read_table(shard, columns=["relevance"])["relevance"]
                                                           .to_numpy() for shard in shards(positives))])
    if not len(relevance) or relevance.min() == relevance.max():
        return
    weights = relevance.astype(np.float64) ** power
    ordered = (weights / weights.mean())[np.argsort(_keys(positives, "query", "label"))]
    np.save(out / "weights.train.npy", np.append(ordered, np.ones(augmented)).astype(np.float32))


def _pack_tokens(table: Path, out: Path, side: str) -> None:
    """Write one side's tokens, title then content per row, with one shard in memory at a time."""
    n = count_rows(table)
    offsets = _mapped_array(out / f"{side}.tokens.offsets.npy", np.int64, n + 1)
    titles = _mapped_array(out / f"{side}.titles.npy", np.int32, n)
    for shard in shards(table):
        part = pq.read_table(shard, columns=["id", "title", "content"])
        ids = part["id"].to_numpy()
        titles[ids] = pc.list_value_length(part["title"]).to_numpy()
        offsets[ids + 1] = titles[ids] + pc.list_value_length(part["content"]).to_numpy()
    np.cumsum(offsets, out=offsets)
    _drop_pages(titles)
    values = _mapped_array(out / f"{side}.tokens.values.npy", np.int32, int(offsets[-1]))
    for shard in shards(table):
        part = pq.read_table(shard, columns=["id", "title", "content"])
        starts = offsets[part["id"].to_numpy()]
        for column in ("title", "content"):
            flat = part[column].combine_chunks()
            lengths = pc.list_value_length(flat).to_numpy(zero_copy_only=False).astype(np.int64)
            values[in_ranges(starts, lengths)] = flat.flatten().to_numpy()
            starts = starts + lengths
        _drop_pages(values)


def _mapped_array(path: Path, dtype: type[np.generic], size: int) -> np.memmap:
    """Map a new array (size,), whose room on the disk is taken."""
    array = np.lib.format.open_memmap(path, "w+", dtype, (size,))
    take_room(path, path.stat().st_size)
    return array


def _drop_pages(array: np.memmap) -> None:
    """Release the written pages of a mapped file from this process' memory; the file keeps them."""
    assert isinstance(array.base, mmap.mmap)
    array.base.madvise(mmap.MADV_DONTNEED)


def _pack_walks(walks: Path, anchor: str, counts: dict[str, int], augmented: int, out: Path) -> None:
    """Write the anchors of every training query and label; an augmented query has its label's."""
    labels, queries = (_keys(walks / f"walks.{anchor}.{side}", "node", "anchor") for side in ("label", "train"))
    if augmented:
        queries = np.concatenate([queries, labels + (counts["train"] << BITS)])
    Ragged.of_keys(labels, counts["label"], np.int32).save(out, f"walks.{anchor}.label")
    Ragged.of_keys(queries, counts["train"] + augmented, np.int32).save(out, f"walks.{anchor}.train")


def _idf(out: Path, vocabulary: int) -> np.ndarray:
    """Return log((n + 1) / (df + 1)) of each token as a title token, then as a content token: (2 V,) float32."""
    df, n = np.zeros(2 * vocabulary, dtype=np.int64), 0
    for side in ("train", "label"):
        titles = np.load(out / f"{side}.titles.npy")
        n += len(titles)
        for start in range(0, len(titles), 65_536):
            rows = np.arange(start, min(start + 65_536, len(titles)))
            # Mapped again for each block, so that pages already read do not count as this process' memory.
            values, lengths = Ragged.load(out, f"{side}.tokens").take(rows)
            owner = np.repeat(np.arange(len(rows)), lengths)
            position = in_ranges(0, lengths)
            field = values + vocabulary * (position >= titles[rows][owner])
            df += np.bincount(unique(owner * 2 * vocabulary + field) % (2 * vocabulary), minlength=2 * vocabulary)
    return np.log((n + 1) / (df + 1)).astype(np.float32)


def _groups(table: Path, n: int) -> np.ndarray:
    """Return the number of each training query's group (n,), -1 for none."""
    groups, numbers = np.full(n, -1), dict[str, int]()
    for shard in shards(table):
        part = pq.read_table(shard, columns=["query", "group"])
        names = part["group"].to_pylist()
        groups[part["query"].to_numpy()] = [numbers.setdefault(name, len(numbers)) for name in names]
    return groups


def _validation(out: Path, groups: np.ndarray, config: PrepareConfig, seed: int) -> np.ndarray:
    """Return the rows held out for validation, sorted: a seeded draw among the queries with a positive.

    groups (n,): the number of each query's group, -1 for none. All rows that one text or one group binds are held out
    or none, as test texts are new to training, too. Sets with more than LARGEST of the rows to hold out are only
    taken where smaller ones do not suffice: a single one of them would be what validation says. Only where each set has
    more rows than are to be held out, some of its rows are.
    At least one query is held out, and at least one is left to train on; a single labelled query is left to train on.
    """
    rows = np.flatnonzero(Ragged.load(out, "positives.train").lengths[:len(groups)] > 0)
    count = min(max(1, round(config.validation * len(rows))), config.validation_max, max(len(rows) - 1, 0))
    order = seeds.generator(seed, "validation").permutation(len(rows))
    _, text = np.unique(seen_texts.of_rows(Side.load(out, "train"), rows), return_inverse=True)
    _, first, component, sizes = np.unique(components(text, groups[rows])[order], return_index=True,
                                           return_inverse=True, return_counts=True)
    held, left = np.zeros(len(first), dtype=bool), count
    large = sizes > max(1, LARGEST * count)
    for drawn in np.lexsort((first, large)).tolist():    # in the order of the draw, large ones last, while they fit
        if sizes[drawn] <= left:
            held[drawn] = True
            left -= sizes[drawn]
        if not left:
            break
    return np.sort(rows[order[held[component]]] if held.any() else rows[order[:count]])


def _keys(table: Path, row: str, value: str, extra: int = 0) -> np.ndarray:
    """Return row << BITS | value for every pair of a table's columns, with room for `extra` more at the end."""
    keys, start = np.empty(count_rows(table) + extra, dtype=np.int64), 0
    for shard in shards(table):
        part = pq.read_table(shard, columns=[row, value])
        block = keys[start:start + len(part)]    # a view
        block[:] = part[row].to_numpy()
        block <<= BITS
        block |= part[value].to_numpy()
        start += len(part)
    return keys
