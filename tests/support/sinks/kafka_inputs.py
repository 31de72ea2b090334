"""Topics of Kafka as inputs of tests: records, and partitions that are added."""

from __future__ import annotations

import time
from collections.abc import Sequence

from semel.verify.servers.kafka import KafkaBroker


def produce(kafka: KafkaBroker, topic: str, values: Sequence[str], partition: int = -1) -> None:
    """Append records that are their own keys, to one partition or by their keys."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.servers})
    for value in values:
        producer.produce(topic, value.encode(), value.encode(), partition=partition)
    assert producer.flush(30) == 0


def add_partitions(kafka: KafkaBroker, topic: str, partitions: int) -> None:
    """Give a topic more partitions, and wait until they are there."""
    from confluent_kafka.cimpl import NewPartitions

    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
    while len(admin.list_topics(topic, timeout=5).topics[topic].partitions) < partitions:
        time.sleep(0.05)
