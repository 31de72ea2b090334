"""Kafka as a destination: a chunk is a Kafka transaction, visible as soon as it is committed."""

from semel.sinks.kafka.sink import Kafka

__all__ = ["Kafka"]
