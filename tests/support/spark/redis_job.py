"""A driver script: one query into Redis in three ways; arguments: SETTINGS.

The sinks ask at the charge server, where they reach a step, whether their process dies there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semel.events import Chunk
from semel.sinks import Progress, Receipt, Retry, Target
from semel.sinks.redis import Redis
from semel.sinks.redis.connection import RedisConnection
from semel.sinks.redis.session import RedisSession
from support.spark import faults
from support.spark.query_job import into
from support.spark.settings import Settings

STEPS = ("session.open", "take.sent", "effect.before", "effect.after")

WAYS: dict[str, dict[str, Any]] = {
    "counters": {"command": "INCRBY", "key": "sum:{customer}", "arguments": ("{amount}",)},
    "lists": {"command": "RPUSH", "key": "paid:{customer}", "arguments": ("{payment_id}",)},
    "bodies": {
        "script": "redis.call('XADD', KEYS[1], '*', 'id', ARGV[1]) redis.call('INCR', KEYS[2])",
        "key": ("log:{customer}", "count"),
        "arguments": ("{payment_id}",),
    },
}
"""Nothing here forbids a repeat: the keys are the witness."""


@dataclass(frozen=True, kw_only=True)
class MortalRedis(Redis):
    """The sink, with the steps at which its process may die."""

    house: str
    steps: tuple[str, ...] = ()

    def open(self, target: Target) -> RedisSession:
        super().open(target).close()
        self.reach("session.open")
        return MortalRedisSession(self, RedisConnection(self.url, self.deadline_s), target)

    def reach(self, step: str) -> None:
        if step in self.steps:
            faults.reach(self.house, step)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        faults.install(state["house"], state["steps"])


class MortalRedisSession(RedisSession):
    """A session that passes its steps aloud."""

    def __init__(self, sink: MortalRedis, line: RedisConnection, target: Target) -> None:
        super().__init__(sink, line, target)
        self._reach = sink.reach

    def take_over(self) -> Progress | None:
        stood = super().take_over()
        self._reach("take.sent")
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        self._reach("effect.before")
        receipt = super().deliver_with(chunk, progress)
        self._reach("effect.after")
        return receipt


def sinks(settings: Settings) -> list[MortalRedis]:
    told = dict(settings.sink_settings)
    steps = tuple(told.pop("steps", ()))
    patience = Retry(0.1, 0.5, 60)
    return [
        MortalRedis(name=name, house=settings.house, steps=steps, retry=patience, **told, **way)
        for name, way in WAYS.items()
    ]


if __name__ == "__main__":
    into(sinks)
