"""A resend that cannot be made stops neither the stream nor the other resends, and stays exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from semel.delivery.parking.resend_attempt import IN_VAIN_MAX
from semel.errors import ConfigurationError, NotDelivered, OutcomeUnknown
from semel.ledger.rows import ParkedRow
from semel.ledger.store.commit import Put
from semel.protocol import OnDoubt, OnReject
from support.destinations import Crash, crash, fine, lost, lost_on_the_way
from support.pipeline import KINDS, World, crash_everywhere, world_like

SAID = [kind for kind in KINDS if kind != "opaque batches"]
FENCED = ("transactional", "transactional script", "sequenced", "sequenced by opener")


def released(kind: str, **settings: Any) -> World:
    """a1 and b2 were refused, a3 waits behind a1; a person wants both sent again."""
    world = world_like(kind, chunk_rows=1, on_reject=OnReject.BLOCK, **settings)
    world.out.refuses.update({"a1", "b2"})
    world.minibatch(0, "a1 b2 a3")
    world.out.refuses.clear()
    for name in ("a1", "b2"):
        world.resolve(name, "resend")
    return world


def poison(world: World, name: str, error: Callable[[], Exception]) -> None:
    """Let every call with this event fail so, before anything of it arrives."""
    send = world.out.send

    def sending(names: list[str], act: Callable[[], Any]) -> Any:
        def fail() -> Any:
            if name in names:
                raise error()
            return act()

        return send(names, fail)

    world.out.send = sending


def go_on(world: World, times: int = 1) -> None:
    """The query is started again, so often, with a minibatch for each start."""
    for _ in range(times):
        world.start()
        world.clock.move(100.0)
        world.driver.drain(waits=True)
        opened = world.opened()
        batch = opened.minibatch.batch + opened.complete
        world.minibatch(batch, f"c{batch + 10}")


def states(world: World) -> dict[str, str]:
    return dict(each.split() for each in world.parked())


def wrong() -> Exception:
    return ConfigurationError("there is no column 'fee' in these events")


@pytest.mark.parametrize("kind", SAID)
def test_a_resend_that_the_sink_cannot_take_stops_nobody_and_can_be_resolved(kind: str) -> None:
    world = released(kind)
    poison(world, "a1", wrong)
    go_on(world)
    assert world.out.seen.split() == ["b2", "c11"]
    # Whatever a function raises is unknown: it is not known what it did before.
    parked = "held" if kind == "opaque" else "rejected"
    assert states(world) == {"a1": parked, "b2": "delivered", "a3": "waiting"}
    [why] = [row.why for _, row in world.parked_rows() if row.event == 1]
    assert "fee" in why
    del world.out.send  # the release is taken back
    world.resolve("a1", "resend")
    go_on(world)
    assert [name for name in world.out.seen.split() if name in ("a1", "a3")] == ["a1", "a3"]
    assert states(world) == dict.fromkeys(("a1", "b2", "a3"), "delivered")


@pytest.mark.parametrize("kind", SAID)
def test_it_can_be_discarded_and_what_waits_behind_it_goes_on(kind: str) -> None:
    world = released(kind)
    poison(world, "a1", wrong)
    go_on(world)
    world.resolve("a1", "discarded")
    go_on(world)
    assert "a3" in world.out.seen.split()
    assert "a1" not in world.out.seen.split()
    assert world.heads() == []


@pytest.mark.parametrize("kind", SAID)
def test_a_row_that_the_first_version_left_in_the_hands_of_a_sender_is_found_out(kind: str) -> None:
    world = released(kind)
    world.out.plan(crash)
    sends = world.driver.drain if not kind.startswith("sequenced") else None
    with pytest.raises(Crash):
        sends(waits=True) if sends else world.minibatch(1, "c11")
    assert "sending" in states(world).values()
    poison(world, "a1", wrong)
    go_on(world, 2)
    tells = kind in (*FENCED, "probing")
    assert states(world)["a1"] == ("rejected" if tells else "held")
    assert "b2" in world.out.seen.split()


@pytest.mark.parametrize("kind", SAID)
def test_a_resend_that_is_never_answered_does_not_keep_the_slot(kind: str) -> None:
    world = released(kind)
    poison(world, "a1", lambda: TimeoutError("a foreign error"))
    go_on(world, IN_VAIN_MAX + 2)
    tells = kind in (*FENCED, "probing")
    assert states(world) == {
        "a1": "rejected" if tells else "held",
        "b2": "delivered",
        "a3": "waiting",
    }
    assert world.out.seen.split().count("b2") == 1
    del world.out.send
    world.resolve("a1", "resend")
    go_on(world)
    assert [name for name in world.out.seen.split() if name in ("a1", "a3")] == ["a1", "a3"]


@pytest.mark.parametrize("kind", [kind for kind in SAID if kind != "opaque"])
def test_a_resend_that_arrived_unheard_is_not_sent_again_after_many_senders(kind: str) -> None:
    world = released(kind)
    world.out.plan(lost)
    world.out.always = lost_on_the_way
    for _ in range(IN_VAIN_MAX):
        try:
            go_on(world)
        except (NotDelivered, OutcomeUnknown):
            continue
    world.out.always = fine
    world.out.script.clear()
    go_on(world, 2)
    for name in ("a1", "b2", "a3"):
        if states(world)[name] in ("held", "rejected"):
            arrived = name in world.out.seen.split()
            assert not (arrived and states(world)[name] == "rejected")
            world.resolve(name, "delivered" if arrived else "resend")
        go_on(world, 2)
    seen = world.out.seen.split()
    assert [seen.count(name) for name in ("a1", "b2", "a3")] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["repeatable", "repeatable by chunk", "probing"])
def test_a_resend_that_arrived_and_is_never_answered_for_is_held_and_frees_the_slot(
    kind: str,
) -> None:
    world = released(kind)
    send, calls = world.out.send, []

    def sending(names: list[str], act: Callable[[], Any]) -> Any:
        if "a1" not in names:
            return send(names, act)
        calls.append(names)
        if len(calls) == 1:
            send(names, act)
        raise NotDelivered("nobody is there") if len(calls) > 1 else TimeoutError("lost")

    def silent(what: str, act: Callable[[], Any]) -> Any:
        raise NotDelivered("nobody is there")

    world.out.send, world.out.ask = sending, silent
    go_on(world, IN_VAIN_MAX + 2)
    assert states(world) == {"a1": "held", "b2": "delivered", "a3": "waiting"}
    assert world.out.seen.split().count("a1") == 1


@pytest.mark.parametrize("kind", SAID)
def test_an_event_that_cannot_be_read_again_stops_nobody(kind: str) -> None:
    world = released(kind)
    [(at, row)] = [each for each in world.parked_rows() if each[1].event == 1]
    payload = json.loads(row.dump())
    del payload["value"]["v"]
    broken = ParkedRow.load(json.dumps(payload))
    world.store.memory.commit([], [Put(at, broken.dump())])
    go_on(world)
    assert world.out.seen.split() == ["b2", "c11"]
    [(_, kept)] = [each for each in world.parked_rows() if each[1].event == 1]
    assert kept.state.value == "rejected"


def test_policy_resend_does_not_send_an_unanswered_event_for_ever() -> None:
    world = released("opaque", on_doubt=OnDoubt.RESEND)
    poison(world, "a1", lambda: TimeoutError("a foreign error"))
    go_on(world, IN_VAIN_MAX + 2)
    assert states(world)["a1"] == "held"
    assert sum("a1" in called for called in world.out.calls) <= IN_VAIN_MAX + 2


@pytest.mark.parametrize("error", [wrong, lambda: TimeoutError("500")], ids=["wrong", "foreign"])
@pytest.mark.parametrize("kind", SAID)
def test_a_crash_at_any_call_of_a_poison_resend_is_found_out(
    kind: str, error: Callable[[], Exception]
) -> None:
    def make() -> World:
        world = released(kind)
        poison(world, "a1", error)
        return world

    def act(world: World) -> None:
        world.clock.move(100.0)
        world.driver.drain(waits=True)
        world.minibatch(1, "c11")

    for what, world in crash_everywhere(make, act):
        go_on(world, IN_VAIN_MAX + 2)
        assert states(world)["a1"] in ("rejected", "held"), what
        assert states(world)["a3"] == "waiting", what
        seen = world.out.seen.split()
        assert len(seen) == len(set(seen)), what
        assert "b2" in seen or states(world)["b2"] == "held", what


def test_without_freeing_the_slot_the_others_would_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from semel.delivery.parking.resend_attempt import Again

    monkeypatch.setattr(Again, "in_vain", lambda *_: False)
    world = released("transactional")
    poison(world, "a1", lambda: TimeoutError("a foreign error"))
    go_on(world, IN_VAIN_MAX + 5)
    assert states(world) == {"a1": "sending", "b2": "resend", "a3": "waiting"}
