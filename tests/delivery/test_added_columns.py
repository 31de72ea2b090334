"""A column is added between minibatches: parked events of the older schema stop no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import Rejected
from semel.events import Identity
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Retry
from semel.sinks.http import Http
from semel.verify.servers.http_witness import HttpWitness
from support.destinations import Post, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    World,
    events,
    once,
    world_like,
    world_of,
)

IDENTITIES = {
    "given": GIVEN,
    "increasing": INCREASING,
    "position": ORDERED_POSITION,
    "counter": COUNTER,
}


def with_tip(text: str) -> list[pa.RecordBatch]:
    """The rows of a query that has one more column now."""
    batch = events(text)
    return [batch.append_column("tip", pa.array(range(len(batch))))]


def next_minibatch(world: World, batch: int, text: str) -> None:
    world.start()
    opening = world.open(batch)
    world.driver.end(opening, world.task(opening, with_tip(text)))


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "batches" not in kind])
def test_an_older_event_is_sent_without_the_column_and_newer_ones_with_it(
    kind: str, identity: Identity
) -> None:
    world = world_like(kind, identity, chunk_rows=1, on_reject=OnReject.BLOCK)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2 a3")  # a3 waits behind a1
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    next_minibatch(world, 1, "a4 c5")
    world.driver.drain()
    next_minibatch(world, 2, "a6")
    world.driver.drain()
    assert once(world.out.seen) == "a1 b2 a3 a4 c5 a6"
    assert not world.heads()
    tips = {each.value["id"]: "tip" in each.value for each in world.out.effects}
    assert tips == {1: False, 2: False, 3: False, 4: True, 5: True, 6: True}


class Tips(Post):
    """A function that needs the column; what it raises without it is up to the test."""

    error: type[Exception] = KeyError

    def take(self, event: Any) -> None:
        if self.wants and "tip" not in event.value:
            raise self.error("this event has no column 'tip'")
        super().take(event)

    wants = False


@pytest.mark.parametrize(
    ("error", "state", "says"),
    [
        (Rejected, "rejected", "this event has no column 'tip'"),
        (KeyError, "held", "KeyError: \"this event has no column 'tip'\""),
    ],
)
def test_a_sink_that_needs_the_column_refuses_each_older_event_alone_and_says_why(
    error: type[Exception], state: str, says: str
) -> None:
    out = Tips()
    world = world_of(out, GIVEN, lease_s=0.0, deadline_s=0.0)
    out.refuses.update({"a1", "b2", "c3"})
    world.minibatch(0, "a1 b2 c3 d4")
    out.refuses.clear()
    out.wants, out.error = True, error
    for name in ("a1", "b2", "c3"):
        world.resolve(name, "resend")
    next_minibatch(world, 1, "e5 f6")
    assert out.seen.split() == ["d4", "e5", "f6"]
    assert world.parked() == [f"{name} {state}" for name in ("a1", "b2", "c3")]
    assert {row.why for _, row in world.parked_rows()} == {says}
    next_minibatch(world, 2, "e7")
    assert out.seen.split() == ["d4", "e5", "f6", "e7"], "the stream goes on"


def test_an_event_that_was_in_doubt_at_a_lost_checkpoint_takes_the_columns_it_comes_with() -> None:
    world = world_of(Post(), GIVEN, window=1, on_doubt=OnDoubt.HOLD)
    opening = world.open(0)
    world.out.plan(lost)
    world.driver.end(opening, world.task(opening, "a1"))
    [(_, row)] = world.parked_rows()
    assert row.value is not None
    assert "tip" not in row.value
    world.start()
    opening = world.open(0, "another")
    world.driver.end(opening, world.task(opening, with_tip("a1 b2")))
    [(_, row)] = world.parked_rows()
    assert row.value is not None
    assert "tip" not in row.value, "a payload that is there is not replaced"
    world.resolve("a1", "resend")
    world.clock.move(1_000.0)
    world.driver.drain()
    assert world.out.seen.split() == ["a1", "b2", "a1"]


# -- built-in sinks know which columns they need


@pytest.fixture
def service() -> Iterator[HttpWitness]:
    with HttpWitness(absorbs=True) as made:
        yield made


def test_a_template_that_needs_the_column_refuses_older_events_at_once_and_says_why(
    service: HttpWitness,
) -> None:
    world = World(GIVEN)
    path = f"{service.url}/charges/{{c}}/{{id}}"
    settings: dict[str, Any] = {"idempotency": True, "retry": Retry(0.01, 0.02, 60.0)}
    world.sinks.append(Http(name="out", url=path, **settings))
    world.start()
    for number in (1, 2):
        service.plan(status=402, match=f'"id":{number},')
    world.minibatch(0, "a1 b2 c3")
    assert world.parked() == ["a1 rejected", "b2 rejected"]
    for name in ("a1", "b2"):
        world.resolve(name, "resend")
    world.sinks[0] = Http(name="out", url=f"{path}/{{tip}}", **settings)
    next_minibatch(world, 1, "d4 e5")
    assert world.parked() == ["a1 rejected", "b2 rejected"]
    for _, row in world.parked_rows():
        assert row.why.startswith("the event has the columns that it was parked with: ")
        assert "'tip'" in row.why
    assert world.clock.slept == [], "it is not tried again and again"
    assert sorted(each.body["id"] for each in service.effects()) == [3, 4, 5]
