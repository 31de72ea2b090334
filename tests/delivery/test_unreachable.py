"""A resend may have arrived, and the destination cannot be reached: it is not taken for unsent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import (
    ConfigurationError,
    Diverged,
    Fenced,
    HeldInDoubt,
    NotDelivered,
    OutcomeUnknown,
)
from semel.protocol import OnDoubt
from support.destinations import Crash, DatabaseLine, LogLine, crash_after, fine, lost
from support.pipeline import World, once, world_like

ABLE = ["probing", "transactional", "transactional script", "repeatable"]


def asked_for(kind: str, **settings: Any) -> World:
    """a1 and b2 were refused, and a person wants b2 sent again."""
    world = world_like(kind, chunk_rows=1, **settings)
    world.out.refuses |= {"a1", "b2"}
    world.minibatch(0, "a1 b2 c3")
    world.out.refuses.clear()
    world.resolve("b2", "resend")
    return world


def nobody_there(*_: object) -> Any:
    raise NotDelivered("nobody is there")


def later(world: World) -> None:
    """The destination is there again, and a1 is to be sent too, before b2."""
    world.out.always = fine
    world.resolve("a1", "resend")
    for _ in range(3):
        world.clock.move(100.0)
        world.driver.drain()


@pytest.mark.parametrize("kind", ABLE)
def test_a_sender_died_after_its_call_and_the_next_one_reaches_nobody(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = asked_for(kind)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.driver.drain()
    world.clock.move(100.0)
    with monkeypatch.context() as away:
        away.setattr(type(world.sinks[0]), "open", nobody_there)
        world.driver.drain()
    later(world)
    assert once(world.out.seen) == "a1 b2 c3"
    assert world.parked() == ["a1 delivered", "b2 delivered"]


@pytest.mark.parametrize("kind", ABLE)
def test_an_answer_was_lost_and_afterwards_nobody_is_reached(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = asked_for(kind)
    with monkeypatch.context() as away:

        def then_away(act: Callable[[], Any]) -> Any:
            away.setattr(type(world.sinks[0]), "open", nobody_there)
            world.out.always = nobody_there
            return lost(act)

        world.out.plan(then_away)
        world.driver.drain()
    later(world)
    assert once(world.out.seen) == "a1 b2 c3"
    assert world.parked() == ["a1 delivered", "b2 delivered"]


@pytest.mark.parametrize("error", [NotDelivered, OutcomeUnknown, ConnectionError])
def test_an_answer_was_lost_and_nobody_says_whether_it_arrived(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = asked_for("probing")

    def silent(*_: object) -> bool:
        raise error("no answer to this either")

    with monkeypatch.context() as away:
        away.setattr("support.destinations.RegisterLine.arrived", silent)
        world.out.plan(lost)
        world.minibatch(1, "c4")  # a resend of unknown outcome stops no minibatch
    later(world)
    assert once(world.out.seen) == "a1 b2 c3 c4"


def test_what_the_policy_sends_again_says_so_also_when_it_goes_only_later() -> None:
    world = asked_for("opaque", on_doubt=OnDoubt.RESEND)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.driver.drain()
    world.clock.move(100.0)
    world.out.always = nobody_there
    world.driver.drain()  # surely nothing arrives now, and perhaps it had before
    later(world)
    assert world.out.seen.split().count("b2") == 2, "the policy wants that"
    [told] = [row.doubted for _, row in world.parked_rows() if row.event == 2]
    assert told, "it may have arrived twice"


FINAL = [Diverged, HeldInDoubt, ConfigurationError, Fenced]


@pytest.mark.parametrize("error", FINAL)
@pytest.mark.parametrize("kind", ["transactional", "sequenced", "probing"])
def test_what_a_session_says_for_good_when_it_is_asked_is_not_asked_for_again(
    kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_like(kind, chunk_rows=1)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    asked: list[object] = []

    def says(*_: object) -> Any:
        asked.append(1)
        raise error("the table is another one than before")

    question = {
        "transactional": "DatabaseLine.take_over",
        "sequenced": "LogLine.take_over",
        "probing": "RegisterLine.arrived",
    }[kind]
    world.clock.slept.clear()
    with monkeypatch.context() as broken:
        broken.setattr(f"support.destinations.{question}", says)
        with pytest.raises(error, match="another one than before"):
            world.task(opening, "a1 b2")
    assert len(asked) == 1
    assert sum(world.clock.slept) <= world.sinks[0].lease_s + world.sinks[0].deadline_s
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert world.out.seen == "a1 b2"


@pytest.mark.parametrize("error", [NotDelivered, OutcomeUnknown, OSError])
@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
def test_what_a_session_cannot_say_just_now_is_asked_for_again(
    kind: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_like(kind, chunk_rows=1)
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    line: Any = {"transactional": DatabaseLine, "sequenced": LogLine}[kind]
    asked: list[object] = []
    answers = line.take_over

    def at_last(self: Any) -> Any:
        asked.append(1)
        if len(asked) < 3:
            raise error("not now")
        return answers(self)

    monkeypatch.setattr(line, "take_over", at_last)
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert len(asked) == 3
    assert world.out.seen == "a1 b2"
