"""Preparation: raw files -> checked tables -> token shards -> packed arrays, the shards on Dask."""

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.check import Thresholds, validate
from tasks import graphs, sources
from tasks.files import file_digest
from tasks.report_text import many
from tasks.sources import RawDataSet
from tasks.steps import Job, Step, slug
from xcmodels import seeds
from xcmodels.corpus import BITS, PrepareConfig, Ragged, Texts
from xcmodels.sets import distinct
from xcmodels.text import shown
from xcmodels.tokens import LEARNED, Tokenizer, learn_backend, open_backend

SIDES = {"train": "queries.train", "test": "queries.test", "label": "labels"}


def steps(data: RawDataSet, config: PrepareConfig, seed: int) -> list[Step]:
    """Return the steps that turn a raw data set into a corpus, in order; `read` refuses other files than these."""
    data = sources.hashed(data, file_digest)
    files = {path.name: data.sha256[table] for table, path in data.files.items()}
    thresholds = Thresholds(leak_share=config.leak_share, drift_fail=config.drift_fail)
    anchors = data.anchors if config.walks else ()
    facts = {"name": data.name, "propensity": list(data.propensity), "anchors": list(anchors)}
    out = [
        Step("read", "tables", partial(read, data), ("tasks.sources",), {"files": files, "format": data.format}),
        Step("check tables", "contract", partial(check, data.name, thresholds), ("data_contracts.check",),
             {"data": data.name, "thresholds": thresholds}, {"tables": "read"}),
        Step("tokenise", "tokens", partial(tokenise, config, anchors), ("tasks.prepare",),
             {"tokenizer": config.tokenizer, "vocabulary": config.vocabulary, "max_title": config.max_title,
              "max_content": config.max_content, "augment": config.augment, "anchors": list(anchors)},
             {"tables": "read", "contract": "check tables"})]
    if anchors:
        out.append(Step("walk graphs", "walks", partial(graphs.walk_all, anchors, seed), ("tasks.graphs",),
                        {"anchors": list(anchors), "seed": seed}, {"tables": "read", "contract": "check tables"}))
    out.append(Step("pack", "corpus", partial(pack, config, facts, seed), ("tasks.prepare",),
                    {"facts": facts, "validation": [config.validation, config.validation_max], "seed": seed},
                    {"tables": "read", "tokens": "tokenise", **({"walks": "walk graphs"} if anchors else {})}))
    return out


def read(data: RawDataSet, job: Job) -> None:
    """Read every raw file into shards of its tables on Dask; one of texts is read by all workers, some blocks each."""
    jobs = [(data, group, job.out, (number, of)) for group in sources.groups(data)
            for of in [job.workers.count if sources.splits(data, group) else 1] for number in range(of)]
    for _ in job.workers.map(sources.read_tables, jobs, name=lambda of: f"reading {of[1]}"):
        pass
    for table in sources.tables(data):
        if rows := _rows(job.out / table):
            job.say(f"{table}: {many(rows, 'row')}")


def check(data: str, thresholds: Thresholds, job: Job) -> None:
    """Hold the tables against their contracts; the page stays in HOME/contracts/<data> whatever comes of it.

    Label frequencies are compared with those of the last check that passed. Raises ContractError where a rule fails.
    """
    page = job.home / "contracts" / slug(data)
    baseline = job.home / "baselines" / f"{slug(data)}.parquet"
    shutil.rmtree(page, ignore_errors=True)
    report = validate(job.inputs["tables"], report_dir=page, previous=baseline if baseline.exists() else None,
                      thresholds=thresholds, data_docs=True)
    job.say(report.verdict)
    for line in report.warned:
        job.say(line)
    report.raise_for_failure()
    # Only what follows from the tables: a page with times, or a comparison with an earlier run, would make everything
    # downstream look new.
    kept = {"rules": len(report.rules), "tables": {table.name: table.rows for table in report.tables}}
    (job.out / "contract.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    baseline.parent.mkdir(exist_ok=True)
    shutil.copy(page / "frequencies.parquet", baseline.with_suffix(".tmp"))
    os.replace(baseline.with_suffix(".tmp"), baseline)


def tokenise(config: PrepareConfig, anchors: tuple[str, ...], job: Job) -> None:
    """Tokenise every shard of every side on Dask; label texts become flagged queries where `augment` asks for it."""
    tables = job.inputs["tables"]
    sides = SIDES | {f"anchors.{anchor}": f"anchors.{anchor}" for anchor in anchors}
    backend = learn_backend(_texts(tables), config.vocabulary) if config.tokenizer == LEARNED \
        else open_backend(config.tokenizer)
    Tokenizer(backend, max_title=config.max_title, max_content=config.max_content).save(job.out / "tokenizer")
    jobs = [(shard, job.out, f"tokens.{side}", number, 0)
            for side, table in sides.items() for number, shard in enumerate(_shards(tables / table))]
    if config.augment:
        queries, after = _rows(tables / "queries.train"), len(_shards(tables / "queries.train"))
        jobs += [(shard, job.out, "tokens.train", after + number, queries)
                 for number, shard in enumerate(_shards(tables / "labels"))]
    for side in sides:
        (job.out / f"tokens.{side}").mkdir()
    # The largest first: what is left for one worker at the end, while the others wait, is small.
    jobs.sort(key=lambda of: -pq.read_metadata(of[0]).num_rows)
    total = sum(job.workers.map(tokenise_shard, jobs, name=lambda of: f"tokenising {of[0].name} of {of[2]}"))
    job.say(f"{total:,} tokens")


def tokenise_shard(shard: Path, out: Path, table: str, number: int, after: int) -> int:
    """Write the tokens of one shard of texts to out/table; with `after` > 0 as augmented rows that follow it.

    Returns how many tokens it wrote. Runs on a Dask worker, and again where a worker is lost.
    """
    import pyarrow as pa

    from data_contracts.schemas import SCHEMAS

    texts = pq.read_table(shard)
    contents = texts["content"].to_pylist() if "content" in texts.column_names else [""] * len(texts)
    titles, contents = Tokenizer.load(out / "tokenizer").fields(texts["title"].to_pylist(), contents)
    columns = [pc.add(texts["id"], after).combine_chunks(), titles, contents, [after > 0] * len(texts)]
    made = pa.table([pa.array(column) if isinstance(column, list) and not column else column for column in columns],
                    schema=SCHEMAS["tokens"])
    path = out / table / f"part-{number:05d}.parquet"
    pq.write_table(made, path.with_suffix(".tmp"), compression="zstd")
    os.replace(path.with_suffix(".tmp"), path)
    return sum(map(len, titles)) + sum(map(len, contents))


def pack(config: PrepareConfig, facts: dict, seed: int, job: Job) -> None:
    """Write the arrays that training maps into memory (`xcmodels.corpus`), on Dask: no two parts write one file."""
    tables, tokens, out = job.inputs["tables"], job.inputs["tokens"], job.out
    counts = {side: _rows(tables / table) for side, table in SIDES.items()}
    augmented = _rows(tokens / "tokens.train") - counts["train"]
    for _ in job.workers.map(_pack_part, list(_parts(job.inputs, facts["anchors"], counts, augmented, out)),
                             name=lambda of: f"packing ({of[0].__name__.strip('_')})"):
        pass
    shutil.copytree(tokens / "tokenizer", out / "tokenizer")
    vocabulary = Tokenizer.load(out / "tokenizer").size
    np.save(out / "idf.npy", _idf(out, ("train", "label"), vocabulary))
    np.save(out / "validation.npy", _validation(out, counts["train"], config, seed))
    (out / "corpus.json").write_text(json.dumps(
        {**facts, **counts, "augmented": augmented, "vocabulary": vocabulary}, indent=1, sort_keys=True) + "\n")
    job.say(f"{counts['train']:,} training queries, {counts['label']:,} labels, {counts['test']:,} test queries")


def _pack_part(pack: Callable[..., None], *arguments: Any) -> None:
    """Run one of `_parts` on a worker."""
    pack(*arguments)


def _parts(inputs: Mapping[str, Path], anchors: Sequence[str], counts: dict[str, int], augmented: int,
           out: Path) -> Iterator[tuple[Any, ...]]:
    """Yield what is to be packed, as functions with their arguments; first what takes longest."""
    tables = inputs["tables"]
    yield _pack_texts, tables / "queries.train", out, "train.text", "title", "content"
    for side in (*SIDES, *(f"anchors.{anchor}" for anchor in anchors)):
        yield _pack_tokens, inputs["tokens"] / f"tokens.{side}", out, side
    for anchor in anchors:
        yield _pack_walks, inputs["walks"], anchor, counts, augmented, out
    for split in ("train", "test"):
        yield _pack_labels, tables, split, counts[split], augmented if split == "train" else 0, out
    for column in ("title", "content", "uid"):
        yield _pack_texts, tables / "queries.test", out, f"test.{column}", column
    for column in ("uid", "title"):
        yield _pack_texts, tables / "labels", out, f"label.{column}", column


def _pack_texts(table: Path, out: Path, name: str, *columns: str) -> None:
    """Write a column of texts, or two as one text a row."""
    texts = (chain.from_iterable(_columns(table, column)) for column in columns)
    Texts.save(out, name, map(shown, *texts) if len(columns) == 2 else chain(*texts))


def _pack_labels(tables: Path, split: str, queries: int, augmented: int, out: Path) -> None:
    """Write the positives of a split's queries, of label texts that follow them their own label, and its filters."""
    keys = _keys(tables / f"positives.{split}", "query", "label", augmented)
    if augmented:
        own = np.arange(augmented)
        keys[-augmented:] = queries + own << BITS | own
    Ragged.of_keys(keys, queries + augmented).save(out, f"positives.{split}")
    Ragged.of_keys(_keys(tables / f"filters.{split}", "query", "label"), queries).save(out, f"filters.{split}")


def _pack_tokens(table: Path, out: Path, side: str) -> None:
    """Write one side's tokens, title then content a row, without holding more than a shard."""
    n, total = _rows(table), 0
    offsets = np.lib.format.open_memmap(out / f"{side}.tokens.offsets.npy", "w+", np.int64, (n + 1,))
    titles = np.lib.format.open_memmap(out / f"{side}.titles.npy", "w+", np.int32, (n,))
    for shard in _shards(table):
        part = pq.read_table(shard, columns=["id", "title", "content"])
        ids = part["id"].to_numpy()
        titles[ids] = pc.list_value_length(part["title"]).to_numpy()
        offsets[ids + 1] = titles[ids] + pc.list_value_length(part["content"]).to_numpy()
    np.cumsum(offsets, out=offsets)
    _let_go(titles)
    total = int(offsets[-1])
    values = np.lib.format.open_memmap(out / f"{side}.tokens.values.npy", "w+", np.int32, (total,))
    for shard in _shards(table):
        part = pq.read_table(shard, columns=["id", "title", "content"])
        starts = offsets[part["id"].to_numpy()]
        for column in ("title", "content"):
            flat = part[column].combine_chunks()
            lengths = pc.list_value_length(flat).to_numpy(zero_copy_only=False).astype(np.int64)
            place = np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
            values[place] = flat.flatten().to_numpy()
            starts = starts + lengths
        _let_go(values)


def _let_go(array: np.memmap) -> None:
    """Hold no more the pages of a mapped file that were written: they are the file's."""
    assert isinstance(array.base, mmap.mmap)
    array.base.madvise(mmap.MADV_DONTNEED)


def _pack_walks(walks: Path, anchor: str, counts: dict[str, int], augmented: int, out: Path) -> None:
    """Write the anchors of every training query and label; a label text added as a query has its label's."""
    labels, queries = (_keys(walks / f"walks.{anchor}.{side}", "node", "anchor") for side in ("label", "train"))
    if augmented:
        queries = np.concatenate([queries, labels + (counts["train"] << BITS)])
    Ragged.of_keys(labels, counts["label"], np.int32).save(out, f"walks.{anchor}.label")
    Ragged.of_keys(queries, counts["train"] + augmented, np.int32).save(out, f"walks.{anchor}.train")


def _idf(out: Path, sides: tuple[str, ...], vocabulary: int) -> np.ndarray:
    """Return log((n + 1) / (df + 1)) of each token as a title token, then as a content token, float32."""
    df, n = np.zeros(2 * vocabulary, dtype=np.int64), 0
    for side in sides:
        titles = np.load(out / f"{side}.titles.npy")
        n += len(titles)
        for start in range(0, len(titles), 65_536):
            rows = np.arange(start, min(start + 65_536, len(titles)))
            # Mapped anew for each block: pages that were read before would count as this process'.
            values, lengths = Ragged.load(out, f"{side}.tokens").take(rows)
            owner = np.repeat(np.arange(len(rows)), lengths)
            place = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            field = values + vocabulary * (place >= titles[rows][owner])
            df += np.bincount(distinct(owner * 2 * vocabulary + field) % (2 * vocabulary), minlength=2 * vocabulary)
    return np.log((n + 1) / (df + 1)).astype(np.float32)


def _validation(out: Path, n: int, config: PrepareConfig, seed: int) -> np.ndarray:
    """Return the rows held out of training, sorted: a seeded draw among the queries that have a positive.

    At least one query is held out, and at least one is left to train on; a single labelled query is left to train on.
    """
    if not 0 < config.validation < 1:
        raise ValueError(f"prepare.validation must be between 0 and 1, got {config.validation}")
    rows = np.flatnonzero(Ragged.load(out, "positives.train").lengths[:n] > 0)
    count = min(max(1, round(config.validation * len(rows))), config.validation_max, max(len(rows) - 1, 0))
    return np.sort(seeds.generator(seed, "validation").permutation(rows)[:count])


def _shards(table: Path) -> list[Path]:
    return sorted(table.glob("part-*.parquet"))


def _rows(table: Path) -> int:
    return sum(pq.read_metadata(shard).num_rows for shard in _shards(table))


def _columns(table: Path, column: str) -> Iterator[list[str]]:
    for shard in _shards(table):
        yield pq.read_table(shard, columns=[column])[column].to_pylist()


def _keys(table: Path, row: str, value: str, more: int = 0) -> np.ndarray:
    """Return row << BITS | value of every pair of a table's columns, with room for `more` at the end."""
    out, start = np.empty(_rows(table) + more, dtype=np.int64), 0
    for shard in _shards(table):
        part = pq.read_table(shard, columns=[row, value])
        here = out[start:start + len(part)]
        here[:] = part[row].to_numpy()
        here <<= BITS
        here |= part[value].to_numpy()
        start += len(part)
    return out


def _texts(tables: Path) -> Iterator[str]:
    """The training queries' and the labels' texts, from which a vocabulary is learned."""
    for table in ("queries.train", "labels"):
        for column in ("title", "content"):
            for part in _columns(tables / table, column):
                yield from part
