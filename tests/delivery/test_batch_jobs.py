"""A finished batch job leaves one permanent row: a re-run is only counted and compared."""

from __future__ import annotations

import pytest

from semel.delivery import Assignment
from semel.delivery.strategies.replay_check import count_partition
from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import Attempt, Identity
from semel.ledger import Finished, Ledger
from semel.ledger.verbs.batch_jobs import combined
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement
from support.destinations import Crash, Post, crash_after, fine
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    POSITION,
    World,
    crash_everywhere,
    events,
    once,
    reply_lost,
    world_like,
    world_of,
)

IDENTITIES: dict[str, Identity] = {
    "position": POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}
TEXT = "a1 b2 a3 c4"


def run(world: World, text: str = TEXT) -> None:
    """Run the batch job once, as a scheduler would, also again."""
    world.start()
    if world.driver.finished() is not None:
        world.driver.compare(world.task(world.driver.recount(), text))
        return
    opening = world.driver.begin("batch", 0)
    world.driver.end(opening, [] if opening.settled else world.task(opening, text))
    world.driver.finish(opening)


def tables(world: World) -> set[str]:
    names = "pipelines owners open streams events sequences parked heads journal"
    return {name for name in names.split() if world.store.size(name)[0]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_re_run_with_the_same_content_does_nothing(kind: str, identity: str) -> None:
    world = world_like(kind, IDENTITIES[identity])
    for _ in range(3):
        run(world)
    assert once(world.out.seen) == once(TEXT)
    assert tables(world) == {"pipelines", "owners"}
    kept = world.driver.finished()
    assert kept is not None
    assert kept["out"].count == 4


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("text", ["a1 b2 a3 c4 c5", "a1 b2 a3", "a1 b2 a3 c4=9"])
def test_a_re_run_with_other_content_is_refused(identity: str, text: str) -> None:
    world = world_like("opaque", IDENTITIES[identity])
    run(world)
    with pytest.raises(Diverged, match=r"is finished with 4 events and digest .* this run has"):
        run(world, text)
    assert once(world.out.seen) == once(TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_at_any_call_leaves_what_the_next_run_finishes(kind: str) -> None:
    def make() -> World:
        return world_like(kind, GIVEN, chunk_rows=2, span_chunks=1)

    for what, world in crash_everywhere(make, run):
        for _ in range(2):
            run(world)
        seen = world.out.seen.split()
        held = {each.split()[0] for each in world.parked()}
        assert len(seen) == len(set(seen)), what
        assert set(seen) | held == set(TEXT.split()), what
        kept = world.driver.finished()
        assert kept is not None, what
        assert kept["out"].count == 4, what
        assert tables(world) <= {"pipelines", "owners", "parked", "heads"}, what


def test_finishing_may_be_repeated_and_its_reply_may_be_lost() -> None:
    world = world_like("opaque", GIVEN)
    world.start()
    opening = world.driver.begin("batch", 0)
    world.driver.end(opening, world.task(opening, TEXT))
    world.store.script.append(reply_lost)
    first = world.driver.finish(opening)
    assert world.driver.finish(opening) == first == world.driver.finished()


def test_what_is_parked_stays_and_can_still_be_resolved() -> None:
    world = world_of(Post(), GIVEN)
    opening = world.open(0, "batch")
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, TEXT)
    run(world)
    assert world.parked() == ["b2 held"]
    assert world.heads() == ["b"]
    world.resolve("b2", "resend")
    world.driver.drain(waits=True)
    assert world.out.seen.split().count("b2") == 2
    assert world.heads() == []
    run(world)


def test_a_run_from_before_cannot_open_finished_work_again() -> None:
    world = world_like("opaque", POSITION)
    old = world.start()
    run(world)
    with pytest.raises(ConfigurationError, match="is a finished batch"):
        old.begin("batch", 0)
    assert once(world.out.seen) == once(TEXT)


def test_a_minibatch_that_is_not_complete_is_not_finished() -> None:
    world = world_like("opaque", GIVEN)
    opening = world.open(0, "batch")
    world.task(opening, TEXT)
    with pytest.raises(Fenced, match="it is not complete"):
        world.driver.finish(opening)


def test_a_finished_batch_is_still_compared_with_its_description() -> None:
    world = world_like("opaque", GIVEN)
    run(world)
    world.identity = INCREASING
    with pytest.raises(ConfigurationError, match="identity: increasing was False and is True"):
        run(world)


def test_a_sink_that_had_no_part_in_it_is_refused() -> None:
    world = world_like("opaque", GIVEN)
    run(world)
    world.add(Post(), "mail")
    with pytest.raises(ConfigurationError, match="sink 'mail' had no part in it"):
        run(world)


def test_an_empty_batch_is_finished_too() -> None:
    world = world_like("opaque", GIVEN)
    for _ in range(2):
        run(world, "")
    assert world.driver.finished() == {"out": combined([])}
    with pytest.raises(Diverged, match="with 0 events"):
        run(world)


@pytest.mark.parametrize("decision", Judgement)
def test_a_batch_that_was_judged_is_not_compared(decision: Judgement) -> None:
    world = world_like("transactional", GIVEN, chunk_rows=1)
    opening = world.open(0, "batch")
    world.out.plan(fine, crash_after)
    with pytest.raises(Crash):
        world.task(opening, TEXT)
    judge_minibatch(world.client, world.opened().minibatch, decision, "ann", "looked")
    run(world, "a1=9 b2 a3 c4")
    kept = world.driver.finished()
    assert kept is not None
    assert kept["out"].digest is None
    run(world, TEXT)


def test_a_complete_batch_that_was_settled_keeps_what_is_recorded() -> None:
    world = world_like("transactional", COUNTER)
    reports = world.minibatch(0, TEXT, "batch")
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "looked")
    run(world, "a1=9")
    assert world.driver.finished() == {"out": told(reports)}


def told(reports: list[Report]) -> Finished:
    return combined((each.partition, each.count, each.digest) for each in reports)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_counting_tells_what_delivering_told_however_batches_are_cut(identity: str) -> None:
    chosen = IDENTITIES[identity]
    world = world_like("opaque", chosen)
    world.add(Post(), "mail")
    world.start()
    opening = world.open(0, "batch")
    whole = world.task(opening, TEXT)
    looked, scanned = world.store.reads, len(world.store.scans)
    assignment = Assignment(
        "pay",
        world.driver.recount(),
        chosen,
        world.partition,
        Attempt(1, 9),
        world.process("x"),
        0,
    )
    batches = [events("a1"), events("b2 a3"), events("c4")]
    again = count_partition(assignment, world.sinks, batches)
    assert [(each.sink, each.count, each.digest) for each in again] == [
        (each.sink, each.count, each.digest) for each in whole
    ]
    assert count_partition(assignment, world.sinks, []) == []
    assert (world.store.reads, len(world.store.scans)) == (looked, scanned)


def test_the_order_of_partitions_does_not_matter() -> None:
    parts = [("0", 2, "x"), ("1", 3, "y")]
    assert combined(parts) == combined(reversed(parts))
    assert combined(parts) != combined([("0", 3, "x"), ("1", 2, "y")])
    assert combined(parts).count == 5


def test_looking_for_an_event_of_a_finished_batch_says_what_is_known() -> None:
    world = world_like("opaque", GIVEN)
    run(world)
    [trace] = Ledger(world.store).find("pay", "a", 1)
    assert trace.state == "handled"
    assert "finished with 4 events, and each of them was delivered or is parked" in str(trace.why)
    assert "does not keep whether this one was among them" in str(trace.why)
    summary = Ledger(world.store).summary("pay")
    assert summary.finished
    assert summary.sinks["out"].delivered == 4
