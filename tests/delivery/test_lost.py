"""A destination that lost what it acknowledged is noticed, and one that lost nothing never is."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.events import Identity
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.protocol import Judgement, OnReject
from support.destinations import (
    Crash,
    Database,
    Logs,
    Post,
    after,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
)
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    POSITION,
    World,
    crash_everywhere,
    events,
    once,
    world_like,
    world_of,
)

KEEPING = ["transactional", "transactional script", "sequenced", "sequenced by opener"]
IDENTITIES = [GIVEN, INCREASING, POSITION, COUNTER]


def forget(world: World) -> None:
    """The destination comes up with nothing."""
    kept = world.out.progress.rows if isinstance(world.out, Database) else world.out.logs
    kept.clear()


def copied(world: World) -> Callable[[], None]:
    """Take a copy of the destination; give what restores it."""
    out = world.out
    name = "progress" if isinstance(out, Database) else "logs"
    kept: dict[Any, Any] = copy.deepcopy(getattr(out, name))
    return lambda: setattr(out, name, copy.deepcopy(kept))


def words(acknowledged: int, has: str) -> str:
    return re.escape(
        f"{acknowledged} is the last output sequence number that the destination acknowledged, but "
        f"it has {has}. It has lost events, or it is another destination. Restore it, or start "
        "under a new name"
    )


# -- noticed


@pytest.mark.rows("O11")
@pytest.mark.parametrize("kind", KEEPING)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_destination_that_lost_all_is_noticed_before_a_further_event(
    kind: str, identity: Identity
) -> None:
    world = world_like(kind, identity)
    world.minibatch(0, "a1 b2")
    forget(world)
    opening = world.open(1)
    found = words(2, "nothing")
    if kind == "sequenced":  # a log is asked when it is found pending, or a number is not beyond it
        world.out.plan(crash_after)
        with pytest.raises(Crash):
            world.task(opening, "a3 b4")
        forget(world)
    with pytest.raises(Diverged, match=found):
        world.task(opening, "a3 b4")
    assert world.out.seen.startswith("a1 b2")


@pytest.mark.parametrize("kind", KEEPING[:2])
def test_a_destination_restored_from_an_older_copy_is_noticed(kind: str) -> None:
    world = world_like(kind)
    world.minibatch(0, "a1 b2")
    restore = copied(world)
    world.minibatch(1, "a3")
    world.minibatch(2, "a4 b5")
    restore()
    with pytest.raises(Diverged, match=words(5, "only 2")) as raised:
        world.minibatch(3, "a6")
    assert "the row" in str(raised.value)
    assert world.out.seen == "a1 b2 a3 a4 b5"
    world.start()
    with pytest.raises(Diverged, match=words(5, "only 2")) as raised:  # now it is asked
        world.minibatch(3, "a6")
    assert "pipeline 'pay', sink 'out'" in str(raised.value)


@pytest.mark.parametrize("kind", KEEPING[:2])
def test_what_was_lost_in_the_middle_of_an_attempt_is_noticed_by_it(kind: str) -> None:
    world = world_like(kind, chunk_rows=1)

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield events("a1 b2")
        restore = copied(world)
        yield events("a3")
        restore()
        yield events("b4")

    opening = world.open(0)
    with pytest.raises(Diverged, match=words(3, "only 2")):
        world.task(opening, interrupted())
    world.start()
    world.minibatch(0, "a1 b2 a3 b4")  # it was not complete: what was lost of it comes again
    assert world.out.seen == "a1 b2 a3 a3 b4"


@pytest.mark.parametrize("kind", KEEPING[:2])
def test_an_attempt_that_asks_again_compares_with_what_it_was_told(kind: str) -> None:
    world = world_like(kind, chunk_rows=1)

    def forgets(act: Callable[[], Any]) -> None:
        forget(world)
        lost_on_the_way(act)

    world.out.plan(fine, fine, forgets)
    opening = world.open(0)
    with pytest.raises(Diverged, match=words(2, "nothing")):
        world.task(opening, "a1 b2 a3")


def test_what_a_take_over_was_told_is_what_has_to_stay() -> None:
    world = world_of(Database(), chunk_rows=1)
    opening = world.open(0)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3")
    world.out.plan(after(lambda: forget(world)))
    with pytest.raises(Diverged, match=words(2, "nothing")):
        world.task(opening, "a1 b2 a3")


def test_a_replay_that_only_suppressed_still_tells_what_was_acknowledged() -> None:
    world = world_of(Database())
    opening = world.open(0)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2")
    world.driver.end(opening, world.task(opening, "a1 b2"))
    forget(world)
    with pytest.raises(Diverged, match=words(2, "nothing")):
        world.minibatch(1, "a3")


@pytest.mark.parametrize("kind", KEEPING)
def test_it_is_noticed_when_a_generation_is_closed(kind: str) -> None:
    world = world_like(kind)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4")
    forget(world)
    world.start()
    with pytest.raises(Diverged, match=words(2, "nothing")):
        world.open(0, "another query")


def test_it_is_noticed_when_a_complete_minibatch_grows() -> None:
    world = world_of(Database(), POSITION)
    world.minibatch(0, "a1 b2")
    forget(world)
    world.start()
    opening = world.open(0)
    with pytest.raises(Diverged, match=words(2, "nothing")):
        world.task(opening, "a1 b2 a3")


# -- and nothing else is


@pytest.mark.parametrize("kind", KEEPING)
@pytest.mark.parametrize(
    ("identity", "lose"), [(GIVEN, False), (GIVEN, True), (POSITION, True), (COUNTER, False)]
)
def test_no_crash_and_no_lost_checkpoint_looks_like_a_loss(
    kind: str, identity: Identity, lose: bool
) -> None:
    texts = ["a1 b2 d3", "a4 d5", "d6 b7"]

    def make() -> World:
        world = world_like(kind, identity, chunk_rows=2)
        world.out.refuses.update({"d3", "d5", "d6"})
        return world

    def act(world: World) -> None:
        for batch, text in enumerate(texts):
            world.minibatch(batch, text)

    for what, world in crash_everywhere(make, act):
        at = world.opened().minibatch.batch if list(world.store.memory.scan("open", "")) else 0
        world.start()
        if lose:
            world.minibatch(0, " ".join(texts), "another query")
            world.minibatch(1, "a8", "another query")
        else:
            for batch in range(at, 3):
                world.minibatch(batch, texts[batch])
            world.minibatch(3, "a8")
        assert once(world.out.seen) == "a1 b2 a4 b7 a8", what
        assert sorted(world.parked()) == ["d3 rejected", "d5 rejected", "d6 rejected"], what


@pytest.mark.parametrize("kind", KEEPING)
def test_a_partition_whose_events_were_all_parked_has_nothing_to_lose(kind: str) -> None:
    world = world_like(kind)
    world.out.refuses.update({"d1", "d2", "d4", "d5"})
    world.minibatch(0, "d1 d2")
    world.minibatch(1, "a3 d4")
    world.minibatch(2, "d5")
    world.minibatch(3, "a6")
    assert world.out.seen == "a3 a6"


@pytest.mark.parametrize("decision", ["delivered", "resend", "discard"])
@pytest.mark.parametrize("kind", KEEPING)
def test_what_a_person_resolved_is_not_looked_for(kind: str, decision: str) -> None:
    world = world_like(kind, on_reject=OnReject.BLOCK, chunk_rows=1)
    world.out.refuses.add("a2")
    world.minibatch(0, "a1 a2 b3 a4")
    world.out.refuses.clear()
    state = "discarded" if decision == "discard" else decision
    world.resolve("a2", state)
    world.minibatch(1, "b5")
    world.minibatch(2, "a6 b7")
    sent = "a1 a4 a6" if decision != "resend" else "a1 a2 a4 a6"
    assert [name for name in world.out.seen.split() if name[0] == "a"] == sent.split()


def test_partitions_that_go_there_and_back_begin_anew() -> None:
    world = World(GIVEN, partition="0of1", partitions=1)
    world.add(Database(), chunk_rows=1)
    world.start()
    world.minibatch(0, "a1 a2 a3")
    for partitions in (2, 1):
        rescale_pipeline(world.client, partitions)
    world.start()
    opening = world.open(1)
    world.out.plan(crash_after)  # its row is below the one from before, and rightly so
    with pytest.raises(Crash):
        world.task(opening, "a4 a5 a6")
    world.out.plan(fine, lost)
    world.driver.end(opening, world.task(opening, "a4 a5 a6"))
    world.minibatch(2, "a7")
    assert world.out.seen == "a1 a2 a3 a4 a5 a6 a7"


@pytest.mark.parametrize("decision", list(Judgement))
def test_a_divergence_that_was_judged_keeps_its_numbers(decision: Judgement) -> None:
    world = world_of(Database(), chunk_rows=1)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4 a5")
    with pytest.raises(Diverged, match="as-recorded"):
        world.task(opening, "a3=9 b4 a5")
    judge_minibatch(world.client, world.opened().minibatch, decision, "ann", "looked")
    world.start()
    world.minibatch(1, "a3=9 b4 a5")
    world.minibatch(2, "a6")
    again = " a3 b4" if decision is Judgement.AS_REPLAYED else ""
    assert world.out.seen == f"a1 b2 a3 b4{again} a5 a6"


def test_a_sink_that_comes_later_begins_with_nothing() -> None:
    world = world_of(Database())
    world.minibatch(0, "a1 b2")
    world.add(Database(), "other")
    world.add(Logs(), "log")
    world.add(Post(), "post")
    world.start()
    world.minibatch(1, "a3")
    world.minibatch(2, "b4")
    assert world.out.seen == "a1 b2 a3 b4"
    assert world.destinations["other"].seen == "a3 b4"


def test_a_complete_minibatch_that_grows_goes_on() -> None:
    world = world_of(Database(), POSITION)
    world.out.refuses.add("b2")
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2 a3")
    world.minibatch(1, "a4")
    assert world.out.seen == "a1 a3 a4"


def test_a_batch_job_that_is_run_again_has_its_own_numbers() -> None:
    world = world_of(Database(), chunk_rows=1)
    opening = world.open(0, "batch")
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a1 b2 a3")
    world.start()
    opening = world.open(0, "batch")
    world.driver.end(opening, world.task(opening, "a1 b2 a3"))
    world.driver.finish(opening)
    assert world.out.seen == "a1 b2 a3"
