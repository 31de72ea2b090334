"""What `semel explain` prints of a sink is what happens, and an effect is visible at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import semel
from semel.guarantees.wording import BECAUSE
from semel.protocol import Capability
from support.pipeline import EXACT, KINDS, World, crash_everywhere, once, world_like

INPUT = "a1 b2 c3 d4 e5 f6"

PROMISED = {
    Capability.TRANSACTIONAL: "exactly once. ",
    Capability.SEQUENCED: "exactly once, in order. ",
    Capability.REPEATABLE: "one effect. ",
    Capability.PROBING: "exactly once. ",
    Capability.OPAQUE: "nothing twice and nothing lost without a record of it. ",
}
"""What each capability promises, in the words of the README."""


def printed(world: World) -> str:
    return " ".join(str(semel.explain(world.sinks[0])).split())


@pytest.mark.rows("N8")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_of_a_crash_holds_after_a_crash_at_any_call(kind: str) -> None:
    def make() -> World:
        return world_like(kind, chunk_rows=2, span_chunks=1)

    told = printed(make())
    capability = make().sinks[0].capability
    assert f"is {capability.name}: {BECAUSE[capability]}" in told
    assert f"After a crash, a retry or a restart: {PROMISED[capability]}" in told
    opaque = capability is Capability.OPAQUE
    assert ("at most 2 events per partition and crash" in told) == opaque
    doubted = []
    for what, world in crash_everywhere(make, lambda world: world.minibatch(0, INPUT)):
        world.start()
        world.minibatch(0, INPUT)
        parked = [each.split()[0] for each in world.parked()]
        seen = world.out.seen.split()
        assert len(seen) == len(set(seen)), what
        assert set(seen) | set(parked) == set(INPUT.split()), what
        doubted.append(len(parked))
        if kind in EXACT:
            assert once(world.out.seen) == INPUT, what
    assert max(doubted) == (2 if opaque else 0)  # as printed: no more, and it does happen


@pytest.mark.rows("N8")
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_is_visible_before_the_next_one_and_before_the_minibatch_is_complete(
    kind: str,
) -> None:
    world = world_like(kind, chunk_rows=2, span_chunks=2)
    opening = world.open(0)
    visible: list[list[str]] = []

    def look(act: Callable[[], Any]) -> Any:
        visible.append(world.out.seen.split())
        return act()

    world.out.always = look
    reports = world.task(opening, INPUT)
    step = 1 if kind in ("opaque", "sequenced") else 2
    assert visible == [INPUT.split()[:upto] for upto in range(0, 6, step)]
    assert world.out.seen == INPUT
    assert not world.opened().complete
    world.driver.end(opening, reports)
