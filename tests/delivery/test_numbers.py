"""Output sequence numbers: taken before the outcome, gapless, the same on every replay."""

from __future__ import annotations

import pytest

from semel.errors import Diverged
from semel.events import Identity
from semel.verify.models import SeenKeys
from support.destinations import Absorber, Crash, Logs, Post, crash, crash_after, fine, lost
from support.pipeline import (
    COUNTER,
    EXACT,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    World,
    world_like,
    world_of,
)

NUMBERED = [kind for kind in KINDS if "batches" not in kind]
IDENTITIES: dict[str, Identity] = {
    "position": ORDERED_POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}


@pytest.mark.rows("O5")
@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_numbers_are_gapless_across_minibatches_and_sent_with_the_event(
    kind: str, identity: str
) -> None:
    world = world_like(kind, IDENTITIES[identity], chunk_rows=2)
    world.minibatch(0, "a1 b2 c3")
    world.minibatch(1, "a4")
    world.minibatch(2, "b5 c6 d7 e8 f9")
    assert world.out.numbers == list(range(1, 10))


@pytest.mark.rows("O5")
@pytest.mark.parametrize("kind", [*NUMBERED])
def test_numbers_are_the_same_on_a_replay(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, span_chunks=1)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "c3 d4 e5")
    world.start()
    world.minibatch(1, "c3 d4 e5")
    expected = {"a1": 1, "b2": 2, "c3": 3, "d4": 4, "e5": 5}
    got = {effect.name: effect.osn for effect in world.out.effects}
    parked = {each.split()[0] for each in world.parked()}
    assert got == {name: osn for name, osn in expected.items() if name not in parked}
    assert {row.event: row.osn for _, row in world.parked_rows()} == (
        {4: 4} if kind == "opaque" else {}
    )


@pytest.mark.rows("O5")
@pytest.mark.parametrize("kind", NUMBERED)
def test_a_parked_event_leaves_a_recorded_hole(kind: str) -> None:
    world = world_like(kind, chunk_rows=4)
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2 c3")
    world.minibatch(1, "d4")
    assert sorted(world.out.numbers) == [1, 3, 4]
    assert [row.osn for _, row in world.parked_rows()] == [2]


def test_a_hole_is_kept_where_the_outcome_is_unknown_too() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    world.minibatch(1, "b4")
    assert world.out.numbers == [1, 2, 4]
    assert [row.osn for _, row in world.parked_rows()] == [1, 3]


@pytest.mark.rows("O5")
def test_partitions_have_numbers_of_their_own() -> None:
    world = world_like("sequenced")
    opening = world.open(0)
    reports = world.task(opening, "a1 b2", partition="0")
    reports += world.task(opening, "c3", partition="1", spark_task=1)
    world.driver.end(opening, reports)
    assert world.out.numbers == [1, 2, 1]


@pytest.mark.rows("O5", "O19")
@pytest.mark.parametrize("kind", [kind for kind in EXACT if "script" not in kind])
def test_counted_ids_go_on_from_the_state_that_was_saved_wherever_it_is_computed_again(
    kind: str,
) -> None:
    world = world_like(kind, COUNTER, chunk_rows=1)
    world.minibatch(0, "a1 b2 a3")
    opening = world.open(1)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a4 b5 a6", process=world.process("here"))
    world.driver.end(opening, world.task(opening, "a4 b5 a6", process=world.process("elsewhere")))
    world.start()
    world.minibatch(1, "a4 b5 a6")  # a replay starts from the state before, not from its own
    world.minibatch(2, "b7 a8")
    counted = [(effect.entity, effect.event) for effect in world.out.effects]
    assert counted == [
        ("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2), ("a", 4), ("b", 3), ("a", 5)
    ]  # fmt: skip


# -- C and L


def interrupted(sent: int) -> World:
    """L is 2, and `sent` events of the next minibatch stand in the log when the task crashes."""
    world = world_of(Logs(), chunk_rows=2)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(*[fine] * sent, crash)
    with pytest.raises(Crash):
        world.task(opening, "c3 d4 e5")
    world.wire.forget()
    return world


@pytest.mark.rows("O9", "O10", "O11", "O23")
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_exactly_what_is_beyond_c_is_transmitted(sent: int) -> None:
    world = interrupted(sent)
    assert world.out.numbers == list(range(1, sent + 3))  # C = L + sent
    world.start()
    [report] = world.minibatch(1, "c3 d4 e5")
    assert world.out.numbers == [1, 2, 3, 4, 5]
    assert report.suppressed == sent
    assert report.delivered == 3 - sent


@pytest.mark.rows("O9", "O23")
def test_c_is_asked_from_the_destination_before_anything_is_sent() -> None:
    world = interrupted(1)
    world.start()
    world.minibatch(1, "c3 d4 e5")
    log = world.wire.log
    assert log.index("take the epoch") < next(
        at for at, what in enumerate(log) if what.startswith("send")
    )


@pytest.mark.rows("O23", "O10")
def test_c_is_read_from_the_ledger_where_the_destination_cannot_tell() -> None:
    world = world_of(Absorber(), chunk_rows=1, span_chunks=1)
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.out.calls.clear()
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4"))
    assert world.out.calls == [["c3"], ["d4"]]  # what was settled is not even tried


@pytest.mark.rows("O11")
def test_an_event_that_was_acknowledged_and_is_gone_is_diverged_not_made_up() -> None:
    world = world_of(Logs())
    world.minibatch(0, "a1 b2 c3")
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "d4 e5")
    for log in world.out.logs.values():
        del log.records[1:]  # C < L
    with pytest.raises(Diverged, match="acknowledged"):
        world.task(opening, "d4 e5")


@pytest.mark.rows("O11")
def test_a_hole_at_the_end_is_not_taken_for_a_loss() -> None:
    world = world_of(Logs(), chunk_rows=1)
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2")  # L = 2, C = 1: the last event was parked
    opening = world.open(1)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "c3 d4")
    world.driver.end(opening, world.task(opening, "c3 d4"))
    assert world.out.numbers == [1, 3, 4]


def test_holes_before_c_do_not_shift_what_is_suppressed() -> None:
    world = world_of(Logs(), chunk_rows=1)
    world.out.refuses.update({"a1", "c3"})
    opening = world.open(0)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4 e5")
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4 e5"))
    assert world.out.seen == "b2 d4 e5"
    assert world.out.numbers == [2, 4, 5]
    assert world.parked() == ["a1 rejected", "c3 rejected"]


# -- how long a destination remembers

REMEMBERS = 3_600.0


def left_open(for_s: float) -> World:
    """One span is settled, the next is open, and no attempt comes for a while."""
    world = world_of(
        Absorber(keys=SeenKeys(REMEMBERS)),
        chunk_rows=1,
        span_chunks=2,
        remembers_s=REMEMBERS,
    )
    opening = world.open(0)
    world.out.plan(fine, fine, fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4 e5")
    world.clock.move(for_s)
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4 e5"))
    return world


def test_a_span_that_was_left_open_for_less_is_repeated_and_absorbed() -> None:
    world = left_open(REMEMBERS - 60)
    assert world.out.calls[4:] == [["c3"], ["d4"], ["e5"]]
    assert world.out.seen == "a1 b2 c3 d4 e5"
    assert world.parked() == []


def test_a_span_that_was_left_open_for_longer_is_in_doubt_and_only_that_span() -> None:
    world = left_open(REMEMBERS + 60)
    assert world.out.seen == "a1 b2 c3 d4 e5"
    assert world.parked() == ["c3 held", "d4 held"]


def test_without_the_doubt_it_would_be_repeated() -> None:
    world = left_open(REMEMBERS + 60)
    world.sinks[0] = world.out.sink(chunk_rows=1, span_chunks=2, remembers_s=1e9)  # it lies
    opening = world.open(1)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "f6 f7")
    world.clock.move(REMEMBERS + 60)
    world.task(opening, "f6 f7")
    assert world.out.seen.endswith("f6 f7 f6 f7")
