"""Where a partition stands: L after a minibatch and before it, the same on every replay."""

from __future__ import annotations

import pytest

from semel.events import IdSet
from semel.ledger.verbs.complete import PositionMark, SequenceRow, Standing
from semel.ledger.verbs.open import Minibatches, OpenMinibatch
from support.ledger.one_pipeline import SINK, LedgerWorld, claim_of, report, request, span


def deliver(
    world: LedgerWorld, minibatches: Minibatches, batch: int, counts: dict[str, int]
) -> OpenMinibatch:
    """One minibatch from open to complete, with so many events in each partition."""
    opening = minibatches.open(request(batch))
    reports = []
    for at, (partition, count) in enumerate(counts.items()):
        claim_of(world, opening, at, partition=partition, spark_task=at).claim(span(0, 0, count))
        osn = opening.standing(SINK, partition).osn + count
        mark = PositionMark(upto=osn - 1, digest=f"d{osn}")
        reports.append(
            report(
                at,
                run=opening.row.run,
                count=count,
                osn=osn,
                partition=partition,
                mark=mark,
            )
        )
    minibatches.complete(opening, reports, [SINK])
    return opening


def osns(opening: OpenMinibatch) -> dict[str, int]:
    return {name: opening.standing(SINK, name).osn for name in opening.sequences[SINK]}


def standings(opening: OpenMinibatch) -> dict[str, Standing]:
    return {name: opening.standing(SINK, name) for name in opening.sequences[SINK]}


def test_a_row_tells_the_standing_before_each_of_the_last_two_minibatches_that_moved_it() -> None:
    row = SequenceRow("0", Standing(), ())
    for serial, osn in ((2, 7), (5, 10), (6, 11)):
        row = row.moved(serial, Standing(osn))
    assert [row.as_of(serial).osn for serial in (5, 6, 7, 9)] == [7, 10, 11, 11]
    assert len(row.before) == 2


def test_a_minibatch_that_moves_a_row_again_keeps_what_stood_before_it() -> None:
    row = SequenceRow("0", Standing(), ()).moved(4, Standing(7)).moved(5, Standing(10))
    again = row.moved(5, Standing(12))
    assert [again.as_of(serial).osn for serial in (4, 5, 6)] == [0, 7, 12]


def test_a_standing_comes_back_as_it_was_written() -> None:
    mark = PositionMark((41, "b"), "d", IdSet.of([(43, "a"), (44, "b")]), generation=3)
    for standing in (
        Standing(),
        Standing(7, 5),
        Standing(7, 5, mark),
        Standing(7, 0, PositionMark(9)),
    ):
        row = SequenceRow("topic/0", standing, ((4, Standing(3)), (5, standing)))
        assert SequenceRow.load(row.dump()) == row
        assert SequenceRow.load(row.dump()).dump() == row.dump()


@pytest.mark.rows("O5", "O7")
def test_l_goes_on_where_the_minibatch_before_ended(world: LedgerWorld) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0, {"0": 3, "1": 10})
    assert osns(minibatches.open(request(1))) == {"0": 3, "1": 10}
    deliver(world, minibatches, 1, {"0": 4})
    assert osns(minibatches.open(request(2))) == {"0": 7, "1": 10}


@pytest.mark.rows("O5", "O6", "O7")
def test_a_replay_of_a_complete_minibatch_starts_from_the_same_numbers(world: LedgerWorld) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0, {"0": 3, "1": 10})
    first = deliver(world, minibatches, 1, {"0": 4})
    again = world.begin("n2").open(request(1))
    assert standings(again) == standings(first)
    assert again.standing(SINK, "0") == Standing(3, 0, PositionMark(upto=2, digest="d3"))
    assert again.standing(SINK, "never seen") == Standing()


@pytest.mark.rows("O5")
def test_a_replay_of_the_minibatch_before_the_last_starts_from_the_same_numbers(
    world: LedgerWorld,
) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0, {"0": 3, "1": 10})
    first = deliver(world, minibatches, 1, {"0": 4, "1": 1})
    deliver(world, minibatches, 2, {"0": 5})
    again = world.begin("n2").open(request(1))
    assert again.row.minibatch == first.row.minibatch
    assert standings(again) == standings(first)


@pytest.mark.rows("O7")
def test_l_goes_on_across_generations(world: LedgerWorld) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0, {"0": 3})
    fresh = world.begin("n2")
    opening = fresh.open(request(0, query="another checkpoint"))
    assert opening.standing(SINK, "0").osn == 3
    claim_of(world, opening, 1).claim(span(0, 0, 2))
    fresh.complete(opening, [report(1, run=2, count=2, osn=5)], [SINK])
    assert fresh.open(request(1, query="another checkpoint")).standing(SINK, "0").osn == 5
