"""One attempt's hold on one partition: claim, take over, begin, settle, merge."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from semel.errors import ConfigurationError, Fenced
from semel.events import EntityIds, IdSet
from semel.events.event import Attempt
from semel.ledger.rows import SpanRow
from semel.ledger.store.commit import Absent, Put
from semel.ledger.verbs.open import Minibatches, OpenMinibatch
from semel.ledger.verbs.parked import HeadMoved, plan_parking
from semel.ledger.verbs.partitions import MERGE_EVERY, MERGED_BYTES_MAX, PartitionClaim
from semel.protocol import Found, PartitionState, SpanState
from support.ledger.one_pipeline import (
    SINK,
    LedgerWorld,
    claim_of,
    parked,
    report,
    request,
    settled,
    span,
    stream_row,
)


@pytest.fixture
def minibatches(world: LedgerWorld) -> Minibatches:
    return world.begin()


@pytest.fixture
def opening(minibatches: Minibatches) -> OpenMinibatch:
    return minibatches.open(request(0))


def spans(world: LedgerWorld) -> list[SpanRow]:
    rows = world.store.contents().items()
    return [SpanRow.load(text) for at, text in rows if at.table == "events"]


# --- claim ----------------------------------------------------------------------------------------


@pytest.mark.rows("S6", "S7", "S8", "A4")
def test_a_new_partition_costs_one_commit_that_is_its_look_up_too_and_no_read(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    world.store.forget()
    assert claim_of(world, opening, 1).claim(span(0, 0, 3)) is Found.NEW
    [(requirements, updates)] = world.store.asked
    asked = [each for each in requirements if each.key.table == "streams"]
    assert [type(each) for each in asked] == [Absent]
    assert {each.key.table for each in updates if isinstance(each, Put)} == {"streams", "events"}
    assert not world.store.reads
    assert not world.store.scans


@pytest.mark.rows("A2", "A4")
def test_a_claim_stands_as_pending_with_who_has_it_and_what_it_intends(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 4, spark_task=2).claim(span(0, 0, 3), location="s3://part-0")
    row = stream_row(world, opening)
    assert (row.state, row.attempt, row.task) == (PartitionState.PENDING, Attempt(1, 4), 2)
    assert (row.location, row.taken, row.waited) == ("s3://part-0", False, True)
    assert spans(world) == [span(0, 0, 3)]


@pytest.mark.rows("S7", "A8", "A19")
def test_a_partition_seen_before_is_taken_over_with_one_look_at_its_row(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    first = claim_of(world, opening, 1)
    first.claim(span(0, 0, 3))
    world.store.forget()
    second = claim_of(world, opening, 2)
    assert second.claim(span(0, 0, 3, attempt=Attempt(1, 2))) is Found.PENDING
    assert world.store.looks("streams") == 1
    assert world.store.looks("events") == 0
    assert second.predecessor == first.row
    assert stream_row(world, opening).attempt == Attempt(1, 2)
    assert second.spans() == [span(0, 0, 3)]


@pytest.mark.rows("A10")
def test_a_complete_partition_is_found_complete_and_stays_untouched(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 1).claim(span(0, 0, 3))
    minibatches.complete(opening, [report()], [SINK])
    again = world.begin("n2").open(request(0))
    before = world.store.contents()
    hand = claim_of(world, again, 1)
    assert hand.claim(span(0, 0, 3)) is Found.COMPLETE
    assert hand.row is not None
    assert (hand.row.count, hand.row.digest) == (3, "d")
    assert world.store.contents() == before


@pytest.mark.rows("S20")
def test_another_sink_partition_or_pipeline_is_new_on_its_own(world: LedgerWorld) -> None:
    opening = world.begin().open(request(0, SINK, "mail"))
    other = LedgerWorld(world.path, "pay/charge")
    theirs = other.begin().open(request(0))
    assert claim_of(world, opening, 1).claim(None) is Found.NEW
    assert claim_of(world, opening, 1, sink="mail").claim(None) is Found.NEW
    assert claim_of(world, opening, 1, partition="1").claim(None) is Found.NEW
    assert claim_of(other, theirs, 1).claim(None) is Found.NEW
    assert claim_of(world, opening, 2).claim(None) is Found.PENDING
    other.close()


@pytest.mark.rows("S5")
def test_a_new_run_finds_the_partition_under_the_same_ids(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 7).claim(span(0, 0, 3))
    again = world.begin("n2").open(request(0))
    hand = claim_of(world, again, 0, spark_task=5)
    assert hand.claim(None) is Found.PENDING
    assert hand.spans() == [span(0, 0, 3)]
    assert stream_row(world, again).attempt == Attempt(2, 0)


# --- taking over ----------------------------------------------------------------------------------


@pytest.mark.rows("S19", "A17")
def test_a_zombie_cannot_settle_what_a_later_attempt_took_over(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    zombie = claim_of(world, opening, 1)
    zombie.claim(span(0, 0, 3))
    claim_of(world, opening, 2).claim(None)
    before = world.store.contents()
    acts: list[Callable[[], None]] = [
        lambda: zombie.write(settled=settled(span(0, 0, 3))),
        lambda: zombie.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6)),
        lambda: zombie.write(withdrawn=True),
        zombie.check,
    ]
    for act in acts:
        with pytest.raises(Fenced, match="another attempt has it"):
            act()
    assert world.store.contents() == before


@pytest.mark.rows("S19", "A17")
def test_an_attempt_that_is_replaced_while_it_begins_is_fenced(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    other = world.another()
    first = claim_of(world, opening, 1)
    first.claim(span(0, 0, 3))
    world.store.let_in(lambda: claim_of(other, opening, 2).claim(None))
    with pytest.raises(Fenced, match="another attempt has it"):
        first.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
    assert spans(world) == [span(0, 0, 3)]


@pytest.mark.rows("S19", "A17")
def test_an_earlier_attempt_cannot_take_from_a_later_one(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 2).claim(span(0, 0, 3))
    with pytest.raises(Fenced, match=r"attempt 1\.2 has it"):
        claim_of(world, opening, 1).claim(None)
    assert stream_row(world, opening).attempt == Attempt(1, 2)


@pytest.mark.rows("S19")
def test_a_take_over_that_is_overtaken_by_a_later_one_is_fenced(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    other = world.another()
    claim_of(world, opening, 1).claim(span(0, 0, 3))
    world.store.let_in(lambda: None)
    world.store.let_in(lambda: claim_of(other, opening, 3).claim(None))
    with pytest.raises(Fenced, match=r"attempt 1\.3 has it"):
        claim_of(world, opening, 2).claim(None)
    assert stream_row(world, opening).attempt == Attempt(1, 3)


def test_two_tasks_of_one_run_are_refused_with_the_reason(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 1, spark_task=0).claim(span(0, 0, 3))
    before = world.store.contents()
    with pytest.raises(ConfigurationError, match=r"partition 0.*two tasks.*\(0 and 1\)"):
        claim_of(world, opening, 2, spark_task=1).claim(None)
    assert world.store.contents() == before


def test_a_new_run_may_have_the_partition_in_another_task(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 1, spark_task=0).claim(span(0, 0, 3))
    again = world.begin("n2").open(request(0))
    assert claim_of(world, again, 1, spark_task=1).claim(None) is Found.PENDING


def test_a_take_over_says_that_it_has_not_waited_until_it_goes_on(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 1).claim(None)
    second = claim_of(world, opening, 2)
    second.claim(None)
    row = stream_row(world, opening)
    assert (row.taken, row.waited) == (True, False)
    assert second.spans() == []
    second.write(intended=span(0, 0, 3))
    row = stream_row(world, opening)
    assert (row.taken, row.waited) == (True, True)
    second.check()


# --- begin and settle -----------------------------------------------------------------------------


@pytest.mark.rows("S9", "S11")
def test_the_ids_of_a_settled_span_stand_in_the_set_of_their_entity(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    first = span(0, 0, 3, entity="a", ids=[7, 8, 9])
    second = span(1, 3, 5, entity="b", ids=["x", "y"])
    hand.claim(first)
    hand.write(settled=settled(first), intended=second)
    assert spans(world) == [settled(first), second]
    assert spans(world)[0].ids == (EntityIds.of({"a": IdSet.of([7, 8, 9])}),)
    hand.write(settled=settled(second))
    assert [row.state for row in spans(world)] == [SpanState.SETTLED] * 2


@pytest.mark.rows("S11")
def test_settling_a_span_and_beginning_the_next_is_one_commit(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    world.store.forget()
    hand.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
    assert len(world.store.asked) == 1
    assert [row.state for row in spans(world)] == [SpanState.SETTLED, SpanState.INTENDED]


def test_a_withdrawn_span_leaves_no_trace(world: LedgerWorld, opening: OpenMinibatch) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    hand.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
    hand.write(withdrawn=True)
    assert spans(world) == [settled(span(0, 0, 3))]
    assert hand.next_span == 1
    hand.write(intended=span(1, 3, 6))
    assert spans(world) == [settled(span(0, 0, 3)), span(1, 3, 6)]


def test_the_first_span_can_be_withdrawn_and_begun_anew(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    hand.write(withdrawn=True)
    assert (spans(world), hand.next_span) == ([], 0)
    hand.write(intended=span(0, 0, 2))
    assert spans(world) == [span(0, 0, 2)]


def test_a_check_gives_a_new_lease(world: LedgerWorld, opening: OpenMinibatch) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    asked_at = hand.asked_at
    world.clock.sleep(9.0)
    hand.check()
    assert hand.asked_at == asked_at + 9.0


def test_a_lease_counts_from_before_the_ledger_was_asked(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    before = world.clock.monotonic()
    world.store.lose_requests(3)
    hand.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
    assert world.clock.monotonic() > before
    assert hand.asked_at == before


# --- heads ----------------------------------------------------------------------------------------


def test_a_claim_that_parks_behind_a_moved_head_writes_nothing(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    other = world.another()
    theirs = claim_of(other, opening, 1, partition="1")
    theirs.claim(span(0, 0, 3))
    parks = plan_parking("pay", SINK, [parked(1)], {})
    theirs.write(settled=settled(span(0, 0, 3)), parks=parks)
    before = world.store.contents()
    late = plan_parking("pay", SINK, [parked(2)], {})
    with pytest.raises(HeadMoved):
        claim_of(world, opening, 1).claim(span(0, 0, 3), late)
    assert world.store.contents() == before


def test_a_moved_head_is_told_from_a_lost_partition(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    parks = plan_parking("pay", SINK, [parked(1)], {})
    hand.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6), parks=parks)
    stale = plan_parking("pay", SINK, [parked(4)], {})
    with pytest.raises(HeadMoved):
        hand.write(settled=settled(span(1, 3, 6)), parks=stale)
    assert spans(world)[-1] == span(1, 3, 6)
    claim_of(world, opening, 2).claim(None)
    with pytest.raises(Fenced):
        hand.write(settled=settled(span(1, 3, 6)), parks=stale)


# --- merging --------------------------------------------------------------------------------------


def settle_many(
    hand: PartitionClaim, count: int, ids_of: dict[int, list[str]] | None = None
) -> None:
    """Settle `count` spans of two events, each with the next intent."""
    made = [
        span(at, 2 * at, 2 * at + 2, ids=None if ids_of is None else ids_of[at])
        for at in range(count)
    ]
    hand.claim(made[0])
    for before, after in pairwise(made):
        hand.write(settled=settled(before), intended=after)
    hand.write(settled=settled(made[-1]))


@pytest.mark.rows("S9")
def test_settled_neighbours_become_one_row_that_tells_the_same(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    settle_many(hand, 100)
    rows = spans(world)
    assert len(rows) <= MERGE_EVERY + 1
    assert [row.start for row in rows[1:]] == [row.stop for row in rows[:-1]]
    assert (rows[0].start, rows[-1].stop) == (0, 200)
    assert (rows[0].osn[0], rows[-1].osn[1]) == (1, 200)
    ids = EntityIds.EMPTY
    for row in rows:
        assert row.running == f"digest-{row.stop}"
        for each in row.ids:
            assert ids.isdisjoint(each)
            ids |= each
    assert ids == EntityIds.of({"e": IdSet.of(range(200))})


def test_whoever_takes_over_goes_on_behind_what_was_merged(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    first = claim_of(world, opening, 1)
    settle_many(first, 40)
    second = claim_of(world, opening, 2)
    second.claim(None)
    found = second.spans()
    assert second.next_span == 40
    second.write(intended=span(40, 80, 82))
    assert spans(world) == [*found, span(40, 80, 82)]
    for at in range(40, 80):
        done = span(at, 2 * at, 2 * at + 2)
        second.write(settled=settled(done), intended=span(at + 1, 2 * at + 2, 2 * at + 4))
    assert len(spans(world)) <= MERGE_EVERY + 2
    assert spans(world)[0].start == 0
    assert spans(world)[-2].stop == 160


@pytest.mark.rows("S9")
@pytest.mark.parametrize(("id_bytes", "rows_max"), [(20, 17), (2_500, 24), (14_000, 60)])
def test_what_is_merged_stays_within_64_kib(
    world: LedgerWorld, opening: OpenMinibatch, id_bytes: int, rows_max: int
) -> None:
    noise = random.Random(7)
    ids = {
        at: [f"{at:05}-{noise.randbytes(id_bytes * 3 // 4).hex()}"[:id_bytes] for _ in "ab"]
        for at in range(80)
    }
    settle_many(claim_of(world, opening, 1), 80, ids)
    texts = [text for at, text in world.store.contents().items() if at.table == "events"]
    assert max(len(text.encode()) for text in texts) <= MERGED_BYTES_MAX
    assert "z" not in {name for text in texts for name in json.loads(text)}
    assert len(texts) <= rows_max
    kept = EntityIds.EMPTY
    for row in spans(world):
        for each in row.ids:
            kept |= each
    assert len(kept) == 160


def test_a_withdrawal_that_comes_with_a_merge_goes_on_behind_the_merged_row(
    world: LedgerWorld, opening: OpenMinibatch
) -> None:
    hand = claim_of(world, opening, 1)
    settle_many(hand, MERGE_EVERY)
    hand.write(intended=span(MERGE_EVERY, 2 * MERGE_EVERY, 2 * MERGE_EVERY + 2))
    hand.write(withdrawn=True)
    number = hand.next_span
    hand.write(intended=span(number, 2 * MERGE_EVERY, 2 * MERGE_EVERY + 2))
    rows = spans(world)
    assert rows[-1].state is SpanState.INTENDED
    assert (rows[0].start, rows[-2].stop) == (0, 2 * MERGE_EVERY)


# --- reopen ---------------------------------------------------------------------------------------


@pytest.fixture
def found_complete(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> PartitionClaim:
    """A complete partition of three events, found again by the next run."""
    claim_of(world, opening, 1).claim(span(0, 0, 3), location="there")
    minibatches.complete(opening, [report()], [SINK])
    hand = claim_of(world, world.begin("n2").open(request(0)), 1)
    assert hand.claim(None) is Found.COMPLETE
    return hand


@pytest.mark.rows("A20")
def test_events_beyond_a_complete_range_put_it_back_to_pending(
    world: LedgerWorld, found_complete: PartitionClaim
) -> None:
    hand = found_complete
    hand.reopen(3)
    row = stream_row(world, hand.opening)
    assert (row.state, row.done, row.attempt) == (PartitionState.PENDING, 3, Attempt(2, 1))
    hand.spans()
    hand.write(intended=span(1, 3, 6))
    assert spans(world)[-1] == span(1, 3, 6)


def test_only_one_attempt_reopens(world: LedgerWorld, found_complete: PartitionClaim) -> None:
    hand = found_complete
    second = claim_of(world, hand.opening, 2)
    assert second.claim(None) is Found.COMPLETE
    second.reopen(3)
    before = world.store.contents()
    with pytest.raises(Fenced, match="put it back to pending first"):
        hand.reopen(3)
    assert world.store.contents() == before


def test_a_reopened_partition_is_taken_over_like_any_other(
    world: LedgerWorld, found_complete: PartitionClaim
) -> None:
    found_complete.reopen(3)
    later = claim_of(world, found_complete.opening, 2)
    assert later.claim(None) is Found.PENDING
    assert later.row is not None
    assert later.row.done == 3
    assert later.row == replace(later.row, attempt=Attempt(2, 2))
