"""The read step: raw files become Parquet shards of tables, on Dask."""

from tasks.core.step import Job
from tasks.core.wording import many
from tasks.data import sources
from tasks.data.sources import RawDataSet
from tasks.data.tables import count_rows


def read(data: RawDataSet, job: Job) -> None:
    """Read every raw file into shards of its tables on Dask; all workers share the blocks of a file of texts."""
    jobs = [(data, group, job.out, (number, shares)) for group in sources.groups(data)
            for shares in [max(job.workers.count, 1) if sources.splits(data, group) else 1] for number in range(shares)]
    for _ in job.workers.map(sources.read_tables, jobs, name=lambda task: f"reading {task[1]}"):
        pass
    for table in sources.tables(data):
        if rows := count_rows(job.out / table):
            job.say(f"{table}: {many(rows, 'row')}")
