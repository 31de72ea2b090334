"""Attacks on the promise: seams where two rare things meet, each written as a sequence of steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import (
    ConfigurationError,
    Diverged,
    Fenced,
    HeldInDoubt,
    NotDelivered,
    Rejected,
)
from semel.events import Chunk, Event, Identity
from semel.ledger.store.commit import Conflict
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.parked import resolve_parked
from semel.ledger.verbs.pruning import Pruning
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.protocol import OnDoubt, OnReject, ParkedState
from semel.sinks import Receipt, Retry, Target
from semel.verify.models import SeenKeys
from support.destinations import (
    Absorber,
    AbsorberLine,
    Couriers,
    CouriersLine,
    CouriersSink,
    Crash,
    Database,
    FolderModel,
    Logs,
    Post,
    ProbingSink,
    Register,
    RegisterLine,
    RepeatableSink,
    Reply,
    after,
    away,
    before,
    crash,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
    names_in,
)
from support.pipeline import (
    GIVEN,
    INCREASING,
    ORDERED_POSITION,
    POSITION,
    World,
    events,
    once,
    world_like,
    world_of,
)

MANY = 400
"""So many calls over the wire are far more than any of these stories needs."""


def within_reason(world: World, act: Callable[[], object]) -> None:
    """Let something happen that must end."""
    world.wire.forget()
    world.wire.crash_before = MANY
    try:
        act()
    except Crash:
        pytest.fail(f"it does not come to an end: {world.wire.log[-3:]}")
    finally:
        world.wire.forget()


def read_again(world: World, *minibatches: str, query: str = "q2") -> None:
    """The checkpoint is lost: another query id, and its batches begin at 0."""
    world.start()
    for batch, text in enumerate(minibatches):
        world.minibatch(batch, text, query)


def rejects(act: Callable[[], Any]) -> Any:
    raise Rejected("not this one")


def late(world: World, seconds: float) -> Reply:
    """The caller gives up waiting; the call arrives when it is long gone from his mind."""

    def reply(act: Callable[[], Any]) -> Any:
        world.clock.later(seconds, act)
        raise TimeoutError("no reply")

    return reply


# -- an older copy of the checkpoint


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "opaque", "probing"])
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
def test_a_lost_checkpoint_after_an_older_copy_was_restored_repeats_nothing(
    kind: str, identity: Identity
) -> None:
    world = world_like(kind, identity)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.start()
    world.minibatch(0, "a1 b2")  # a copy from one batch ago: counted, nothing is sent
    assert world.out.seen == "a1 b2 a3 b4"
    read_again(world, "a1 b2 a3 b4 a5")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5"


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "opaque", "probing"])
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
def test_older_and_older_copies_of_the_checkpoint_repeat_nothing(
    kind: str, identity: Identity
) -> None:
    world = world_like(kind, identity)
    for batch in range(4):
        world.minibatch(batch, f"a{batch + 1}")
    for batch in (2, 1, 0):  # each time a copy from one batch before
        world.start()
        world.minibatch(batch, f"a{batch + 1}")
    assert world.out.seen == "a1 a2 a3 a4"


def test_what_is_left_pending_is_not_folded_over_what_was_delivered_before_it() -> None:
    world = world_like("transactional", GIVEN, chunk_rows=1)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    opening = world.open(2)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a5 b6")
    world.start()
    world.open(1)  # an older copy of the checkpoint, and then that one is lost too
    read_again(world, "a1 b2 a3 b4 a5 b6")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6"


@pytest.mark.parametrize("kind", ["opaque", "transactional", "probing", "sequenced"])
def test_a_rerun_of_the_minibatch_before_the_last_may_end_later_and_repeats_nothing(
    kind: str,
) -> None:
    world = world_like(kind, POSITION)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "c3 d4")
    world.start()
    opening = world.open(0)
    with contextlib.suppress(Diverged):  # c3 and d4 are delivered: either is right
        world.driver.end(opening, world.task(opening, "a1 b2 c3 d4"))
    assert world.out.seen == "a1 b2 c3 d4"


# -- a call that arrives late, and its caller is still there


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "sequenced by opener"])
def test_a_call_of_ones_own_that_arrives_late_does_not_repeat_what_was_sent_again(
    kind: str,
) -> None:
    world = world_like(kind, chunk_rows=2, retry=Retry(0.1, 1.0, 5.0))
    world.out.plan(late(world, 5.0))
    opening = world.open(0)
    reports = world.task(opening, "a1 b2")
    with contextlib.suppress(Fenced):  # which is what the destination says to it
        world.clock.move(10.0)
    world.driver.end(opening, reports)
    assert world.out.seen == "a1 b2"


# -- marks of doubt, and a lost checkpoint


def test_what_was_to_be_sent_again_when_the_checkpoint_was_lost_is_sent_again() -> None:
    for identity in (GIVEN, INCREASING, POSITION):
        world = world_of(Post(), identity, on_doubt=OnDoubt.RESEND)
        world.out.plan(lost_on_the_way, crash)  # in doubt, marked as resent, and then it crashed
        opening = world.open(0)
        with pytest.raises(Crash):
            world.task(opening, "a1 b2")
        within_reason(world, lambda: read_again(world, "a1 b2 c3"))  # noqa: B023
        assert once(world.out.seen) == "a1 b2 c3"


def test_a_late_call_that_is_marked_does_not_stand_for_the_event() -> None:
    world = world_like("probing", chunk_rows=1, lease_s=10.0, deadline_s=30.0)
    opening = world.open(0)

    def replaced() -> None:
        world.clock.move(100.0)
        world.out.plan(crash)  # the later attempt dies just before it sends
        with pytest.raises(Crash):
            world.task(opening, "a1 b2", number=20)

    def too_long(act: Callable[[], Any]) -> Any:
        replaced()
        raise TimeoutError("nothing arrived, nobody knows, and that took long")

    world.out.plan(too_long)
    with pytest.raises(Fenced):
        world.task(opening, "a1 b2", number=10)
    assert world.parked() == ["a1 late"]
    within_reason(world, lambda: read_again(world, "a1 b2 c3"))
    assert once(world.out.seen) == "a1 b2 c3"


# -- resends


def test_a_resend_whose_answer_was_lost_is_not_forgotten_when_another_is_sent() -> None:
    world = world_like("transactional", chunk_rows=1)
    world.out.refuses |= {"a1", "b2"}
    world.minibatch(0, "a1 b2 c3")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.resolve("b2", "resend")
    world.out.plan(lost_on_the_way, lost)  # a1: lost on the way, then its reply was lost
    world.driver.drain()
    world.driver.drain()
    assert once(world.out.seen) == "a1 b2 c3"


def test_a_resend_whose_answers_were_lost_is_in_doubt_when_its_key_is_forgotten() -> None:
    world = world_of(
        Absorber(keys=SeenKeys(3_600.0)),
        remembers_s=3_600.0,
        chunk_rows=1,
        retry=Retry(0.1, 1.0, 5.0),
    )
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.always = lost
    world.driver.drain()
    world.out.always = fine
    world.clock.move(4_000.0)
    world.driver.drain()
    assert world.out.seen == "b2 a1"


def test_a_probe_that_fails_while_a_resend_is_taken_over_leaves_a_doubt_and_stops_nobody() -> None:
    def broken(event: Event) -> bool:
        raise ConnectionError("the place to ask is down")

    world = world_of(Post(), on_doubt=OnDoubt.PROBE, probe=broken)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.driver.drain()
    world.clock.move(100.0)
    world.start()
    world.minibatch(1, "c3")
    assert world.out.seen == "b2 a1 c3"
    assert world.parked() == ["a1 held"]


async def arrived_later(event: Event) -> bool:
    raise AssertionError(event)


def forgets_to_wait(event: Event) -> Any:
    return arrived_later(event)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_probe_that_answers_with_what_is_still_to_run_has_not_said_that_it_arrived() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.PROBE, probe=forgets_to_wait)
    world.out.plan(crash)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.out.seen == "b2"
    assert world.parked() == ["a1 held"]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_probe_of_a_resend_that_answers_with_what_is_still_to_run_leaves_a_doubt() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.PROBE, probe=forgets_to_wait)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.driver.drain()
    world.clock.move(100.0)
    world.start()
    world.minibatch(1, "c3")
    assert world.out.seen == "b2 c3"
    assert world.parked() == ["a1 held"]


class LaterLine(RegisterLine):
    async def arrived(self, key: str) -> bool:  # type: ignore[override]
        raise AssertionError(key)


@dataclass(frozen=True, kw_only=True)
class LaterSink(ProbingSink):
    def open(self, target: Target) -> RegisterLine:
        return LaterLine(self.destination, target)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_session_whose_answers_are_still_to_run_is_not_used() -> None:
    world = World()
    register = Register()
    world.sinks.append(LaterSink(name="out", destination=register, chunk_rows=1))
    world.start()
    opening = world.open(0)
    register.plan(crash)
    with pytest.raises((Crash, ConfigurationError)):
        world.task(opening, "a1 b2")
    with pytest.raises(ConfigurationError, match=r"LaterLine[.]arrived is `async def`"):
        world.task(opening, "a1 b2")
    assert register.effects == []


# -- heads


def test_a_late_twin_of_the_unblocking_does_not_unblock_the_next_event_in_doubt() -> None:
    world = world_of(Post())
    world.out.plan(lost)
    world.minibatch(0, "a1")
    world.resolve("a1", "discarded")
    issued: list[Callable[[], Any]] = []

    def kept(act: Callable[[], Any]) -> Any:
        issued.append(act)
        return act()

    world.store.script.append(kept)
    world.driver.drain()
    assert world.heads() == []
    world.out.plan(lost)
    world.minibatch(1, "a2")
    world.resolve("a2", "resend")
    with contextlib.suppress(Conflict):
        issued[0]()  # the server comes to another issue of that commit only now
    assert world.heads() == ["a"]
    world.clock.move(100.0)
    world.minibatch(2, "a3")
    assert world.out.seen == "a1 a2 a2 a3"


# -- changed lists of sinks


def left_out_and_back(kind: str) -> tuple[World, Any]:
    """Two sinks; one crashed in minibatch 1, was left out of its re-run, and is back."""
    world = World()
    world.add(Database(), "db")
    destination = {"sequenced": Logs, "transactional": Database, "opaque": Post}[kind]()
    world.add(destination, "out", chunk_rows=1)
    world.start()
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4")
    return world, world.sinks


@pytest.mark.parametrize("kind", ["sequenced", "transactional", "opaque"])
def test_a_sink_that_is_left_out_in_the_middle_of_a_minibatch_is_refused_or_finished(
    kind: str,
) -> None:
    world, sinks = left_out_and_back(kind)
    world.sinks = sinks[:1]
    world.start()
    try:
        world.minibatch(1, "a3 b4")
    except (ConfigurationError, Diverged):
        return  # it was said that something of it is half done
    world.sinks = sinks
    world.start()
    world.minibatch(2, "a5 b6")
    world.minibatch(3, "a7 b8")
    seen = world.out.seen.split()
    told = {each.split()[0] for each in world.parked()}
    assert len(seen) == len(set(seen))
    assert len(set(world.out.numbers)) == len(seen)
    assert {*seen, *told} == {"a1", "b2", "a3", "b4", "a5", "b6", "a7", "b8"}


def test_a_sink_that_was_left_out_does_not_stop_a_lost_checkpoint_for_ever() -> None:
    world, sinks = left_out_and_back("transactional")
    world.sinks = sinks[:1]
    world.start()
    try:
        world.minibatch(1, "a3 b4")
    except (ConfigurationError, Diverged):
        return
    world.sinks = sinks
    world.start()
    world.minibatch(2, "a5 b6")
    read_again(world, "a1 b2 a3 b4 a5 b6 a7")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6 a7"


# -- another number of partitions


def test_after_a_change_of_partitions_the_last_minibatch_is_not_delivered_again() -> None:
    world = World(partition="0-of-1", partitions=1)
    world.add(Database())
    world.start()
    world.minibatch(0, "a1 b2")  # complete, and the driver dies before Spark commits the batch
    rescale_pipeline(world.client, 2)
    world.partitions = 2
    world.start()
    with contextlib.suppress(ConfigurationError, Diverged):
        opening = world.open(0)
        reports = world.task(opening, "a1", partition="0-of-2", spark_task=0)
        reports += world.task(opening, "b2", partition="1-of-2", spark_task=1)
        world.driver.end(opening, reports)
    assert world.out.seen == "a1 b2"


def test_what_is_parked_of_a_log_can_still_go_after_a_change_of_partitions() -> None:
    world = World(partition="0-of-1", partitions=1)
    world.add(Logs(), on_reject=OnReject.BLOCK, chunk_rows=1)
    world.start()
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2")
    world.out.refuses.clear()
    try:
        rescale_pipeline(world.client, 2)
    except ConfigurationError:
        return  # it says that something is parked
    world.partitions, world.partition = 2, "0-of-2"
    world.start()
    world.resolve("a1", "resend")
    for batch in (1, 2):
        world.minibatch(batch, f"a{batch + 2}")
    assert world.out.seen == "b2 a1 a3 a4"


# -- what is remembered


def test_a_set_that_is_pruned_during_the_second_reading_does_not_make_its_events_new() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.clock.move(100.0)
    world.minibatch(1, "a3 b4")
    world.clock.move(100.0)
    world.minibatch(2, "a5 b6")
    world.start()
    world.minibatch(0, "a1 b2 c9", "q2")  # it has met what is known; c9 is new
    Pruning(world.client, remember_s=50.0).run(["out"])
    with contextlib.suppress(HeldInDoubt):  # the destination no longer knows, and it says so
        world.minibatch(1, "a3 b4 a5 b6 a7", "q2")
    assert world.out.seen.split().count("a3") == 1


@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
def test_what_a_person_discarded_in_a_minibatch_that_is_still_open_stays_discarded(
    kind: str,
) -> None:
    world = world_like(kind, chunk_rows=1)
    world.out.refuses.add("b2")
    opening = world.open(0)
    world.task(opening, "a1 b2")
    world.out.refuses.clear()
    world.resolve("b2", "discarded")
    world.clock.move(1_000.0)  # no attempt came for a long time
    Pruning(world.client, remember_s=500.0).run(["out"])
    world.start()
    world.minibatch(0, "a1 b2")
    assert world.out.seen == "a1"


# -- closing a generation


def test_events_in_doubt_at_a_lost_checkpoint_have_numbers_of_their_own() -> None:
    world = world_of(Post(), window=3)
    opening = world.open(0)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3")
    read_again(world, "a1 b2 c3")
    assert world.parked() == ["a1 held", "b2 held", "c3 held"]
    assert len({row.osn for _, row in world.parked_rows()}) == 3


def test_an_event_in_doubt_at_a_lost_checkpoint_keeps_its_entity() -> None:
    world = world_of(Post(), ORDERED_POSITION)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    read_again(world, "a1 b2 a3")
    world.resolve("a1", "resend")
    world.clock.move(100.0)
    world.driver.drain()
    assert {effect.name: effect.entity for effect in world.out.effects}["a1"] == "a"


@pytest.mark.parametrize("identity", [GIVEN, POSITION, ORDERED_POSITION])
def test_stop_stops_at_a_lost_checkpoint_too(identity: Identity) -> None:
    world = world_of(Post(), identity, on_doubt=OnDoubt.STOP)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    with pytest.raises(HeldInDoubt):
        read_again(world, "a1 b2 c3")


def test_what_a_complete_row_covered_is_not_in_doubt_when_it_was_put_back_to_pending() -> None:
    world = world_like("repeatable by chunk", POSITION, chunk_rows=2, span_chunks=1)
    world.minibatch(0, "a1 b2")
    world.start()
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3")  # the re-run ends later
    read_again(world, "a1 b2 c3 d4")
    assert [each.split()[0] for each in world.parked()] == ["c3"]


@dataclass(frozen=True, kw_only=True)
class SideBySide(RepeatableSink):
    """Absorbs by the event's key, sends the events of a chunk side by side, and reports each."""

    def open(self, target: Target) -> SideBySideLine:
        return SideBySideLine(self.destination, target)


class SideBySideLine(AbsorberLine):
    def deliver(self, chunk: Chunk) -> Receipt:
        failures = {}
        for place, event in enumerate(chunk.events()):

            def act(event: Event = event) -> None:
                if self.destination.fresh(event.key):
                    self.destination.accept(event, self.target.attempt)

            try:
                self.destination.send([names_in(chunk)[place]], act)
            except NotDelivered as error:
                failures[place] = error
        return Receipt(failures)


class Absorbers(Absorber):
    def sink(self, name: str = "out", **settings: Any) -> SideBySide:
        return SideBySide(name=name, destination=self, **settings)


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION])
def test_what_was_not_delivered_beside_a_later_one_is_not_lost_with_the_checkpoint(
    identity: Identity,
) -> None:
    world = world_of(Absorbers(), identity, chunk_rows=2, retry=Retry(0.1, 1.0, 5.0))
    world.out.plan(away, fine, crash)  # a1 was not delivered, a2 was; then it crashed
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 a2", order=False)
    world.start()
    world.minibatch(0, "a1 a2 a3", "q2", order=False)
    assert once(world.out.seen) == "a1 a2 a3"


def test_the_policy_resend_does_not_lose_what_was_in_doubt_beside_a_later_one() -> None:
    world = world_of(Couriers(), INCREASING, chunk_rows=2, on_doubt=OnDoubt.RESEND)
    world.out.plan(lost_on_the_way, fine, crash)
    opening = world.open(0)
    with pytest.raises(Crash):
        world.task(opening, "a1 a2", order=False)

    def again() -> None:
        world.start()
        world.minibatch(0, "a1 a2 a3", "q2", order=False)

    within_reason(world, again)
    assert "a1" in world.out.seen.split()


# -- time


def test_a_span_that_was_recorded_anew_is_as_old_as_what_was_sent_from_it() -> None:
    world = World()
    world.add(
        Absorbers(keys=SeenKeys(1_000.0)),
        chunk_rows=2,
        remembers_s=1_000.0,
        retry=Retry(0.1, 1.0, 5.0),
    )
    world.start()
    opening = world.open(0)
    world.out.plan(fine, fine, fine, crash_after)  # everything arrived
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.clock.move(900.0)
    world.out.plan(away, fine, crash)  # of the repeat, one event was not taken just now
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4")
    world.clock.move(200.0)
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4"))
    seen = world.out.seen.split()
    assert len(seen) == len(set(seen))


# -- a place that is overwritten


def test_a_late_finish_of_an_input_that_ended_early_does_not_replace_the_whole_part() -> None:
    world = world_of(FolderModel())
    opening = world.open(0)

    def another_run() -> None:
        world.clock.move(100.0)
        world.start()
        world.minibatch(0, "a1 b2 c3")

    world.out.plan(fine, after(another_run))  # frozen between its last look and its finish
    with contextlib.suppress(Fenced):
        world.task(opening, "a1")  # query.stop(): the input ended early
    assert world.out.places == {"1.0/part-0": ["a1", "b2", "c3"]}


# -- rows that a complete minibatch did not have


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_a_partition_that_a_complete_minibatch_did_not_have_is_diverged(kind: str) -> None:
    world = world_like(kind, GIVEN)
    world.minibatch(0, "a1 b2")
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged):
        world.task(opening, "b2", partition="1", spark_task=1)
    assert world.out.seen == "a1 b2"


# -- receipts that tell of single events


@dataclass(frozen=True, kw_only=True)
class Telling(ProbingSink):
    """Takes the good events of a chunk under its key, and reports the bad ones."""

    def open(self, target: Target) -> TellingLine:
        return TellingLine(self.destination, target)


class TellingLine(RegisterLine):
    def deliver(self, chunk: Chunk) -> Receipt:
        def act() -> Receipt:
            refused = self.destination.refused(chunk)
            self.destination.arrived.add(chunk.key)
            for place, event in enumerate(chunk.events()):
                if place not in refused:
                    self.destination.accept(event, self.target.attempt)
            return Receipt(refused)

        receipt: Receipt = self.destination.send(names_in(chunk), act)
        return receipt


class Registers(Register):
    def sink(self, name: str = "out", **settings: Any) -> Telling:
        return Telling(name=name, destination=self, **settings)


# -- a destination that cannot be reached


@dataclass(frozen=True, kw_only=True)
class Locked(CouriersSink):
    """No session opens while the destination is locked."""

    def open(self, target: Target) -> CouriersLine:
        if self.destination.refuses:
            raise NotDelivered("nobody opens")
        return super().open(target)


class Door(Couriers):
    def sink(self, name: str = "out", **settings: Any) -> Locked:
        return Locked(name=name, destination=self, **settings)


def test_a_resend_that_could_not_even_connect_leaves_no_doubt() -> None:
    world = world_of(Door(), chunk_rows=1, retry=Retry(0.1, 1.0, 5.0))
    world.out.plan(rejects)
    world.minibatch(0, "a1 b2")
    world.resolve("a1", "resend")
    world.out.refuses.add("(everybody)")
    with contextlib.suppress(NotDelivered):
        world.driver.drain()
    world.out.refuses.clear()
    world.clock.move(100.0)
    world.driver.drain()
    assert world.out.seen == "b2 a1"
    assert world.parked() == ["a1 delivered"]


# -- names


@pytest.mark.parametrize("name", ["a" * 2_000, "a/b%2Fc", "nul\x00 %~ \U0001f600", "t/0", "", "~"])
@pytest.mark.parametrize("identity", [GIVEN, INCREASING, ORDERED_POSITION])
def test_an_entity_may_have_any_name(name: str, identity: Identity) -> None:
    def named(text: str) -> list[pa.RecordBatch]:
        batch = events(text)
        renamed = [name if each == "a" else each for each in batch.column("c").to_pylist()]
        place = batch.schema.get_field_index("c")
        return [batch.set_column(place, "c", pa.array(renamed))]

    world = world_of(Post(), identity)
    world.out.plan(lost)
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, named("a1 b2 a3")))
    assert [row.state.value for _, row in world.parked_rows()] == ["held", "waiting"]
    [(at, _), _] = world.parked_rows()
    resolve_parked(world.client, "out", at, ParkedState.RESEND, "ann", "looked")
    world.clock.move(100.0)
    opening = world.open(1)
    world.driver.end(opening, world.task(opening, named("a4 b5")))
    sent = [(effect.entity, effect.value["id"]) for effect in world.out.effects]
    assert sent == [(name, 1), ("b", 2), (name, 1), (name, 3), (name, 4), ("b", 5)]
    assert world.heads() == []


# -- attempts that were replaced


@pytest.mark.parametrize("kind", ["transactional", "sequenced", "repeatable", "probing"])
def test_an_attempt_that_was_replaced_during_its_last_call_does_not_succeed(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, lease_s=10.0, deadline_s=30.0)
    opening = world.open(0)
    reports: list[Report] = []

    def replaced() -> None:
        world.clock.move(11.0)
        reports.extend(world.task(opening, "a1 b2", number=20))

    world.out.plan(fine, before(replaced))
    with pytest.raises(Fenced):
        world.task(opening, "a1 b2", number=10)
    world.driver.end(opening, reports)
    assert world.out.seen == "a1 b2"


# -- order within a chunk


def test_a_receipt_about_single_events_is_refused_where_only_chunks_can_be_asked_for() -> None:
    world = world_of(Registers(), chunk_rows=3)
    world.out.refuses.add("b2")
    opening = world.open(0)
    with pytest.raises(ConfigurationError, match="reported a failure of a single event"):
        world.task(opening, "a1 b2 c3")


@pytest.mark.parametrize(
    ("refused", "on_doubt", "waits"),
    [
        (set(), OnDoubt.HOLD, 0.0),
        ({"d4"}, OnDoubt.HOLD, 0.0),
        (set(), OnDoubt.RESEND, 0.0),
        ({"d4"}, OnDoubt.RESEND, 40.0),
    ],
)
def test_a_chunk_is_recorded_anew_only_when_its_first_sender_cannot_send_it_any_more(
    refused: set[str], on_doubt: OnDoubt, waits: float
) -> None:
    world = world_like(
        "repeatable by chunk",
        chunk_rows=2,
        span_chunks=2,
        lease_s=10.0,
        deadline_s=30.0,
        on_doubt=on_doubt,
    )
    opening = world.open(0)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3 d4", number=10)
    world.out.refuses.update(refused)
    world.clock.slept.clear()
    world.driver.end(opening, world.task(opening, "a1 b2 c3 d4", number=20))
    assert sum(world.clock.slept) >= waits
    assert bool(world.clock.slept) == bool(waits)
    # It was in flight when its sender died, so its refusal leaves all of it in doubt.
    assert sorted(world.out.seen.split()) == ["a1", "b2"] + ([] if refused else ["c3", "d4"])
    assert world.parked() == (["c3 held", "d4 held"] if refused else [])
