"""Prefect's server, whose transactions lock its SQLite database as they begin.

    python -m flows.services.prefect_server start --host 127.0.0.1 --port PORT

takes the words of `prefect server`, which begins a transaction by reading and locks the database at its first change:
where another has changed it in between, SQLite refuses at once, however long one may wait for a lock. Of six runs that
began together, three ended because four attempts to create a task or flow run had been refused.
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prefect.cli import app
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

_begin = AioSqliteConfiguration.begin_transaction


@asynccontextmanager
async def begin_locked(configuration: AioSqliteConfiguration, session: AsyncSession,
                       with_for_update: bool = True) -> AsyncGenerator[AsyncSessionTransaction, None]:
    """Begin a transaction that waits for the database's lock before it reads: SQLite's BEGIN IMMEDIATE."""
    async with _begin(configuration, session, with_for_update=True) as transaction:
        yield transaction


def main() -> None:
    """Run `prefect server` with the words of this command."""
    AioSqliteConfiguration.begin_transaction = begin_locked    # type: ignore[assignment, method-assign]
    sys.argv[1:1] = ["server"]
    app()


if __name__ == "__main__":
    main()
