"""Kafka as a destination that is watched at its steps; Python workers import this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.events import Chunk
from semel.sinks import Progress, Receipt, Retry, Target
from semel.sinks.kafka import Kafka
from support.spark.charge_sinks import Watched


@dataclass(frozen=True, kw_only=True)
class WatchedKafka(Watched, Kafka):
    """The sink itself; its process may die before or after a transaction (see `faults`)."""

    url: str
    steps: tuple[str, ...] = ()

    def open(self, target: Target) -> Any:
        self.reach("session.open")
        return WatchedKafkaSession(self, super().open(target))


class WatchedKafkaSession:
    def __init__(self, sink: WatchedKafka, session: Any) -> None:
        self._sink, self._session = sink, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        self._sink.reach("effect.before")
        receipt: Receipt = self._session.deliver_with(chunk, progress)
        self._sink.reach("effect.after")
        return receipt


def kafka_sink(url: str, **settings: Any) -> WatchedKafka:
    """Make the sink; settings come as JSON has them."""
    steps = tuple(settings.pop("steps", ()))
    usual: dict[str, Any] = {
        "name": "out",
        "retry": Retry(first_s=0.1, most_s=1.0, for_s=60.0),
        "progress_topic": "progress-of-tests",
        "progress_partitions": 4,
        "deadline_s": 10.0,
        "transaction_timeout_s": 10.0,
    }
    return WatchedKafka(url=url, steps=steps, **{**usual, **settings})
