"""Order and times within a minibatch are the same on every replay; a partition that is silent holds
no other back.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.events import Identity
from semel.ledger.verbs.complete import SequenceRow
from support.destinations import Crash, crash, fine
from support.pipeline import COUNTER, GIVEN, KINDS, POSITION, World, events, world_like


def of_partition(text: str, number: int) -> pa.RecordBatch:
    rows = events(text)
    at = rows.schema.get_field_index("partition")
    return rows.set_column(at, rows.schema.field(at), pa.array([number] * len(rows), pa.int32()))


def standings(world: World) -> dict[str, tuple[int, Any]]:
    rows = [SequenceRow.load(text) for _, text in world.store.memory.scan("sequences", "")]
    return {row.partition: (row.after.osn, row.after.mark and row.after.mark.upto) for row in rows}


@pytest.mark.rows("O21")
@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_without_events_holds_no_other_back_and_goes_on_when_it_has_some(
    kind: str,
) -> None:
    world = world_like(kind, POSITION, chunk_rows=2, span_chunks=1)

    def minibatch(batch: int, **texts: str) -> None:
        opening = world.open(batch)
        reports = [
            report
            for name, text in texts.items()
            for report in world.task(
                opening,
                [of_partition(text, int(name[1:]))],
                partition=f"t/{name[1:]}",
                spark_task=int(name[1:]),
            )
        ]
        world.driver.end(opening, reports)
        assert world.opened().complete

    minibatch(0, p0="a1 b2", p1="c1")
    for batch in range(1, 6):
        minibatch(batch, p1=f"c{batch + 1}")  # nothing comes of t/0
        assert standings(world) == {"t/0": (2, 2), "t/1": (batch + 1, batch + 1)}
    minibatch(6, p0="a3", p1="c7")
    assert standings(world) == {"t/0": (3, 3), "t/1": (7, 7)}
    assert " ".join(sorted(world.out.seen.split())) == "a1 a3 b2 c1 c2 c3 c4 c5 c6 c7"


def timed(names: str, began: datetime) -> pa.RecordBatch:
    rows = events(names)
    times = [began + timedelta(seconds=number) for number in rows.column("id").to_pylist()]
    return rows.append_column("at", pa.array(times, pa.timestamp("us", "UTC")))


@pytest.mark.rows("O21")
@pytest.mark.parametrize("identity", [GIVEN, COUNTER], ids=["given", "counter"])
@pytest.mark.parametrize("kind", ["transactional", "sequenced", "repeatable", "probing"])
def test_a_replay_gives_the_same_order_numbers_and_times_however_it_is_cut(
    kind: str, identity: Identity
) -> None:
    began = datetime(2026, 1, 31, tzinfo=UTC)
    names = " ".join(f"{'abc'[at % 3]}{at}" for at in range(1, 13))

    def delivered(seed: int | None) -> list[tuple[Any, ...]]:
        """With a seed it crashes half-way, and comes again in other Arrow batches."""
        world = world_like(kind, identity, chunk_rows=2, span_chunks=1)
        opening = world.open(0)
        whole = timed(names, began)
        if seed is not None:
            world.out.plan(fine, fine, crash)
            with pytest.raises(Crash):
                world.task(opening, [whole])
        cut = 0 if seed is None else Random(seed).randrange(1, 12)
        parts = [whole] if seed is None else [whole.slice(0, cut), whole.slice(cut)]
        world.driver.end(opening, world.task(opening, parts))
        return [
            (effect.entity, effect.event, effect.osn, effect.value["at"])
            for effect in world.out.effects
        ]

    once = delivered(None)
    assert [osn for _, _, osn, _ in once] == list(range(1, 13))
    for seed in range(3):
        assert delivered(seed) == once


@pytest.mark.rows("O21")
@pytest.mark.parametrize("kind", KINDS)
def test_other_times_on_a_replay_are_noticed_before_anything_is_sent(kind: str) -> None:
    world = world_like(kind, chunk_rows=1, span_chunks=1)
    opening = world.open(0)
    began = datetime(2026, 1, 31, tzinfo=UTC)
    world.out.plan(fine, crash)
    with pytest.raises(Crash):
        world.task(opening, [timed("a1 b2 c3", began)])
    calls = len(world.out.calls)
    with pytest.raises(Diverged):
        world.task(opening, [timed("a1 b2 c3", began + timedelta(seconds=1))])
    assert len(world.out.calls) == calls
