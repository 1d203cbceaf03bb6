"""The tokenise step: texts become Parquet shards of tokens, on Dask."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.errors import ProjectError
from tasks.core.step import StepContext
from tasks.data.tables import SIDE_TABLES, column_parts, count_rows, shards, write_shard
from xcmodels.checks import Unusable
from xcmodels.data.prepare_config import PrepareConfig
from xcmodels.data.tokens import LEARNED, Backend, Tokenizer, learn_backend, open_backend


def tokenise(config: PrepareConfig, anchors: tuple[str, ...], context: StepContext) -> None:
    """Tokenise every shard of every side on Dask; with `augment`, label texts become flagged training queries."""
    tables = context.inputs["tables"]
    sides = SIDE_TABLES | {f"anchors.{anchor}": f"anchors.{anchor}" for anchor in anchors}
    backend = learn_backend(_texts(tables), config.vocabulary) if config.tokenizer == LEARNED \
        else _open(config.tokenizer)
    Tokenizer(backend, max_title=config.max_title, max_content=config.max_content).save(context.out / "tokenizer")
    jobs = [(shard, context.out, f"tokens.{side}", number, 0)
            for side, table in sides.items() for number, shard in enumerate(shards(tables / table))]
    if config.augment:
        queries, first = count_rows(tables / "queries.train"), len(shards(tables / "queries.train"))
        jobs += [(shard, context.out, "tokens.train", first + number, queries)
                 for number, shard in enumerate(shards(tables / "labels"))]
    for side in sides:
        (context.out / f"tokens.{side}").mkdir()
    # The largest first, so that the last job, for which the other workers wait, is small.
    jobs.sort(key=lambda task: -pq.read_metadata(task[0]).num_rows)
    total = sum(context.workers.map(tokenise_shard, jobs, name=lambda task: f"tokenising {task[0].name} of {task[2]}"))
    context.say(f"{total:,} tokens")


def _open(source: str) -> Backend:
    try:
        return open_backend(source)
    except Unusable as error:
        raise ProjectError(str(error), hint="without a network: name a folder with the model, --set "
                           "prepare.tokenizer=FOLDER --set encoder.source=FOLDER; or --preset cpu-learned") from error


def tokenise_shard(shard: Path, out: Path, table: str, number: int, after: int) -> int:
    """Write the tokens of one shard of texts to out/table, and return how many tokens there are.

    after: where positive, the rows are augmented queries, numbered from `after` on. Runs on a Dask worker, and again
    where a worker is lost.
    """
    import pyarrow as pa

    from data_contracts.schemas import SCHEMAS

    texts = pq.read_table(shard)
    contents = texts["content"].to_pylist() if "content" in texts.column_names else [""] * len(texts)
    titles, contents = Tokenizer.load(out / "tokenizer").title_and_content_ids(texts["title"].to_pylist(), contents)
    columns = [pc.add(texts["id"], after).combine_chunks(), titles, contents, [after > 0] * len(texts)]
    tokens = pa.table([pa.array(column) if isinstance(column, list) and not column else column for column in columns],
                      schema=SCHEMAS["tokens"])
    write_shard(tokens, out / table / f"part-{number:05d}.parquet")
    return sum(map(len, titles)) + sum(map(len, contents))


def _texts(tables: Path) -> Iterator[str]:
    for table in ("queries.train", "labels"):
        for column in ("title", "content"):
            for part in column_parts(tables / table, column):
                yield from part
