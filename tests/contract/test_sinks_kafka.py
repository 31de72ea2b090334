"""Kafka earns TRANSACTIONAL and SEQUENCED, on a real broker: what consumers see is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from semel.bench.kafka_broker import KafkaBroker
from semel.sinks import Sink
from semel.sinks.kafka import Kafka
from semel.verify.plugin import SinkContract
from sinks.kafka_world import consumed

pytestmark = pytest.mark.rows("N10")


@pytest.fixture(scope="class")
def topic(kafka: KafkaBroker) -> Iterator[str]:
    name = kafka.create_topic(partitions=1)
    yield name
    kafka.delete_topic(name)


class InATopic(SinkContract):
    sequenced = False

    @pytest.fixture
    def sink(self, kafka: KafkaBroker, topic: str) -> Sink:
        self.kafka, self.topic_name = kafka, topic
        return Kafka(
            name="out",
            servers=kafka.servers,
            topic=topic,
            sequenced=self.sequenced,
            transaction_timeout_s=10.0,
            deadline_s=10.0,
        )

    def arrived(self) -> Iterator[tuple[str, int]]:
        for _, value, _ in consumed(self.kafka, self.topic_name):
            row = json.loads(value or b"{}")
            yield row["customer"], row["payment_id"]


class TestTransactional(InATopic):
    pass


class TestSequenced(InATopic):
    sequenced = True
