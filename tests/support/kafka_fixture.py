"""A real Kafka broker for tests, one for all of them; those that restart it share another.

Where its jars cannot be had the tests are skipped with the reason; with `CI=true` they fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from semel.errors import ConfigurationError
from semel.verify.servers.kafka import KafkaBroker, fetched

ONE_OF_A_RUN = ("kafka", "kafka_to_restart", "redis_of_the_run")
"""The fixtures of servers that one process of a run has, for all tests that use them."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A running broker; `create_topic()` gives a topic of one's own."""
    jars_or_skip("broker")
    broker = KafkaBroker(quick=True)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def kafka_to_restart() -> Iterator[KafkaBroker]:
    """A running broker that tests may kill and start again."""
    jars_or_skip("broker")
    broker = KafkaBroker(quick=True, restarts=True)
    try:
        yield broker
    finally:
        broker.close()


def jars_or_skip(what: str) -> str:
    """Give a class path of jars, or skip the test with the reason why there are none."""
    try:
        return ",".join(map(str, sorted(fetched(what).glob("*.jar"))))
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(f"not run: {error}")
