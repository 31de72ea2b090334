"""A topic that was deleted and recreated is not the one that was delivered from."""

from __future__ import annotations

import pytest

from semel.errors import Diverged
from semel.ledger.verbs.open import OpenMinibatch
from semel.ledger.verbs.open_checks import UNKNOWN_SOURCES, Sources
from support.destinations import Crash, crash_after
from support.pipeline import POSITION, World, world_like

OLD, NEW = Sources({"t": "old"}, ""), Sources({"t": "new"}, "")


def begin(world: World, batch: int, query: str = "q", sources: Sources = OLD) -> OpenMinibatch:
    return world.driver.begin(query, batch, {"t/0": 0}, sources)


def minibatch(world: World, batch: int, text: str, query: str = "q", **told: Sources) -> None:
    opening = begin(world, batch, query, **told)
    world.driver.end(opening, world.task(opening, text))


def test_a_topic_made_anew_stops_the_pipeline_before_anything_is_opened() -> None:
    world = world_like("transactional", POSITION)
    minibatch(world, 0, "a1 b2")
    opened = world.opened()
    world.start()
    for _ in range(2):  # however often it is tried
        with pytest.raises(Diverged, match=r"'t' was recreated.*id is new.*the id old"):
            begin(world, 0, "q2", NEW)
    assert world.opened() == opened
    minibatch(world, 0, "a1 b2 c3", "q2")
    assert world.out.seen == "a1 b2 c3"


def test_without_its_id_a_shorter_topic_made_anew_would_be_skipped_as_delivered() -> None:
    world = world_like("transactional", POSITION)
    minibatch(world, 0, "a1 b2 c3", sources=UNKNOWN_SOURCES)
    world.start()
    minibatch(world, 0, "x1 y2", "q2", sources=UNKNOWN_SOURCES)
    assert world.out.seen == "a1 b2 c3", "nobody could tell: the limit of the papers"


@pytest.mark.parametrize("kind", ["transactional", "opaque", "sequenced"])
def test_a_topic_made_anew_is_known_also_when_its_first_minibatch_never_ended(kind: str) -> None:
    world = world_like(kind, POSITION, chunk_rows=1, span_chunks=1)
    opening = begin(world, 0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    before = world.out.seen
    world.start()
    with pytest.raises(Diverged, match="recreated"):
        begin(world, 0, "q2", NEW)
    assert world.out.seen == before


def test_a_topic_made_anew_under_a_checkpoint_that_stands_is_known_too() -> None:
    world = world_like("transactional", POSITION)
    minibatch(world, 0, "a1 b2")
    with pytest.raises(Diverged, match="recreated"):
        begin(world, 1, sources=NEW)


def test_saying_that_a_gap_is_accepted_does_not_accept_another_topic() -> None:
    world = world_like("transactional", POSITION)
    minibatch(world, 0, "a1 b2")
    world.start().accept_gap = True
    with pytest.raises(Diverged, match="recreated"):
        begin(world, 0, "q2", NEW)


def test_an_id_that_was_known_and_is_not_stops_a_re_read_with_the_reason() -> None:
    world = world_like("transactional", POSITION)
    minibatch(world, 0, "a1 b2")
    minibatch(world, 1, "c3", sources=UNKNOWN_SOURCES)  # no checkpoint was lost: nothing is skipped
    world.start()
    with pytest.raises(Diverged, match=r"cannot check.*'t'.*id old.*the broker is shy"):
        begin(world, 0, "q2", Sources({}, "the broker is shy"))
    world.driver.accept_gap = True
    minibatch(world, 0, "a1 b2 c3 d4", "q2", sources=UNKNOWN_SOURCES)
    assert world.out.seen == "a1 b2 c3 d4"
    assert world.opened().sources == {"t": "old"}, "what was known is not forgotten"


def test_a_topic_that_is_not_read_any_more_is_not_asked_for_but_stays_known() -> None:
    world = world_like("transactional", POSITION)
    opening = world.driver.begin("q", 0, {"s/0": 0}, Sources({"s": "first"}, ""))
    world.driver.end(opening, [])
    world.start()
    minibatch(world, 0, "a1", "q2")
    assert world.opened().sources == {"s": "first", "t": "old"}
    with pytest.raises(Diverged, match="'s' was recreated"):
        begin(world, 1, "q2", Sources({"s": "second", "t": "old"}, ""))


def test_a_topic_that_first_comes_in_a_runs_last_minibatch_is_known_when_that_is_complete() -> None:
    world = world_like("transactional", POSITION)
    opening = begin(world, 0, sources=UNKNOWN_SOURCES)
    reports = world.task(opening, "a1 b2")
    world.driver.end(opening, reports, OLD.ids)
    assert world.opened().sources == {"t": "old"}
    world.driver.end(opening, reports, OLD.ids)  # as after a reply that was lost
    world.start()
    with pytest.raises(Diverged, match="'t' was recreated"):
        begin(world, 0, "q2", NEW)
    minibatch(world, 1, "c3")
    assert world.opened().sources == {"t": "old"}
