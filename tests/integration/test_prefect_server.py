"""The Prefect server of a home: what several clients ask of its database at once is done."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.exc import OperationalError

from flows.services.prefect_server import begin_locked
from tests.support.prefect_server import shared_prefect

AT_ONCE = 8    # clients


async def _second_change_between(path, begin, seconds: float) -> int:
    """Let one transaction change the database after another has read it, which changes it then, or `seconds` later."""
    configuration = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{path}")
    engine = await configuration.engine()
    read, changed = anyio.Event(), anyio.Event()

    async def add(after_the_other: bool) -> None:
        async with await configuration.session(engine) as session, begin(configuration, session):
            await session.execute(sa.text("SELECT COUNT(*) FROM runs"))
            if after_the_other:
                read.set()
                with anyio.move_on_after(seconds):
                    await changed.wait()
            await session.execute(sa.text("INSERT INTO runs VALUES (1)"))

    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE runs (id INTEGER)"))
    async with anyio.create_task_group() as group:
        group.start_soon(add, True)
        await read.wait()
        await add(False)
        changed.set()
    async with engine.connect() as connection:
        return (await connection.execute(sa.text("SELECT COUNT(*) FROM runs"))).scalar_one()


def test_a_transaction_waits_where_prefects_own_is_refused(tmp_path):
    with pytest.raises(ExceptionGroup) as refused:
        anyio.run(_second_change_between, tmp_path / "own.db", AioSqliteConfiguration.begin_transaction, 60)
    assert refused.group_contains(OperationalError, match="database is locked")
    assert anyio.run(_second_change_between, tmp_path / "locked.db", begin_locked, 0.5) == 2


def test_runs_that_are_created_at_once_are_created():
    """Prefect's client asks again for a refused one, after 2, 4 and 8 seconds, and then gives up."""
    no_pool = httpx.Limits(max_keepalive_connections=0)    # a connection that is kept may be closed as it is used anew
    with httpx.Client(base_url=shared_prefect(), limits=no_pool, timeout=120) as client, \
            ThreadPoolExecutor(AT_ONCE) as threads:
        flow = client.post("/flows/", json={"name": "at-once"}).json()["id"]
        answers = list(threads.map(
            lambda number: client.post("/flow_runs/", json={
                "flow_id": flow, "name": f"{number}", "state": {"type": "RUNNING"},
                "idempotency_key": str(uuid.uuid4())}), range(10 * AT_ONCE)))
        assert {answer.status_code for answer in answers} == {201}, [answer.text for answer in answers][:3]
