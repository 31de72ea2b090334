"""A service over HTTP that refuses, or never answers, after it may have done its work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from semel.delivery.spec import PipelineSpec
from semel.errors import OutcomeUnknown
from semel.sinks import Retry
from semel.sinks.http import Http
from semel.verify.servers.http_witness import HttpWitness
from support.destinations import Crash
from support.pipeline import GIVEN, World

HASTY: dict[str, Any] = {"timeout_s": 1.0, "deadline_s": 2.0, "retry": Retry(0.01, 0.02, 0.1)}


@pytest.fixture(scope="module")
def service() -> Iterator[HttpWitness]:
    with HttpWitness(absorbs=True) as absorbing:
        yield absorbing


def world_of(service: HttpWitness, **settings: Any) -> World:
    service.forget()
    world = World(GIVEN)
    path = f"{service.url}/charges/{{c}}/{{id}}"
    sink = Http(name="out", url=path, idempotency=True, **{**HASTY, **settings})
    world.sinks.append(sink)
    world.start()
    return world


def arrived(service: HttpWitness) -> list[str]:
    return sorted(f"{each.body['c']}{each.body['id']}" for each in service.effects())


@pytest.mark.parametrize("status", [403, 404, 413])
def test_a_refusal_after_an_answer_that_was_lost_is_held(status: int, service: HttpWitness) -> None:
    world = world_of(service)
    service.plan(close=True, effect=True, match='"id":3')
    service.plan(status=status, match='"id":3', times=1_000)
    world.minibatch(0, "a1 b2 a3 a4")
    assert arrived(service) == ["a1", "a3", "b2"]
    assert world.parked() == ["a3 held", "a4 waiting"]
    [row] = [row for _, row in world.parked_rows() if row.event == 3]
    assert str(status) in row.why
    assert "may have arrived" in row.why


def test_where_the_refusal_does_not_last_the_repeat_is_absorbed(service: HttpWitness) -> None:
    world = world_of(service)
    service.plan(close=True, effect=True, match='"id":3')
    service.plan(status=403, match='"id":3')
    world.minibatch(0, "a1 b2 a3 a4")
    assert arrived(service) == ["a1", "a3", "a4", "b2"]
    assert world.parked() == []


def test_a_refusal_that_is_the_first_answer_is_a_dead_letter(service: HttpWitness) -> None:
    world = world_of(service)
    service.plan(status=429, match='"id":3')
    service.plan(status=403, match='"id":3')
    world.minibatch(0, "a1 b2 a3 a4")
    assert world.parked() == ["a3 rejected"]
    assert arrived(service) == ["a1", "a4", "b2"]


def test_a_refusal_of_what_an_earlier_attempt_sent_is_held(service: HttpWitness) -> None:
    world = world_of(service, chunk_rows=2, span_chunks=1)
    world.wire.crash_before = 4  # register, open, claim; then the second span, after the calls
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 a3 a4")
    world.wire.forget()
    assert arrived(service) == ["a1", "b2"]
    service.plan(status=403, match='"id":1')
    world.start()
    world.minibatch(0, "a1 b2 a3 a4")
    assert arrived(service) == ["a1", "b2"]
    assert world.parked() == ["a1 held", "a3 waiting", "a4 waiting"]


def test_an_event_that_always_gets_500_is_held_alone_and_stops_nobody(service: HttpWitness) -> None:
    world = world_of(service)
    service.plan(status=500, match='"id":3', times=1_000)
    world.minibatch(0, "a1 b2 a3 a4 c5")
    assert arrived(service) == ["a1", "b2", "c5"]
    assert world.parked() == ["a3 held", "a4 waiting"]
    service.forget()
    world.resolve("a3", "resend")
    world.minibatch(1, "b6")
    assert arrived(service) == ["a3", "a4", "b6"]
    assert {each.split()[1] for each in world.parked()} == {"delivered"}


def test_a_service_that_answers_nothing_but_500_parks_nothing(service: HttpWitness) -> None:
    world = world_of(service)
    service.plan(status=500, times=100_000)
    opening = world.open(0)
    with pytest.raises(OutcomeUnknown, match="with the same keys"):
        world.task(opening, "a1 b2 a3 c4")
    assert world.parked() == []
    service.forget()
    world.driver.end(opening, world.task(opening, "a1 b2 a3 c4"))
    assert arrived(service) == ["a1", "a3", "b2", "c4"]
    assert world.parked() == []


def test_the_defaults_let_a_whole_span_be_parked_behind_one_event(service: HttpWitness) -> None:
    world = world_of(service, **{**HASTY, "timeout_s": 5.0, "deadline_s": 20.0})
    sink = world.sinks[0]
    assert isinstance(sink, Http)
    assert sink.chunk_rows == 20_000
    PipelineSpec("pay", (sink,), GIVEN)
    service.plan(close=True, effect=True, match='"id":1,')
    service.plan(status=403, match='"id":1,', times=1_000)
    count = 10_050
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(1, count + 1), pa.int64()),
            "c": pa.array(["a"] * count),
            "id": pa.array(range(1, count + 1), pa.int64()),
            "v": pa.array([0] * count, pa.int64()),
        }
    )
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, [rows]))
    states = [row.state.value for _, row in world.parked_rows()]
    assert states == ["held"] + ["waiting"] * (count - 1)
