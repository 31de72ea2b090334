"""A refusal takes nothing back: what may have arrived before it is in doubt, and never sent twice.

And at a REPEATABLE destination one event that is never answered stops its own entity only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from semel.delivery.strategies.repeat import TRIES_MAX
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    HeldInDoubt,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
)
from semel.events import Chunk, Identity
from semel.ledger.journal import read_unsure
from semel.ledger.rows import SpanRow
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.protocol import OnDoubt
from semel.sinks import Receipt, Retry, Target
from support.destinations import (
    Absorber,
    AbsorberLine,
    Crash,
    Post,
    RepeatableSink,
    away,
    crash,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
    name_of,
    names_in,
)
from support.pipeline import (
    GIVEN,
    INCREASING,
    ORDERED_POSITION,
    POSITION,
    World,
    crash_everywhere,
    once,
    world_like,
    world_of,
)

BY_EVENT, BY_CHUNK = "repeatable", "repeatable by chunk"
TWELVE = "a1 b2 c3 d4 e5 f6 a7 b8 c9 d10 e11 f12"


def refused(act: Callable[[], Any]) -> Any:
    """A gateway on the way refuses the call, whatever became of an earlier one."""
    raise Rejected("403: the gateway does not let it pass")


def restart(world: World, text: str, batch: int = 0) -> None:
    world.start()
    world.minibatch(batch, text)


# -- E1: a refusal after an unknown outcome


def test_a_refusal_after_a_lost_answer_is_a_doubt_by_event_key() -> None:
    world = world_like(BY_EVENT, chunk_rows=1)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2 a3")
    assert world.out.seen == "a1 b2"
    assert world.parked() == ["a1 held", "a3 waiting"]
    [row] = [row for _, row in world.parked_rows() if row.event == 1]
    assert row.doubted
    assert "403" in row.why
    assert "may have arrived" in row.why


def test_a_refusal_after_a_lost_answer_holds_the_whole_chunk_by_chunk_key() -> None:
    world = world_like(BY_CHUNK, chunk_rows=2)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2 c3 a4")
    assert once(world.out.seen) == "a1 b2 c3"
    assert world.parked() == ["a1 held", "b2 held", "a4 waiting"]


def test_a_chunk_that_is_refused_after_a_lost_answer_is_parted_by_event_key() -> None:
    world = world_like(BY_EVENT, chunk_rows=4)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2 c3 d4")
    assert once(world.out.seen) == "a1 b2 c3 d4"
    assert world.parked() == []


def test_a_refusal_before_which_nothing_was_sent_is_believed() -> None:
    world = world_like(BY_EVENT, chunk_rows=1)
    world.out.plan(away, refused)
    world.minibatch(0, "a1 a2")
    assert world.out.seen == "a2"
    assert world.parked() == ["a1 rejected"]


@pytest.mark.parametrize("end", [crash, crash_after], ids=["before", "after"])
@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_refusal_of_what_an_earlier_attempt_intended_is_a_doubt(kind: str, end: Any) -> None:
    world = world_like(kind, chunk_rows=1)
    world.out.plan(end)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 a3")
    world.out.plan(refused)
    restart(world, "a1 b2 a3")
    assert once(world.out.seen) == ("a1 b2" if end is crash_after else "b2")
    # Was the chunk of a3 sent? Unknown: by its own key it can wait, by the chunk's it cannot.
    assert world.parked() == ["a1 held", "a3 waiting" if kind == BY_EVENT else "a3 held"]


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION, ORDERED_POSITION])
def test_a_refusal_of_what_was_open_when_the_checkpoint_was_lost_is_a_doubt(
    identity: Identity,
) -> None:
    world = world_like(BY_EVENT, identity, chunk_rows=1)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 c3")
    world.start()
    world.out.plan(*[refused] * 3)
    world.minibatch(0, "a1 b2 c3 d4", "q2")
    assert world.parked() == ["a1 held", "b2 held", "c3 held"], "the whole span may have been sent"
    assert once(world.out.seen) == "a1 b2 d4"


def test_what_was_open_when_a_checkpoint_was_lost_stays_in_doubt_while_it_waits() -> None:
    world = world_like(BY_EVENT, GIVEN, chunk_rows=1)
    opening = world.open(0)
    world.out.plan(fine, fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3")
    world.start()
    world.out.plan(refused)
    world.minibatch(0, "a1 b2 a3 a4", "q2")
    assert world.parked() == ["a1 held", "a3 waiting", "a4 waiting"]
    world.resolve("a1", "delivered")
    world.out.plan(refused)
    world.driver.drain()
    assert world.parked() == ["a1 delivered", "a3 held", "a4 waiting"]
    world.resolve("a3", "delivered")
    world.out.plan(refused)
    world.driver.drain()
    assert world.parked()[-1] == "a4 rejected", "it was never sent before"


def test_what_was_open_when_a_checkpoint_was_lost_stays_known_until_it_comes_again() -> None:
    world = world_like(BY_EVENT, GIVEN, chunk_rows=1)
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.start()
    world.minibatch(0, "c3", "q2")
    world.start()
    world.minibatch(0, "d4", "q3")
    world.clock.move(REMEMBER_S)
    Pruning(world.client, REMEMBER_S).run([sink.name for sink in world.sinks])
    world.out.plan(refused)
    world.minibatch(1, "a1 e5", "q3")
    assert world.parked() == ["a1 held"]
    world.out.plan(refused)
    world.minibatch(2, "f6", "q3")
    assert world.parked() == ["a1 held", "f6 rejected"], "a new event that is refused is believed"
    world.clock.move(3 * REMEMBER_S)
    Pruning(world.client, REMEMBER_S).run([sink.name for sink in world.sinks])
    assert not read_unsure(world.client, world.sinks[0].name)


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, ORDERED_POSITION])
def test_what_follows_a_refused_event_of_its_entity_is_not_repeated_before_it_is_decided(
    identity: Identity,
) -> None:
    world = world_like(BY_EVENT, identity, chunk_rows=3)
    opening = world.open(0)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 a2 b3")
    world.out.refuses = {"a1"}
    world.driver.end(opening, world.task(opening, "a1 a2 b3"))
    assert world.out.seen == "b3"
    assert world.parked() == ["a1 held", "a2 held"]


def test_the_chunks_after_a_refused_one_keep_their_keys_when_they_were_inherited() -> None:
    world = world_like(BY_CHUNK, chunk_rows=2, span_chunks=3)
    world.out.plan(fine, fine, crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 c3 d4 e5 f6")
    world.out.plan(refused)
    restart(world, "a1 b2 c3 d4 e5 f6")
    assert once(world.out.seen) == "a1 b2 c3 d4 e5 f6"
    assert world.parked() == ["a1 held", "b2 held"]


def test_an_inherited_chunk_behind_a_held_one_of_its_entity_is_held_whole() -> None:
    world = world_like(BY_CHUNK, chunk_rows=2, span_chunks=3)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 a3 c4 d5 e6")
    world.out.plan(refused)
    restart(world, "a1 b2 a3 c4 d5 e6")
    assert world.out.seen == "d5 e6"
    assert world.parked() == ["a1 held", "b2 held", "a3 held", "c4 held"]


@pytest.mark.parametrize("on_doubt", [OnDoubt.RESEND, OnDoubt.SKIP])
@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_policy_decides_about_a_refusal_in_doubt_and_comes_to_an_end(
    kind: str, on_doubt: OnDoubt
) -> None:
    world = world_like(kind, chunk_rows=1, on_doubt=on_doubt)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2")
    assert world.out.seen == "a1 b2"
    assert world.parked() == (["a1 held"] if on_doubt is OnDoubt.RESEND else ["a1 skipped"])


@pytest.mark.parametrize("on_doubt", [OnDoubt.RESEND, OnDoubt.PROBE])
def test_a_policy_that_sends_again_decides_about_the_rest_of_an_inherited_span(
    on_doubt: OnDoubt,
) -> None:
    world = World()

    def arrived(event: Any) -> bool:
        return event.id in [effect.event for effect in world.out.effects]

    probe = arrived if on_doubt is OnDoubt.PROBE else None
    settings: dict[str, Any] = {
        "chunk_rows": 1,
        "span_chunks": 3,
        "on_doubt": on_doubt,
        "probe": probe,
    }
    world.add(Absorber(), keyed_by_event=False, **settings)
    world.start()
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 c3")
    world.out.plan(refused)
    restart(world, "a1 b2 c3")
    if on_doubt is OnDoubt.PROBE:
        assert world.out.seen == "a1 b2 c3"
        assert world.parked() == []
    else:
        assert {"a1", "b2", "c3"} == set(world.out.seen.split())
        assert set(world.parked()) == {"a1 held", "b2 resent", "c3 resent"}


def test_what_the_probe_says_did_not_arrive_is_a_dead_letter_when_it_is_refused() -> None:
    world = World()

    def arrived(event: Any) -> bool:
        return event.id in [effect.event for effect in world.out.effects]

    world.add(Absorber(), chunk_rows=1, on_doubt=OnDoubt.PROBE, probe=arrived)
    world.start()
    world.out.plan(lost_on_the_way, refused, lost, refused)
    world.minibatch(0, "a1 b2")
    assert world.out.seen == "b2"
    assert world.parked() == ["a1 rejected"]


def test_policy_stop_keeps_what_was_inherited() -> None:
    world = world_like(BY_CHUNK, chunk_rows=1, span_chunks=3, on_doubt=OnDoubt.STOP)
    world.out.plan(fine, fine, crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 c3")
    world.out.plan(refused)
    with pytest.raises(HeldInDoubt):
        restart(world, "a1 b2 c3")
    world.resolve("a1", "delivered")
    restart(world, "a1 b2 c3")
    assert world.out.seen == "a1 b2 c3"


def test_an_opaque_event_that_was_sent_again_and_is_refused_is_held() -> None:
    world = world_of(Post(), on_doubt=OnDoubt.RESEND)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2")
    assert world.out.seen == "a1 b2"
    assert world.parked() == ["a1 held"]


def settle_as_a_person_would(world: World, text: str, batch: int = 1) -> None:
    """Look at the destination: what is there was delivered, what is not is to be sent."""
    for _ in range(30):
        held = [each.split() for each in world.parked()]
        waits = [name for name, state in held if state in ("held", "rejected")]
        if not waits:
            break
        seen = world.out.seen.split()
        world.resolve(waits[0], "delivered" if waits[0] in seen else "resend")
        world.clock.move(100.0)
        world.driver.drain()
    world.minibatch(batch, text)


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_crash_at_any_call_around_a_refusal_in_doubt_repeats_and_loses_nothing(kind: str) -> None:
    def make() -> World:
        world = world_like(kind, chunk_rows=2, span_chunks=2)
        world.out.plan(fine, lost, refused, lost_on_the_way, refused)
        return world

    for what, world in crash_everywhere(make, lambda world: world.minibatch(0, "a1 b2 c3 a4 d5")):
        world.out.script.clear()
        world.out.plan(refused)
        restart(world, "a1 b2 c3 a4 d5")
        seen = world.out.seen.split()
        rejected = [each.split()[0] for each in world.parked() if each.endswith("rejected")]
        assert not set(rejected) & set(seen), what
        world.out.script.clear()
        settle_as_a_person_would(world, "e6")
        assert once(world.out.seen) == "a1 b2 c3 a4 d5 e6", what


def test_with_the_refusal_believed_everything_would_arrive_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from semel.delivery.strategies import repeat

    monkeypatch.setattr(repeat.Repeating, "_doubtful", lambda *_: False)
    world = world_like(BY_CHUNK, chunk_rows=2)
    world.out.plan(lost, refused)
    world.minibatch(0, "a1 b2")
    assert once(world.out.seen) == "a1 a1 b2 b2"


# -- E1: receipts, and resends


@dataclass(eq=False)
class Teller(Absorber):
    """Absorbs by event key, and reports each event: `says` has the outcomes of coming calls."""

    says: dict[str, list[DeliveryError | None]] = field(default_factory=dict)

    def sink(self, name: str = "out", **settings: Any) -> TellerSink:
        return TellerSink(name=name, destination=self, **settings)


class TellerSink(RepeatableSink):
    def open(self, target: Target) -> TellerLine:
        return TellerLine(self.destination, target)


class TellerLine(AbsorberLine):
    def deliver(self, chunk: Chunk) -> Receipt:
        def act() -> Receipt:
            failures: dict[int, DeliveryError] = {}
            for place, event in enumerate(chunk.events()):
                says = self.destination.says.get(name_of(event.value), [])
                why = says.pop(0) if says else None
                if why is not None:
                    failures[place] = why
                if not isinstance(why, Rejected) and self.destination.fresh(event.key):
                    self.destination.accept(event, self.target.attempt)
            return Receipt(failures)

        receipt: Receipt = self.destination.send(names_in(chunk), act)
        return receipt


def test_what_was_told_as_delivered_is_not_repeated_beside_an_unknown_one() -> None:
    world = world_of(Teller(), chunk_rows=3)
    world.out.says = {"a1": [None, Rejected("403")], "b2": [OutcomeUnknown("500"), Rejected("403")]}
    world.minibatch(0, "a1 b2 c3")
    assert world.out.calls == [["a1", "b2", "c3"], ["b2"]]
    assert world.parked() == ["b2 held"]
    assert once(world.out.seen) == "a1 b2 c3"


@pytest.mark.parametrize("then", [[refused], [away, refused], [lost, refused]])
def test_what_was_told_as_delivered_stays_so_when_its_chunk_is_repeated_and_refused(
    then: list[Any],
) -> None:
    world = world_of(Teller(), chunk_rows=3, keyed_by_event=False)
    world.out.says = {"b2": [OutcomeUnknown("500")]}
    world.out.plan(fine, *then)
    world.minibatch(0, "a1 b2 c3 a4")
    assert world.parked() == ["b2 held"], "a1 and c3 have arrived: they are no dead letters"
    assert once(world.out.seen) == "a1 b2 c3 a4"


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_resend_that_is_refused_after_a_lost_answer_is_held(kind: str) -> None:
    world = world_like(kind, chunk_rows=1)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(lost, refused)
    world.driver.drain()
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held"]


def test_a_resend_whose_sender_died_and_that_is_refused_then_is_held() -> None:
    world = world_like(BY_EVENT, chunk_rows=1)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1")
    world.out.refuses.clear()
    world.resolve("a1", "resend")
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.driver.drain()
    world.clock.move(100.0)
    world.out.plan(refused)
    world.driver.drain()
    assert world.parked() == ["a1 held"]


def cannot_take(act: Callable[[], Any]) -> Any:
    raise ConfigurationError("there is no column 'fee' in these events")


@pytest.mark.parametrize("reply", [refused, cannot_take])
@pytest.mark.parametrize("kind", ["opaque", BY_EVENT, BY_CHUNK])
def test_a_resend_of_what_may_have_arrived_stays_in_doubt_when_it_is_refused(
    kind: str, reply: Any
) -> None:
    world = world_like(kind, chunk_rows=1)
    world.out.plan(lost, *([] if kind == "opaque" else [refused]))
    world.minibatch(0, "a1 a2")
    assert world.out.seen == "a1"
    assert world.parked() == ["a1 held", "a2 waiting"]
    world.resolve("a1", "resend")
    world.clock.move(100.0)
    world.out.plan(reply)
    world.driver.drain()
    assert world.parked() == ["a1 held", "a2 waiting"], "a dead letter surely did not arrive"
    [row] = [row for _, row in world.parked_rows() if row.event == 1]
    assert "may have arrived" in row.why or kind == "opaque"


def test_what_may_have_arrived_stays_so_while_it_waits_behind_a_held_event() -> None:
    world = world_of(Teller(), chunk_rows=3, on_doubt=OnDoubt.RESEND)
    world.out.says = {"a1": [OutcomeUnknown("500"), Rejected("403")]}
    world.out.says["a2"] = [OutcomeUnknown("500"), OutcomeUnknown("500"), Rejected("403")]
    world.minibatch(0, "a1 a2 b3")
    assert once(world.out.seen) == "a1 a2 b3"
    assert world.parked() == ["a1 held", "a2 waiting"]
    [row] = [row for _, row in world.parked_rows() if row.event == 2]
    assert row.doubted
    world.resolve("a1", "delivered")
    world.clock.move(100.0)
    world.driver.drain()
    assert world.parked() == ["a1 delivered", "a2 held"]
    assert once(world.out.seen) == "a1 a2 b3"


def waits_and_has_arrived() -> World:
    """a3 arrived by an attempt that was killed, and waits now behind a1, which is in doubt."""
    world = world_like(BY_EVENT, chunk_rows=1)
    world.out.plan(fine, fine, crash_after)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2 a3")
    world.clock.move(1_000.0)
    world.out.plan(refused)
    restart(world, "a1 b2 a3")
    assert world.parked() == ["a1 held", "a3 waiting"]
    world.resolve("a1", "delivered")
    return world


def test_what_an_attempt_before_may_have_sent_is_absorbed_when_its_turn_comes() -> None:
    world = waits_and_has_arrived()
    [row] = [row for _, row in world.parked_rows() if row.event == 3]
    assert row.doubted
    assert world.driver.drain() == 1
    assert world.parked() == ["a1 delivered", "a3 delivered"]
    assert once(world.out.seen) == "a1 b2 a3"


def test_what_an_attempt_before_may_have_sent_is_no_dead_letter_when_it_is_refused() -> None:
    world = waits_and_has_arrived()
    world.out.plan(refused)
    world.driver.drain()
    assert world.parked() == ["a1 delivered", "a3 held"], "a dead letter surely did not arrive"


@pytest.mark.parametrize("end", [None, away, crash])
def test_what_an_attempt_before_may_have_sent_is_held_once_its_key_is_forgotten(end: Any) -> None:
    world = waits_and_has_arrived()
    world.clock.move(85_000.0)  # its key is remembered for 400 s more
    if end is not None:
        world.out.plan(*[end] * 100)
        with suppress(Crash, NotDelivered):
            world.driver.drain()
        world.out.script.clear()
    world.clock.move(500.0)
    world.driver.drain()
    assert once(world.out.seen) == "a1 b2 a3"
    assert world.parked() == ["a1 delivered", "a3 held"]


def test_a_resend_of_a_chunks_event_waits_until_the_call_before_it_has_ended() -> None:
    world = world_like(BY_CHUNK, chunk_rows=1)
    world.out.plan(lost_on_the_way, refused)
    world.minibatch(0, "a1")
    world.resolve("a1", "resend")
    assert world.driver.drain() == 0
    world.clock.move(40.0)
    assert world.driver.drain() == 1
    assert world.out.seen == "a1"


# -- E5: an event that is never answered


def poison(*names: str, arrives: bool = False) -> Callable[[World], None]:
    """Let the destination answer no call that has one of these events."""

    def put(world: World) -> None:
        send = world.out.send

        def sending(called: list[str], act: Callable[[], Any]) -> Any:
            def acting() -> Any:
                if not set(names) & set(called):
                    return act()
                if arrives:
                    act()
                raise TimeoutError("500")

            return send(called, acting)

        world.out.send = sending

    return put


def in_vain(world: World, text: str) -> None:
    """So many attempts in which nothing of a chunk is answered: as if no server was there."""
    for _ in range(TRIES_MAX):
        world.start()
        with pytest.raises(OutcomeUnknown, match="with the same keys"):
            world.minibatch(0, text)
        assert world.parked() == []


def test_an_event_alone_that_is_never_answered_stops_the_stream_for_a_few_attempts_only() -> None:
    world = world_like(BY_EVENT, chunk_rows=4)
    poison("a1")(world)
    in_vain(world, "a1")
    restart(world, "a1")
    world.minibatch(1, "b2 a3")
    assert world.out.seen == "b2"
    assert world.parked() == ["a1 held", "a3 waiting"]


@pytest.mark.parametrize("arrives", [False, True])
def test_an_event_that_is_never_answered_is_held_alone_by_event_key(arrives: bool) -> None:
    world = world_like(BY_EVENT, chunk_rows=4)
    poison("b2", arrives=arrives)(world)
    world.minibatch(0, "a1 b2 c3 d4 e5 f6")
    assert once(world.out.seen) == ("a1 b2 c3 d4 e5 f6" if arrives else "a1 c3 d4 e5 f6")
    assert world.parked() == ["b2 held"]


def test_its_entity_waits_and_what_was_sent_with_it_is_in_doubt() -> None:
    world = world_like(BY_EVENT, chunk_rows=3)
    poison("b2")(world)
    world.minibatch(0, "a1 b2 b3 b4 c5")
    assert once(world.out.seen) == "a1 c5"
    assert world.parked() == ["b2 held", "b3 held", "b4 waiting"]


def test_where_each_event_is_told_of_only_the_unanswered_one_is_held() -> None:
    world = world_of(Teller(), chunk_rows=4)
    world.out.says = {"b2": [OutcomeUnknown("500")] * 1000}
    world.minibatch(0, "a1 b2 c3 d4")
    world.minibatch(1, "b5 c6")
    assert once(world.out.seen) == "a1 b2 c3 d4 c6"
    assert world.parked() == ["b2 held", "b5 waiting"]


def test_a_chunk_that_is_never_answered_is_held_whole_by_chunk_key() -> None:
    world = world_like(BY_CHUNK, chunk_rows=2, span_chunks=3)
    poison("b2")(world)
    in_vain(world, "a1 b2 c3 d4 e5 f6")
    restart(world, "a1 b2 c3 d4 e5 f6")
    assert world.out.seen == "c3 d4 e5 f6"
    assert world.parked() == ["a1 held", "b2 held"]
    assert len({tuple(each) for each in world.out.calls if "a1" in each}) == 1


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_crash_at_any_call_around_a_poison_event_repeats_and_loses_nothing(kind: str) -> None:
    def make() -> World:
        world = world_like(kind, chunk_rows=2, span_chunks=2, retry=Retry(1.0, 8.0, 10.0))
        poison("b2", arrives=True)(world)
        return world

    text = "a1 b2 c3 b4 d5"

    def act(world: World) -> None:
        with suppress(OutcomeUnknown):
            world.minibatch(0, text)

    for what, world in crash_everywhere(make, act):
        for _ in range(TRIES_MAX + 1):
            with suppress(OutcomeUnknown):
                restart(world, text)
        assert "b2 held" in world.parked(), what
        assert "d5" in world.out.seen.split(), what
        del world.out.send  # it is well again
        settle_as_a_person_would(world, "e6")
        assert once(world.out.seen) == f"{text} e6", what


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_a_destination_that_is_down_parks_nothing_and_goes_on_by_itself(kind: str) -> None:
    world = world_like(kind, chunk_rows=12)
    world.out.always = lost
    opening = world.open(0)
    with pytest.raises(OutcomeUnknown, match="with the same keys"):
        world.task(opening, TWELVE)
    assert world.parked() == []
    world.out.always = fine
    world.driver.end(opening, world.task(opening, TWELVE))
    assert once(world.out.seen) == TWELVE
    assert world.parked() == []


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_many_unanswered_events_stop_the_stream_for_a_few_attempts_only(kind: str) -> None:
    world = world_like(kind, chunk_rows=12, span_chunks=2)
    poison(*TWELVE.split(), arrives=True)(world)
    opening = world.open(0)
    text = f"{TWELVE} a13 g14"
    for at in range(TRIES_MAX):
        with pytest.raises(OutcomeUnknown):
            world.task(opening, text)
        assert [span.tries for span in world.spans()] == [at + 1]
    world.driver.end(opening, world.task(opening, text))
    assert sorted(world.out.seen.split()) == sorted([*TWELVE.split(), "g14"])
    assert [each.split()[1] for each in world.parked()] == ["held"] * 12 + ["waiting"]


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_when_the_keys_are_forgotten_only_what_was_sent_is_held(kind: str) -> None:
    world = world_like(kind, chunk_rows=12, span_chunks=3)
    poison(*TWELVE.split())(world)
    with pytest.raises(OutcomeUnknown):
        world.minibatch(0, f"{TWELVE} g13 h14")
    world.clock.move(100_000.0)
    restart(world, f"{TWELVE} g13 h14")
    assert world.out.seen == "g13 h14"
    assert world.parked() == [f"{name} held" for name in TWELVE.split()]


@pytest.mark.parametrize("kind", [BY_EVENT, BY_CHUNK])
def test_what_was_never_sent_is_not_in_doubt_however_long_nobody_comes(kind: str) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=3)
    world.out.plan(fine)
    world.out.always = away
    with pytest.raises(NotDelivered):
        world.minibatch(0, "a1 b2 c3 d4 e5 f6")
    world.out.always = fine
    world.clock.move(100_000.0)
    restart(world, "a1 b2 c3 d4 e5 f6")
    assert world.out.seen == "a1 b2 c3 d4 e5 f6"
    assert world.parked() == []


def test_a_span_of_the_first_version_is_read_and_written_as_it_was() -> None:
    world = world_like(BY_EVENT, chunk_rows=2)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.minibatch(0, "a1 b2")
    [(_, text)] = world.store.memory.scan("events", "")
    assert "tries" not in text
    assert SpanRow.load(text).dump() == text
    assert SpanRow.load(text).tries == 0
