"""Real servers for tests: one Kafka and one Redis a run, one PostgreSQL for each process of xdist.

They stop with the run, also when it is killed (`semel.verify.servers.cleanup`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from semel.verify.servers.postgres import PostgresServer
from support import rows_plugin
from support.kafka_fixture import ONE_OF_A_RUN, kafka, kafka_to_restart
from support.redis_fixture import cut, redis, redis_of_the_run
from support.skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = [
    "cut",
    "kafka",
    "kafka_to_restart",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
    "redis",
    "redis_of_the_run",
]


# How long an example takes depends on what else the machine does: it fails no test.
settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")


def pytest_addoption(parser: pytest.Parser) -> None:
    rows_plugin.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(rows_plugin.RowsPlugin(config), "rows")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use a server of the run are run by one process of xdist (`--dist
    loadgroup`).
    """
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        for server in ONE_OF_A_RUN:
            if server in used:
                item.add_marker(pytest.mark.xdist_group(server))


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
