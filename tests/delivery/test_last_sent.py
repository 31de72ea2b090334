"""C, the last number transmitted, and the input position are kept with L, whatever the capability
and the identity.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from semel.errors import Diverged
from semel.events import Identity
from semel.ledger import Ledger
from semel.ledger.rows import OpenRow
from semel.ledger.verbs.complete import SequenceRow
from semel.operate import read_status
from support.destinations import Crash, Logs, crash, fine
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    World,
    world_like,
    world_of,
)

IDENTITIES: dict[str, Identity] = {
    "position": POSITION,
    "position with entity": ORDERED_POSITION,
    "given": GIVEN,
    "increasing": INCREASING,
    "counter": COUNTER,
}


def standing(world: World) -> tuple[int, int]:
    """L and C of the partition, as the ledger keeps them."""
    [(_, text)] = world.store.memory.scan("sequences", "")
    row = SequenceRow.load(text)
    return row.after.osn, row.after.sent


def told(world: World) -> tuple[int, int]:
    """L and C, as `semel status` shows them."""
    with closing(Ledger(world.store)) as ledger:
        [sink] = read_status(ledger, "pay", watch=False).sinks
    assert sink.transmitted is not None
    return sink.last_osn, sink.transmitted


@pytest.mark.rows("O6")
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_c_is_kept_with_l_and_shown_for_every_capability(kind: str, identity: str) -> None:
    world = world_like(kind, IDENTITIES[identity], chunk_rows=2, span_chunks=1)
    world.minibatch(0, "a1 b2 a3")
    assert standing(world) == told(world) == (3, 3)
    world.minibatch(1, "b4 a5")
    assert standing(world) == told(world) == (5, 5)


@pytest.mark.rows("O6")
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"transactional script"}))
def test_c_stands_below_l_where_the_last_events_did_not_reach_the_destination(kind: str) -> None:
    # A script refuses within its own transaction: its progress row has passed those events.
    world = world_like(kind, chunk_rows=1, span_chunks=1)
    world.out.refuses.update({"c3", "d4"})
    world.minibatch(0, "a1 b2 c3 d4")
    assert standing(world) == told(world) == (4, 2)
    world.minibatch(1, "a5")
    assert standing(world) == told(world) == (5, 5)
    world.out.refuses.add("b6")
    world.minibatch(2, "b6")
    assert standing(world) == told(world) == (6, 5)


@pytest.mark.rows("O6")
@pytest.mark.parametrize("kind", ["opaque", "repeatable", "probing"])
def test_c_of_a_minibatch_that_is_not_complete_is_what_is_settled(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, span_chunks=1)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(fine, fine, crash)
    with pytest.raises(Crash):
        world.task(opening, "c3 d4 e5 f6")
    assert standing(world) == (2, 2)
    assert told(world) == (2, 4)  # c3 and d4 are known to be there, of e5 nothing is
    world.start()
    world.minibatch(0, "c3 d4 e5 f6", "q2")  # the checkpoint is lost
    assert told(world)[1] == told(world)[0]


@pytest.mark.rows("O7")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_complete_minibatch_records_l_and_the_input_position_in_one_commit(
    identity: str,
) -> None:
    world = world_like("transactional", IDENTITIES[identity])
    for batch, text in enumerate(["a1 b2", "a3"]):
        at = (json.dumps({"t": {"0": batch + 1}}), f'{{"logOffset":{batch}}}')
        opening = world.driver.begin("q", batch, inputs=at)
        reports = world.task(opening, text)
        before = (f'{{"t": {{"0": {batch}}}}}', f'{{"logOffset":{batch - 1}}}') if batch else ()
        assert world.opened().inputs == before  # what is half done has not moved it
        world.wire.forget()
        world.driver.end(opening, reports)
        assert [each for each in world.wire.log if "sequences" in each and "open" in each]
        assert (world.opened().inputs, standing(world)[0]) == (at, (2, 3)[batch])
    with closing(Ledger(world.store)) as ledger:
        assert read_status(ledger, "pay", watch=False).inputs == world.opened().inputs


@pytest.mark.rows("O7")
def test_the_input_position_outlives_a_restart_a_replay_and_a_lost_checkpoint() -> None:
    world = world_like("transactional")
    world.driver.end(
        opening := world.driver.begin("q", 0, inputs=("7",)), world.task(opening, "a1")
    )
    world.start()
    world.minibatch(0, "a1")  # whoever does not know it leaves it as it was
    assert world.opened().inputs == ("7",)
    world.start()
    world.open(0, "q2")
    assert world.opened().inputs == ("7",)


@pytest.mark.rows("O7", "O22")
def test_an_input_position_that_is_not_known_is_not_that_of_an_older_minibatch() -> None:
    world = world_like("transactional")
    for batch, inputs in enumerate([("7",), (), ("9",)]):
        opening = world.driver.begin("q", batch, inputs=inputs)
        world.driver.end(opening, world.task(opening, f"a{batch + 1}"))
        assert world.opened().inputs == inputs


def test_a_row_that_says_nothing_of_inputs_is_read() -> None:
    row = OpenRow.load(world_open_text())
    assert row.inputs == ()
    assert "inputs" not in row.dump()


def world_open_text() -> str:
    world = world_like("transactional")
    world.minibatch(0, "a1")
    [(_, text)] = world.store.memory.scan("open", "")
    return text


# -- C and L


def of_logs(processed: str, transmitted: int) -> tuple[World, Any]:
    """L is 2. Of the minibatch after it `transmitted` events reached the log before a crash."""
    world = world_of(Logs(), chunk_rows=1)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(*[fine] * transmitted, crash)
    with pytest.raises(Crash):
        world.task(opening, processed)
    world.out.calls.clear()
    return world, opening


@pytest.mark.rows("O11")
def test_where_c_equals_l_nothing_is_suppressed_and_everything_is_sent() -> None:
    world, opening = of_logs("c3 d4 e5", transmitted=0)
    [report] = world.task(opening, "c3 d4 e5")
    assert (report.suppressed, report.delivered) == (0, 3)
    assert world.out.calls == [["c3"], ["d4"], ["e5"]]
    assert world.out.numbers == [1, 2, 3, 4, 5]


@pytest.mark.rows("O11")
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_where_c_is_beyond_l_exactly_l_plus_1_to_c_is_suppressed(ahead: int) -> None:
    world, opening = of_logs("c3 d4 e5 f6", transmitted=ahead)
    [report] = world.task(opening, "c3 d4 e5 f6")
    assert (report.suppressed, report.delivered) == (ahead, 4 - ahead)
    assert world.out.calls == [["c3"], ["d4"], ["e5"], ["f6"]][ahead:]
    assert world.out.numbers == [1, 2, 3, 4, 5, 6]


@pytest.mark.rows("O11")
def test_where_c_is_below_what_was_processed_exactly_c_plus_1_to_that_is_sent() -> None:
    """The source system's L counts a processed batch whether or not its output arrived: here that
    is the last number of the minibatch that is not complete (decision 32).
    """
    world, opening = of_logs("c3 d4 e5 f6", transmitted=1)
    last_processed = 6
    assert world.out.numbers[-1] < last_processed
    world.task(opening, "c3 d4 e5 f6")
    assert world.out.calls == [["d4"], ["e5"], ["f6"]]
    assert world.out.numbers == list(range(1, last_processed + 1))


@pytest.mark.rows("O11")
@pytest.mark.parametrize("left", [0, 1])
def test_where_c_is_below_what_was_acknowledged_nothing_is_sent_and_it_says_so(left: int) -> None:
    world, opening = of_logs("c3 d4", transmitted=1)
    for log in world.out.logs.values():
        del log.records[left:]
    with pytest.raises(Diverged, match="acknowledged"):
        world.task(opening, "c3 d4")
    assert world.out.calls == []
