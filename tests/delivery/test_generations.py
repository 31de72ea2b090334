"""A lost checkpoint: a new generation reads again what was delivered, and nothing arrives twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged, Fenced, HeldInDoubt
from semel.events import Identity
from semel.ledger.keys import key_number, split_key
from semel.protocol import OnDoubt, OnReject
from support.destinations import (
    Careless,
    Crash,
    Database,
    Post,
    after,
    before,
    crash,
    crash_after,
    fine,
    lost,
)
from support.pipeline import (
    COUNTER,
    EXACT,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    World,
    crash_everywhere,
    events,
    once,
    world_like,
    world_of,
)

SURVIVING: dict[str, Identity] = {
    "position": POSITION,
    "position with entity": ORDERED_POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
}
FIRST, SECOND, THIRD = "a1 b2", "c3 d4 e5 f6", "a7 b8"
ALL = f"{FIRST} {SECOND} {THIRD}"


def half_done(kind: str, identity: Identity, calls: int = 2, **settings: Any) -> World:
    """The first minibatch is complete; of the second, `calls` events were sent when it crashed."""
    world = world_like(kind, identity, chunk_rows=1, span_chunks=1, **settings)
    world.minibatch(0, FIRST)
    opening = world.open(1)
    world.out.plan(*[fine] * (calls - 1), crash_after)
    with pytest.raises(Crash):
        world.task(opening, SECOND)
    assert len(world.out.effects) == 2 + calls
    return world


def read_again(world: World, *minibatches: str, query: str = "q2") -> None:
    """The checkpoint is lost: another query id, and its batches begin at 0."""
    world.start()
    for batch, text in enumerate(minibatches):
        world.minibatch(batch, text, query)


@pytest.mark.rows("S10")
@pytest.mark.parametrize("kind", [kind for kind in EXACT if kind != "repeatable by chunk"])
@pytest.mark.parametrize("identity", SURVIVING)
@pytest.mark.parametrize(
    "minibatches", [(ALL,), (FIRST, SECOND, THIRD), ("a1", "b2 c3 d4 e5", "f6 a7 b8")]
)
def test_what_was_delivered_is_not_delivered_again_however_it_is_cut_now(
    kind: str, identity: str, minibatches: tuple[str, ...]
) -> None:
    world = half_done(kind, SURVIVING[identity])
    read_again(world, *minibatches)
    assert once(world.out.seen) == once(ALL)
    assert world.parked() == []
    if kind == "repeatable":  # what it absorbs comes under a later number
        assert world.out.numbers == sorted(set(world.out.numbers))
    else:
        assert sorted(world.out.numbers) == list(range(1, 9))


@pytest.mark.parametrize("kind", [kind for kind in EXACT if kind != "repeatable by chunk"])
@pytest.mark.parametrize("identity", SURVIVING)
def test_a_crash_at_any_call_of_the_closing_changes_nothing(kind: str, identity: str) -> None:
    def make() -> World:
        return half_done(kind, SURVIVING[identity])

    def close(world: World) -> None:
        world.start()
        world.open(0, "q2")

    for what, world in crash_everywhere(make, close):
        read_again(world, ALL)
        assert once(world.out.seen) == once(ALL), what
        assert world.parked() == [], what


@pytest.mark.rows("S21")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", SURVIVING)
@pytest.mark.parametrize("on_reject", list(OnReject))
def test_a_crash_at_any_call_and_then_a_lost_checkpoint_neither_lose_nor_repeat(
    kind: str, identity: str, on_reject: OnReject
) -> None:
    text = "a1 b2 a3 c4 b5 d6"

    def make() -> World:
        world = world_like(
            kind, SURVIVING[identity], chunk_rows=2, span_chunks=2, on_reject=on_reject
        )
        world.out.refuses.add("a1")
        return world

    def deliver(world: World) -> None:
        opening = world.open(0)
        world.driver.end(opening, world.task(opening, text))

    for what, world in crash_everywhere(make, deliver):
        world.start()
        read_again(world, text, "c7 d8")
        seen = world.out.seen.split()
        assert len(seen) == len(set(seen)), what
        parked = {each.split()[0] for each in world.parked()}
        if identity.startswith("position"):  # without payload an event is known by its position
            parked |= {name for name in text.split() if f"t/0{name[1:]} " in str(world.parked())}
        assert set(seen) | parked == {*text.split(), "c7", "d8"}, what
        if kind in EXACT and kind != "repeatable by chunk":
            held = {each.split()[0] for each in world.parked() if each.endswith("held")}
            # At a REPEATABLE one the refusal of what may have been sent before is a doubt.
            assert held <= ({"a1"} if kind == "repeatable" else set()), what


def test_a_checkpoint_can_be_lost_twice() -> None:
    for identity in SURVIVING.values():
        world = half_done("transactional", identity)
        read_again(world, FIRST)
        read_again(world, ALL, query="q3")
        read_again(world, f"{ALL} c9", query="q4")
        assert once(world.out.seen) == once(f"{ALL} c9")
        assert world.opened().minibatch.generation == 4


def test_what_was_parked_counts_as_handled() -> None:
    for kind in ("transactional", "opaque", "sequenced", "repeatable"):
        world = world_like(kind, chunk_rows=1)
        world.out.refuses.add("b2")
        opening = world.open(0)
        world.out.plan(*[fine] * (1 if kind == "opaque" else 0))
        reports = world.task(opening, "a1 b2 c3")
        del reports  # the driver died before it could complete
        world.out.refuses.clear()
        read_again(world, "a1 b2 c3 d4")
        assert once(world.out.seen) == "a1 c3 d4", kind
        assert world.parked() == ["b2 rejected"], kind


def test_a_resolved_event_counts_as_handled_too() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    world.resolve("a1", "discarded")
    read_again(world, "a1 b2 a3")
    assert world.out.seen == "a1 b2 a3"


# -- fence first, then ask


@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
def test_open_is_rewritten_then_the_ledger_and_the_destination_taken_over_then_asked(
    kind: str,
) -> None:
    world = half_done(kind, GIVEN)
    world.wire.forget()
    world.start()
    world.open(0, "q2")
    log = [each for each in world.wire.log if each not in ("commit owners", "commit ")]
    asked = "take over the row" if kind == "transactional" else "take the epoch"
    assert log[:3] == ["commit open", "commit streams", asked]
    assert world.streams() == []  # closed, and its rows removed


@pytest.mark.rows("S19")
@pytest.mark.parametrize("kind", ["transactional", "sequenced", "probing", "repeatable"])
@pytest.mark.parametrize("identity", SURVIVING)
def test_a_zombie_of_the_older_generation_cannot_write_any_more(kind: str, identity: str) -> None:
    world = world_like(kind, SURVIVING[identity], chunk_rows=1, span_chunks=1)
    opening = world.open(0)

    def lost_meanwhile() -> None:
        world.clock.move(60.0)
        read_again(world, f"{SECOND} {THIRD}")

    world.out.plan(fine, before(lost_meanwhile))
    with pytest.raises(Fenced):
        world.task(opening, SECOND)
    assert once(world.out.seen) == once(f"{SECOND} {THIRD}")


def test_without_taking_over_the_destinations_row_the_zombie_would_repeat() -> None:
    world = world_of(Database(progress=Careless()), chunk_rows=1)
    opening = world.open(0)
    world.out.plan(fine, after(lambda: read_again(world, f"{SECOND} {THIRD}")))
    with suppress(Fenced):  # it may learn so when it has done it
        world.task(opening, SECOND)
    assert once(world.out.seen).count("d4") == 2


def test_probing_waits_once_for_all_before_it_asks() -> None:
    world = world_like("probing", GIVEN, chunk_rows=1, lease_s=10.0, deadline_s=30.0)
    opening = world.open(0)
    for partition, task in (("0", 0), ("1", 1)):
        world.out.plan(crash)
        with pytest.raises(Crash):
            world.task(opening, f"a{task + 1}", partition=partition, spark_task=task)
    world.start()
    world.clock.slept.clear()
    opening = world.open(0, "q2")
    assert world.clock.slept == [40.0]


# -- position


@pytest.mark.parametrize("identity", ["position", "position with entity"])
def test_a_gap_in_the_offsets_stops_the_pipeline_with_the_offsets_to_start_from(
    identity: str,
) -> None:
    world = world_like("transactional", SURVIVING[identity])
    world.minibatch(0, "a1 b2 c3")
    world.start()
    opening = world.open(0, "q2")
    with pytest.raises(Diverged, match="startingOffsets") as error:
        world.task(opening, "f9")
    found = re.search(r"'startingOffsets', '(\{.*?\}\})'", re.sub(r"\s+", " ", str(error.value)))
    assert found is not None
    assert json.loads(found[1]) == {"t": {"0": 4}}
    assert "5 events" in re.sub(r"\s+", " ", str(error.value))
    assert world.out.seen == "a1 b2 c3"
    world.driver.end(opening, world.task(opening, "d4 e5 f6"))
    assert world.out.seen == "a1 b2 c3 d4 e5 f6"


def test_a_gap_that_is_meant_is_accepted() -> None:
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "f9", "q2", accept_gap=True)
    assert world.out.seen == "a1 b2 f9"


def test_a_gap_within_a_generation_is_none() -> None:
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "f9")  # Spark's own offsets: compacted, or control records
    assert world.out.seen == "a1 b2 f9"


def test_the_gap_is_looked_for_after_a_half_done_minibatch_too() -> None:
    world = half_done("transactional", POSITION)  # delivered up to d4
    world.start()
    opening = world.open(0, "q2")
    with pytest.raises(Diverged, match="startingOffsets"):
        world.task(opening, "a7 b8")
    assert len(world.out.effects) == 4


def test_another_event_at_the_watermark_is_diverged() -> None:
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2")
    world.start()
    opening = world.open(0, "q2")
    with pytest.raises(Diverged, match="digest"):
        world.task(opening, "a1 b2=7 c3")
    assert world.out.seen == "a1 b2"


def test_without_that_digest_a_topic_made_anew_would_be_skipped_as_delivered() -> None:
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1=7 b2 c3", "q2")  # other content, but not at the watermark
    assert world.out.seen == "a1 b2 c3"  # so only the event at the watermark shows it


# -- given


def test_ids_that_were_declared_increasing_and_are_not_are_diverged() -> None:
    world = world_like("transactional", INCREASING)
    world.minibatch(0, "a5 b6")
    opening = world.open(1)
    with pytest.raises(Diverged, match="declared increasing"):
        world.task(opening, "a4 c7")
    assert world.out.seen == "a5 b6"


def test_with_increasing_ids_a_late_smaller_one_of_another_entity_is_delivered() -> None:
    world = half_done("transactional", INCREASING)
    read_again(world, f"{FIRST} {SECOND}", "f7 g8".replace("g", "b"))
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} f7 b8")


def test_ids_are_remembered_as_sets_where_they_do_not_increase() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a5 b6")
    world.minibatch(1, "a1 c9")
    read_again(world, "a1 a4 a5 b6 c9")
    assert once(world.out.seen) == "a1 a4 a5 b6 c9"


def test_counted_ids_do_not_survive_and_the_pipeline_says_so() -> None:
    world = world_like("transactional", COUNTER)
    world.minibatch(0, "a1 b2")
    world.start()
    with pytest.raises(ConfigurationError, match="checkpoint") as error:
        world.open(0, "q2")
    assert "new name" in re.sub(r"\s+", " ", str(error.value))
    assert world.out.seen == "a1 b2"
    world.start()
    world.minibatch(1, "a3")  # with the old checkpoint it goes on
    assert world.out.seen == "a1 b2 a3"


def test_a_batch_id_that_goes_back_further_than_the_ledger_keeps_is_a_new_generation() -> None:
    world = world_like("transactional", GIVEN)
    for batch in range(4):
        world.minibatch(batch, f"a{batch + 1}")
    world.start()
    world.minibatch(0, "a1 a2 a3 a4 a5")
    assert world.opened().minibatch.generation == 2
    assert world.out.seen == "a1 a2 a3 a4 a5"


# -- what cannot be mapped is in doubt


@pytest.mark.rows("S21")
def test_an_event_in_doubt_is_held_without_payload_until_it_comes_again() -> None:
    world = half_done("opaque", GIVEN)
    world.start()
    opening = world.open(0, "q2")
    assert world.parked() == ["d4 held"]
    [(_, row)] = world.parked_rows()
    assert row.value is None
    world.driver.end(opening, world.task(opening, f"{FIRST} {SECOND} d7"))
    [(_, row), (_, follower)] = world.parked_rows()
    assert row.value is not None
    assert row.value["id"] == 4
    assert (follower.event, follower.state.value) == (7, "waiting")
    assert once(world.out.seen) == once(f"{FIRST} {SECOND}")
    world.out.effects.clear()
    world.resolve("d4", "resend")
    world.clock.move(100)
    assert world.driver.drain() == 2
    assert world.out.seen == "d4 d7"


@pytest.mark.rows("S21")
@pytest.mark.parametrize("policy", [OnDoubt.HOLD, OnDoubt.STOP])
def test_an_event_in_doubt_that_is_released_before_it_comes_again_goes_when_it_has(
    policy: OnDoubt,
) -> None:
    """Under policy `stop` nothing else lets the query go on to where the event comes again."""
    world = world_like("opaque", GIVEN, chunk_rows=1, on_doubt=policy)
    world.minibatch(0, FIRST)
    opening = world.open(1)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, SECOND)
    world.start()
    if policy is OnDoubt.STOP:
        with pytest.raises(HeldInDoubt):
            world.open(0, "q2")
    else:
        world.open(0, "q2")
    world.resolve("d4", "resend")
    world.start()
    opening = world.open(0, "q2")
    world.driver.end(opening, world.task(opening, f"{FIRST} {SECOND} d7"))
    assert world.parked() == ["d4 resend", "d7 waiting"]
    world.clock.move(100)
    assert world.driver.drain() == 2
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} d7")


@pytest.mark.rows("S21")
def test_an_event_in_doubt_that_is_released_while_it_is_read_again_gets_its_payload() -> None:
    """The task has looked at what is parked when a person says so; the event comes only once."""
    world = world_like("opaque", GIVEN, chunk_rows=1)
    world.minibatch(0, FIRST)
    opening = world.open(1)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, SECOND)
    world.start()
    opening = world.open(0, "q2")

    def rows() -> Iterator[pa.RecordBatch]:
        yield events(FIRST)
        world.resolve("d4", "resend")
        yield events(f"{SECOND} d7")

    world.driver.end(opening, world.task(opening, rows()))
    world.clock.move(100)
    world.driver.drain()
    assert (world.parked(), world.heads()) == (["d4 delivered", "d7 delivered"], [])
    assert once(world.out.seen) == once(f"{FIRST} {SECOND} d7")


@pytest.mark.rows("S21")
@pytest.mark.parametrize("identity", SURVIVING)
@pytest.mark.parametrize(
    ("policy", "twice"),
    [(OnDoubt.HOLD, False), (OnDoubt.SKIP, False), (OnDoubt.RESEND, True)],
)
def test_the_policy_decides_what_becomes_of_it(identity: str, policy: OnDoubt, twice: bool) -> None:
    world = half_done("opaque", SURVIVING[identity], on_doubt=policy)
    read_again(world, ALL)
    seen = world.out.seen.split()
    assert seen.count("d4") == (2 if twice else 1)
    assert {name: seen.count(name) for name in seen if name != "d4"} == dict.fromkeys(
        [name for name in ALL.split() if name != "d4"], 1
    )
    assert len(world.parked()) == 1


def test_a_key_of_a_chunk_does_not_survive_so_its_events_are_in_doubt() -> None:
    world = half_done("repeatable by chunk", GIVEN)
    read_again(world, ALL)
    seen = world.out.seen.split()
    assert len(seen) == len(set(seen))
    assert world.parked() == ["d4 held"]


def test_a_resend_of_what_was_in_doubt_carries_a_number_of_its_own() -> None:
    world = half_done("opaque", GIVEN)
    read_again(world, f"{FIRST} {SECOND}")
    live = {effect.event: effect.osn for effect in world.out.effects}
    world.resolve("d4", "resend")
    world.clock.move(100)
    world.driver.drain()
    assert world.out.effects[-1].osn == live[4] == 4


# -- what stays in the ledger


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_an_older_generation_are_gone_when_it_is_closed(kind: str) -> None:
    world = half_done(kind, GIVEN)
    world.start()
    world.open(0, "q2")
    for table in ("streams", "events"):
        left = [key_number(split_key(at.key)[2]) for at, _ in world.store.memory.scan(table, "")]
        assert left == []
