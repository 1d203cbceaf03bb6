"""The read step: raw files become Parquet shards of tables, on Dask."""

from tasks.core.step import StepContext
from tasks.core.wording import plural
from tasks.data import sources
from tasks.data.sources import RawDataSet
from tasks.data.tables import count_rows


def read(data: RawDataSet, context: StepContext) -> None:
    """Read every raw file into shards of its tables on Dask; all workers share the blocks of a file of texts."""
    workers = max(context.workers.count, 1)
    jobs = [(data, unit, context.out, (number, shares)) for unit in sources.units(data)
            for shares in [workers if sources.splits(data, unit) else 1] for number in range(shares)]
    for _ in context.workers.map(sources.read_tables, jobs, name=lambda task: f"reading {task[1]}"):
        pass
    for table in sources.tables(data):
        if rows := count_rows(context.out / table):
            context.say(f"{table}: {plural(rows, 'row')}")
