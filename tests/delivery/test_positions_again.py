"""Positions that come a second time: after a lost checkpoint a re-read, else another event."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.ledger.verbs.divergence import judge_minibatch
from semel.protocol import Judgement
from support.pipeline import POSITION, World, events, once, world_like

KINDS = ["transactional", "sequenced", "probing", "repeatable", "opaque"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", ["a1=7 b2=7 a3=7", "a5", "a4 b6"])
def test_in_one_generation_a_position_that_was_passed_is_not_skipped_in_silence(
    kind: str, again: str
) -> None:
    world = world_like(kind, POSITION)
    world.minibatch(0, "a1 b2 a3 a5")
    opening = world.open(1)
    with pytest.raises(
        Diverged, match=r"arrived after event 5.*given identity.*new pipeline name"
    ) as caught:
        world.task(opening, again)
    assert f"event {again[1]} arrived" in str(caught.value)
    assert "minibatch 1.1, partition t/0" in str(caught.value)
    assert once(world.out.seen) == "a1 b2 a3 a5"


@pytest.mark.parametrize("kind", KINDS)
def test_a_minibatch_that_is_run_again_is_no_second_coming(kind: str) -> None:
    world = world_like(kind, POSITION)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.task(opening, "a3 b4")
    world.task(opening, "a3 b4")
    world.start()
    opening = world.open(1)
    reports = world.task(opening, "a3 b4")
    world.driver.end(opening, reports)
    world.start()
    world.minibatch(1, "a3 b4")  # complete, and counted
    world.minibatch(2, "a5")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5"


@pytest.mark.parametrize("kind", KINDS)
def test_a_re_read_in_several_minibatches_is_skipped_until_it_is_past_the_watermark(
    kind: str,
) -> None:
    world = world_like(kind, POSITION)
    world.minibatch(0, "a1 b2 a3 b4")
    world.start()
    world.minibatch(0, "a1 b2", "q2")
    world.minibatch(1, "a3", "q2")
    world.minibatch(2, "b4 a5", "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5"
    opening = world.open(3, "q2")
    with pytest.raises(Diverged, match="event 4 arrived after event 5"):
        world.task(opening, "b4 a6")


@pytest.mark.parametrize("judgement", list(Judgement))
def test_a_judged_minibatch_may_bring_what_was_recorded_of_it(judgement: Judgement) -> None:
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.task(opening, "a3 b4")
    judge_minibatch(world.client, world.opened().minibatch, judgement, "ann", "looked")
    world.start()
    opening = world.open(1)
    if not opening.settled:
        world.driver.end(opening, world.task(opening, "a3 b4 a5"))
    else:
        world.driver.end(opening, [])
    world.minibatch(2, "b6")
    assert world.out.seen.endswith("b6")


# -- other columns, then a lost checkpoint


def wide(text: str) -> pa.RecordBatch:
    batch = events(text)
    return batch.append_column("note", pa.array(["x"] * batch.num_rows))


def reordered(text: str) -> pa.RecordBatch:
    batch = events(text)
    return batch.select(list(reversed(batch.schema.names)))


CHANGES = pytest.mark.parametrize("change", [wide, reordered])


def upgraded() -> World:
    """A query was delivered with its first columns; then the checkpoint is lost."""
    world = world_like("transactional", POSITION)
    world.minibatch(0, "a1 b2 a3")
    world.start()
    return world


@CHANGES
def test_other_columns_at_the_watermark_are_told_with_the_way_out(
    change: Callable[[str], pa.RecordBatch],
) -> None:
    world = upgraded()
    opening = world.driver.begin("q2", 0, {"t/0": 0})
    with pytest.raises(
        Diverged, match=r"'startingOffsets', '{\"t\": {\"0\": 4}}'.*accept_gap=True"
    ):
        world.task(opening, [change("a1 b2 a3 b4")])
    assert world.out.seen == "a1 b2 a3"
    world.start()
    opening = world.driver.begin("q3", 0, {"t/0": 4})
    world.driver.end(opening, world.task(opening, [change("b4")]))
    assert world.out.seen == "a1 b2 a3 b4"


@CHANGES
def test_other_columns_at_the_watermark_are_not_compared_when_a_person_says_so(
    change: Callable[[str], pa.RecordBatch],
) -> None:
    world = upgraded()
    opening = world.driver.begin("q2", 0, {"t/0": 0})
    world.driver.end(opening, world.task(opening, [change("a1 b2 a3 b4")], accept_gap=True))
    assert world.out.seen == "a1 b2 a3 b4"
