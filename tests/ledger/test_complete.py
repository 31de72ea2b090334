"""Completing a minibatch: once, from the attempts that hold its partitions, in one commit."""

from __future__ import annotations

import pytest

from semel.errors import Diverged, Fenced
from semel.ledger.journal import COUNTERS, Journal, JournalState
from semel.ledger.keys import make_key
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Put
from semel.ledger.verbs.complete import PositionMark, SequenceRow, Standing
from semel.ledger.verbs.open import Minibatches, OpenMinibatch
from semel.protocol import Found, PartitionState
from support.ledger.one_pipeline import (
    SINK,
    LedgerWorld,
    claim_of,
    report,
    request,
    span,
    stream_row,
)


@pytest.fixture
def minibatches(world: LedgerWorld) -> Minibatches:
    return world.begin()


@pytest.fixture
def opening(world: LedgerWorld, minibatches: Minibatches) -> OpenMinibatch:
    """An open minibatch with one partition that attempt 1.1 holds."""
    opened = minibatches.open(request(0))
    claim_of(world, opened, 1).claim(span(0, 0, 3), location="s3://part-0")
    return opened


def sequence(world: LedgerWorld, partition: str = "0", sink: str = SINK) -> SequenceRow:
    return SequenceRow.load(world.store.contents()[make_key("sequences", "pay", sink, partition)])


@pytest.mark.rows("A2", "A5", "A7", "O7")
def test_complete_advances_the_partition_and_removes_its_location_in_one_commit(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    assert stream_row(world, opening).location == "s3://part-0"
    world.store.forget()
    minibatches.complete(opening, [report(mark=PositionMark(upto=41))], [SINK])
    row = stream_row(world, opening)
    assert (row.state, row.location) == (PartitionState.COMPLETE, None)
    assert (row.count, row.digest) == (3, "d")
    assert (row.first, row.last) == (["e", 0], ["e", 2])
    assert sequence(world).after == Standing(3, 0, PositionMark(upto=41))
    assert len(world.store.asked) == 1
    assert OpenRow.load(world.store.contents()[make_key("open", "pay")]).complete


@pytest.mark.rows("O15")
def test_watermarks_and_counters_are_written_in_the_commit_that_completes(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    journal = Journal(world.client)
    serial = opening.row.serial
    entry = journal.entry(COUNTERS, "0", serial, JournalState(), {"a": 3})
    claim_of(world, opening, 2, partition="1", spark_task=1).claim(None)
    other = journal.entry(COUNTERS, "1", serial, JournalState(), {"b": 5})
    reports = [report(entries=(entry,)), report(2, partition="1", entries=(other,))]
    assert not [at for at in world.store.contents() if at.table == "journal"]
    world.store.forget()
    minibatches.complete(opening, reports, [SINK])
    [(_, updates)] = world.store.asked
    tables = [each.key.table for each in updates if isinstance(each, Put)]
    assert sorted(tables) == sorted(["open", *["streams", "sequences", "journal"] * 2])
    assert journal.restore(COUNTERS, "0", before=serial + 1).values == {"a": 3}
    assert journal.restore(COUNTERS, "1", before=serial + 1).values == {"b": 5}


@pytest.mark.rows("O15")
def test_a_complete_that_does_not_pass_leaves_nothing_of_its_set(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    entry = Journal(world.client).entry(COUNTERS, "0", opening.row.serial, JournalState(), {"a": 3})
    other = world.another()
    world.store.let_in(lambda: claim_of(other, opening, 2).claim(None))
    with pytest.raises(Fenced, match="was taken over"):
        minibatches.complete(opening, [report(entries=(entry,))], [SINK])
    tables = world.tables()
    assert (tables["journal"], tables["sequences"]) == (0, 0)
    assert stream_row(world, opening).state is PartitionState.PENDING


def test_a_minibatch_without_any_task_completes(
    world: LedgerWorld, minibatches: Minibatches
) -> None:
    opening = minibatches.open(request(0))
    minibatches.complete(opening, [], [SINK])
    assert minibatches.open(request(1)).row.serial == opening.row.serial + 1


def test_complete_may_be_repeated(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    minibatches.complete(opening, [report()], [SINK])
    before = world.store.contents()
    minibatches.complete(opening, [report()], [SINK])
    assert world.store.contents() == before


@pytest.mark.rows("A17", "S19")
def test_only_the_attempt_that_holds_a_partition_completes_it(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    claim_of(world, opening, 2).claim(None)
    before = world.store.contents()
    with pytest.raises(Fenced, match=r"attempt 1\.2 took partition 0 from 1\.1"):
        minibatches.complete(opening, [report(1)], [SINK])
    assert world.store.contents() == before
    minibatches.complete(opening, [report(2)], [SINK])
    assert stream_row(world, opening).state is PartitionState.COMPLETE


@pytest.mark.rows("A17")
def test_a_driver_that_was_replaced_completes_nothing(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    world.begin("n2").open(request(0))
    before = world.store.contents()
    with pytest.raises(Fenced, match="run 1 cannot be completed"):
        minibatches.complete(opening, [report()], [SINK])
    assert world.store.contents() == before


@pytest.mark.rows("O24", "A22")
@pytest.mark.parametrize("reports", [[], [report(short=True, count=2)]])
def test_a_recorded_partition_that_did_not_come_again_in_full_is_diverged(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch, reports: list[object]
) -> None:
    before = world.store.contents()
    with pytest.raises(Diverged, match=r"minibatch 1\.0, partition 0.*semel resolve pay/1\.0"):
        minibatches.complete(opening, reports, [SINK])  # type: ignore[arg-type]
    assert world.store.contents() == before


@pytest.mark.rows("A22", "O24")
@pytest.mark.parametrize("other", [{"digest": "e"}, {"count": 4}, {"count": 2}])
def test_a_replay_with_other_content_than_what_is_complete_is_diverged(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch, other: dict[str, object]
) -> None:
    minibatches.complete(opening, [report()], [SINK])
    later = world.begin("n2")
    again = later.open(request(0))
    assert claim_of(world, again, 1).claim(None) is Found.COMPLETE
    before = world.store.contents()
    with pytest.raises(Diverged, match="complete with 3 events and digest d"):
        later.complete(again, [report(run=2, **other)], [SINK])  # type: ignore[arg-type]
    assert world.store.contents() == before


@pytest.mark.rows("A10")
def test_a_replay_with_the_same_content_completes_again_and_moves_nothing(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    minibatches.complete(opening, [report()], [SINK])
    row, standing = stream_row(world, opening), sequence(world)
    later = world.begin("n2")
    again = later.open(request(0))
    world.store.forget()
    later.complete(again, [report(run=2)], [SINK])
    [(_, updates)] = world.store.asked
    assert [each.key.table for each in updates if isinstance(each, Put)] == ["open"]
    assert (stream_row(world, opening), sequence(world)) == (row, standing)
    assert later.open(request(1)).standing(SINK, "0") == Standing(3)


def test_a_report_whose_row_is_gone_is_fenced(
    world: LedgerWorld, minibatches: Minibatches, opening: OpenMinibatch
) -> None:
    with pytest.raises(Fenced, match="partition 9 has no row any more"):
        minibatches.complete(opening, [report(), report(partition="9")], [SINK])


@pytest.mark.rows("S20")
def test_several_sinks_complete_together_each_with_its_own_numbers(world: LedgerWorld) -> None:
    minibatches = world.begin()
    opening = minibatches.open(request(0, SINK, "mail"))
    for sink in (SINK, "mail"):
        claim_of(world, opening, 1, sink=sink).claim(None)
    reports = [report(osn=3), report(osn=30, sink="mail")]
    minibatches.complete(opening, reports, [SINK, "mail"])
    after = minibatches.open(request(1, SINK, "mail"))
    assert (after.standing(SINK, "0").osn, after.standing("mail", "0").osn) == (3, 30)


def test_a_sink_that_reports_nothing_of_what_it_claimed_stops_the_minibatch(
    world: LedgerWorld,
) -> None:
    minibatches = world.begin()
    opening = minibatches.open(request(0, SINK, "mail"))
    for sink in (SINK, "mail"):
        claim_of(world, opening, 1, sink=sink).claim(None)
    before = world.store.contents()
    with pytest.raises(Diverged, match="sink 'mail'"):
        minibatches.complete(opening, [report()], [SINK, "mail"])
    assert world.store.contents() == before
