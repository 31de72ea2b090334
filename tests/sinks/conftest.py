"""What tests of one destination share: a topic, a pipeline of one's own, a wire to cut."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import KafkaProxy, proxied


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic(partitions=2)


@pytest.fixture
def place() -> str:
    """A pipeline's name that no other test has."""
    return f"p-{uuid4().hex}"


@pytest.fixture
def proxy(kafka: KafkaBroker) -> Iterator[KafkaProxy]:
    with proxied(kafka) as proxy:
        yield proxy
