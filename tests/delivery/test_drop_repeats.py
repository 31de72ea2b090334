"""`drop_repeats=True`: ids that the ledger remembers are dropped, counted, logged and shown."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from semel.delivery import MinibatchCompleted, PipelineSpec
from semel.errors import ConfigurationError, Diverged
from semel.events import Identity
from semel.guarantees import explain
from semel.ledger.verbs.pruning import REMEMBER_S
from support.destinations import Crash, Post, crash, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    POSITION,
    World,
    crash_everywhere,
    once,
    world_like,
    world_of,
)

BY_ID = {"given": GIVEN, "increasing": INCREASING}


class Counts:
    """Adds up the repeats of complete minibatches."""

    def __init__(self) -> None:
        self.repeats = self.skipped = 0

    def observe(self, event: object) -> None:
        if isinstance(event, MinibatchCompleted):
            self.repeats += sum(each.repeats for each in event.figures.values())
            self.skipped += sum(each.skipped for each in event.figures.values()) + event.skipped


def dropping(kind: str, identity: Identity, **settings: Any) -> tuple[World, Counts]:
    world = world_like(kind, identity, **settings)
    counts = Counts()
    world.observer = counts
    start(world)
    return world, counts


def start(world: World) -> None:
    world.start().drop_repeats = True


def minibatch(world: World, batch: int, text: str, query: str = "q") -> None:
    opening = world.open(batch, query)
    reports = world.task(opening, text, drop_repeats=True)
    repeats = {"out": len(text.split())} if not reports else {}
    world.driver.end(opening, reports, repeats=repeats)


@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_came_in_an_earlier_minibatch_is_dropped_and_counted(
    kind: str, identity: Identity
) -> None:
    world, counts = dropping(kind, identity)
    minibatch(world, 0, "a1 b2")
    minibatch(world, 1, "a1 b2 a3 b4")
    minibatch(world, 2, "a1 a3")
    minibatch(world, 3, "a3 b4 c5")
    assert once(world.out.seen) == "a1 b2 a3 b4 c5"
    assert (counts.repeats, counts.skipped) == (6, 0)


@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
@pytest.mark.parametrize("kind", ["opaque", "repeatable", "probing", "transactional", "sequenced"])
def test_after_a_crash_at_any_call_the_same_events_are_dropped(
    kind: str, identity: Identity
) -> None:
    def make() -> World:
        world, _ = dropping(kind, identity, chunk_rows=1, span_chunks=1)
        minibatch(world, 0, "a1 b2")
        return world

    def act(world: World) -> None:
        start(world)
        minibatch(world, 1, "a1 b2 a3 b4 c5")

    for what, world in crash_everywhere(make, act):
        act(world)
        minibatch(world, 2, "a3 c5 c6")
        held = {name.split()[0] for name in world.parked() if name.endswith(("held", "waiting"))}
        seen = once(world.out.seen).split()
        assert len(seen) == len(set(seen)), what
        assert {*seen, *held} == {"a1", "b2", "a3", "b4", "c5", "c6"}, what


def test_a_late_event_is_dropped_too_if_ids_increase_and_delivered_if_they_do_not() -> None:
    for identity, seen in ((INCREASING, "a1 a5"), (GIVEN, "a1 a5 a3")):
        world, counts = dropping("transactional", identity)
        minibatch(world, 0, "a1 a5")
        minibatch(world, 1, "a3")
        assert world.out.seen == seen
        assert counts.repeats == (identity is INCREASING)


def test_without_it_increasing_ids_stop_the_query_and_the_message_names_it() -> None:
    world = world_of(Post(), INCREASING)
    world.minibatch(0, "a1 a5")
    opening = world.open(1)
    with pytest.raises(Diverged, match="Pass drop_repeats=True to drop what comes after"):
        world.task(opening, "a5")


def test_without_it_nothing_more_is_read_and_with_it_only_the_journal() -> None:
    reads = []
    for drops in (False, True):
        world = world_of(Post(), GIVEN)
        world.minibatch(0, "a1 b2")
        world.driver.drop_repeats = drops
        opening = world.open(1)
        world.store.scans.clear()
        world.task(opening, "a3 b4", drop_repeats=drops)
        reads.append([table for table, _ in world.store.scans])
    assert "journal" not in reads[0]
    assert [table for table in reads[1] if table != "journal"] == reads[0]


def test_a_repeat_of_a_parked_event_is_dropped_and_the_parked_one_stays() -> None:
    world, counts = dropping("opaque", GIVEN)
    world.out.plan(lost)
    minibatch(world, 0, "a1 b2")
    minibatch(world, 1, "a1 b2")
    assert world.parked() == ["a1 held"]
    assert counts.repeats == 2


def test_after_a_lost_checkpoint_a_re_read_is_skipped_and_a_repeat_is_dropped() -> None:
    for identity in BY_ID.values():
        world, counts = dropping("transactional", identity)
        minibatch(world, 0, "a1 b2")
        start(world)
        minibatch(world, 0, "a1 b2 a3", "another")
        assert (counts.repeats, counts.skipped) == (0, 2)
        minibatch(world, 1, "a3 b4", "another")
        assert (counts.repeats, counts.skipped) == (1, 2)
        assert once(world.out.seen) == "a1 b2 a3 b4"


def test_an_id_that_is_no_longer_remembered_is_delivered_again() -> None:
    world, counts = dropping("transactional", GIVEN)
    minibatch(world, 0, "a1 b2")
    world.clock.move(REMEMBER_S + 1)
    for batch in range(1, 101):
        minibatch(world, batch, f"c{batch + 100}")
    minibatch(world, 101, "a1")
    assert world.out.seen.split().count("a1") == 2
    assert counts.repeats == 0


def replayed_when_ids_are_old(*, guarded: bool) -> World:
    """A minibatch drops a repeat and crashes; it runs again when the id is old enough to be
    forgotten, and its begin is one that prunes.
    """
    world, _ = dropping("transactional", GIVEN, chunk_rows=1)
    minibatch(world, 0, "a1 b2")
    for batch in range(1, 99):
        minibatch(world, batch, f"c{batch + 100}")
    opening = world.open(99)
    assert opening.row.serial == 100, "its begin prunes"
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a1 d5 d6", drop_repeats=True)
    world.out.script.clear()
    world.clock.move(REMEMBER_S + 1)
    world.start().drop_repeats = guarded
    minibatch(world, 99, "a1 d5 d6")
    assert {"d5", "d6"} <= set(world.out.seen.split())
    return world


def test_a_replay_drops_what_the_first_attempt_dropped_although_it_is_older_now() -> None:
    world = replayed_when_ids_are_old(guarded=True)
    assert world.out.seen.split().count("a1") == 1


def test_a_replay_that_prunes_first_would_deliver_it() -> None:
    world = replayed_when_ids_are_old(guarded=False)
    assert world.out.seen.split().count("a1") == 2


def test_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(Post(), GIVEN)
    with caplog.at_level(logging.WARNING, logger="semel"):
        minibatch(world, 0, "a1 b2")
        minibatch(world, 1, "a1 b3")
    assert "events dropped, because their ids came in an earlier minibatch" in caplog.text
    assert "(drop_repeats=True): 1" in caplog.text


def test_it_is_in_the_figures_of_the_run() -> None:
    world = world_of(Post(), GIVEN)
    minibatch(world, 0, "a1 b2")
    minibatch(world, 1, "a1 b2 a3")
    figures = world.driver.recorder.figures(1)
    assert figures.repeats == {"out": 2}
    assert figures.to_json()["repeats_dropped"] == {"out": 2}


@pytest.mark.parametrize("identity", [POSITION, COUNTER], ids=["position", "counter"])
def test_it_is_refused_where_no_ids_are_remembered(identity: Identity) -> None:
    with pytest.raises(ConfigurationError, match="drop_repeats=True needs ids"):
        PipelineSpec("pay", (Post().sink("out"),), identity, drop_repeats=True)


@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
def test_explain_says_what_is_dropped(identity: Identity) -> None:
    sinks = (Post().sink("out"),)
    told = str(explain(PipelineSpec("pay", sinks, identity, drop_repeats=True)))
    assert "is dropped and counted" in " ".join(told.split())
    assert ("a late event too" in " ".join(told.split())) == (identity is INCREASING)
    assert "dropped and counted" not in " ".join(
        str(explain(PipelineSpec("pay", sinks, identity))).split()
    )


NOT_PROMISED = [
    (POSITION, False, "in two minibatches creates two events: drop them with Spark's"),
    (COUNTER, False, "in two minibatches creates two events: drop them with Spark's"),
    (GIVEN, False, "under the same id in two minibatches creates two events: pass drop_repeats"),
    (INCREASING, False, "stops the pipeline (Diverged), because ids were declared increasing"),
    (GIVEN, True, "under another id, or after its id is forgotten (7 days), creates two events"),
    (INCREASING, True, "again under a greater id creates two events"),
]


@pytest.mark.parametrize(("identity", "drops", "words"), NOT_PROMISED)
def test_explain_says_which_repeats_are_still_two_events(
    identity: Identity, drops: bool, words: str
) -> None:
    spec = PipelineSpec("pay", (Post().sink("out"),), identity, drop_repeats=drops)
    assert words in explain(spec).not_promised[0]
