"""Kafka earns TRANSACTIONAL and SEQUENCED, on a real broker: what consumers see is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from semel.sinks import Sink
from semel.sinks.kafka import Kafka
from semel.verify.contract.plugin import SinkContract
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import consumed

pytestmark = pytest.mark.rows("N10")


QUICK: dict[str, object] = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
"""A connection that was cut is tried again soon."""


@pytest.fixture(scope="class")
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[str]:
    # With SEQUENCED every partition of the pipeline has a partition of the topic as its log.
    name = kafka.create_topic(partitions=2 if request.cls.sequenced else 1)
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
            transaction_timeout_s=4.0,
            deadline_s=3.0,
            config=QUICK,
        )

    def arrived(self) -> Iterator[tuple[str, int]]:
        for _, value, _ in consumed(self.kafka, self.topic_name):
            row = json.loads(value or b"{}")
            yield row["customer"], row["payment_id"]


class TestTransactional(InATopic):
    pass


class TestSequenced(InATopic):
    sequenced = True
