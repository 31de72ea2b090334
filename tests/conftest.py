"""Real servers for tests. Each pytest process, so each xdist worker, starts its own if asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.bench.servers import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL; `create()` and `url(name)` give a database of one's own."""
    server = PostgresServer(durable=False)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database that only this test has."""
    name = postgres.create()
    yield postgres.url(name)
    postgres.drop(name)
