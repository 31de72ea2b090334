"""`Retry(for_s=...)` is the time in which a task gives up, calls and pauses together."""

from __future__ import annotations

import socket
import time

import pytest

from semel.errors import NotDelivered
from semel.runtime import SystemClock
from semel.sinks import Http, Kafka, Postgres, Redis, Retry, Sink
from support.pipeline import KINDS, World, world_like


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call_s", [0.0, 0.5, 2.0])
def test_calls_that_take_long_use_up_the_patience(kind: str, call_s: float) -> None:
    world = world_like(kind, retry=Retry(first_s=0.1, most_s=1.0, for_s=3.0))

    def slowly_away(act: object) -> None:
        world.clock.move(call_s)
        raise NotDelivered("nobody is there")

    world.out.always = slowly_away
    began = world.clock.now
    with pytest.raises(NotDelivered):
        world.minibatch(0, "a1 b2 c3")
    assert 3.0 <= world.clock.now - began <= 3.0 + call_s + 0.001


def nobody() -> int:
    """A port at which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


PATIENT = Retry(for_s=3.0)


def sinks() -> list[Sink]:
    at = f"127.0.0.1:{nobody()}"
    return [
        Http(name="out", url=f"http://{at}/", retry=PATIENT),
        Http(name="out", url=f"http://{at}/", idempotency=True, retry=PATIENT),
        Redis(
            name="out",
            url=f"redis://{at}/0",
            key="k",
            command="RPUSH",
            arguments=("{id}",),
            retry=PATIENT,
        ),
        Postgres(name="out", url=f"postgresql://u@{at}/d", table="t", retry=PATIENT),
        Kafka(name="out", servers=at, topic="t", retry=PATIENT),
        Kafka(name="out", servers=at, topic="t", sequenced=True, retry=PATIENT),
    ]


NAMES = ["http", "keyed http", "redis", "postgres", "kafka", "kafka log"]


@pytest.mark.parametrize("sink", sinks(), ids=NAMES)
def test_where_nobody_listens_the_task_gives_up_in_time(sink: Sink) -> None:
    world = World()
    world.clock = SystemClock()  # type: ignore[assignment]
    world.__post_init__()
    world.sinks.append(sink)
    world.start()
    began = time.monotonic()
    with pytest.raises(NotDelivered):
        world.minibatch(0, "a1 b2 c3 d4")
    # A chunk that the circuit breaker of HTTP ended is tried once more for as long.
    assert time.monotonic() - began < 2 * PATIENT.for_s + 3
