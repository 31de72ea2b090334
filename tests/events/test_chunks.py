"""Chunks number their events by position, and give each a key of its own."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.events import Chunk, Counter, EventID, Given, Position, Rows, cuts
from semel.events.rows import id_text, key_part

PARTS = st.integers() | st.text(max_size=4)
IDS: st.SearchStrategy[EventID] = PARTS | st.lists(PARTS, min_size=1, max_size=3).map(tuple)


def stamped(count: int) -> Rows:
    batch = pa.record_batch({"who": [f"e{at % 3}" for at in range(count)], "n": list(range(count))})
    return Counter("who").stamper("0").stamp(batch)


def chunk(rows: Rows, start: int, stop: int, prefix: str = "pay/") -> Chunk:
    return Chunk(
        rows.slice(start, stop), start, stop, f"{start}-{stop}", osn_base=1_000, prefix=prefix
    )


@pytest.mark.rows("O5")
@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_sequence_numbers_are_gapless_and_the_same_however_the_order_is_cut(size: int) -> None:
    rows = stamped(10)
    numbers = [
        osn for start, stop in cuts(0, 10, size) for osn in chunk(rows, start, stop).osns().tolist()
    ]
    assert numbers == list(range(1_000, 1_010))


@pytest.mark.rows("O5")
def test_a_parked_event_leaves_its_number_and_moves_nobody() -> None:
    rows = stamped(4)
    left = Chunk(rows.take(rows.positions != 1), 0, 4, "0-4", osn_base=1_000, prefix="")
    assert left.osns().tolist() == [1_000, 1_002, 1_003]
    assert len(left) == 3
    assert [event.osn for event in left.events()] == [1_000, 1_002, 1_003]


def test_an_event_is_the_same_alone_and_among_others() -> None:
    some = chunk(stamped(10), 2, 7)
    assert list(some.events()) == [some.event(at) for at in range(5)]
    assert [event.key for event in some.events()] == [some.event_key(at) for at in range(5)]
    event = some.event(1)
    assert (event.entity, event.id, event.osn, event.key) == ("e0", 2, 1_003, "pay/e0/2")
    assert event.value == {"who": "e0", "n": 3}


def test_the_key_of_a_position_is_its_source_partition_and_the_entity_is_its_own() -> None:
    batch = pa.record_batch({"topic": ["t"], "partition": [3], "offset": [8], "who": ["x"]})
    rows = Position(entity="who").stamper("t/3").stamp(batch)
    event = Chunk(rows, 0, 1, "k", osn_base=0, prefix="p/").event(0)
    assert (event.entity, event.key) == ("x", "p/t%2F3/8")


def test_keys_are_readable() -> None:
    assert [id_text(each) for each in (7, -7, "7", "a/b", (7, "x,y"), ("x",))] == [
        "7",
        "-7",
        "=7",
        "=a%2Fb",
        "7,=x%2Cy",
        "=x,",
    ]
    assert key_part("50%/\n\x7f é") == "50%25%2F%0A%7F é"


@given(st.tuples(st.text(max_size=4), IDS), st.tuples(st.text(max_size=4), IDS))
def test_two_events_never_share_a_key(one: tuple[str, EventID], other: tuple[str, EventID]) -> None:
    keys = [f"{key_part(scope)}/{id_text(id_)}" for scope, id_ in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@pytest.mark.rows("O5")
def test_a_replay_in_other_batches_gives_the_same_keys_and_numbers() -> None:
    batch = pa.record_batch({"who": ["a", "b", "a"], "id": ["1", "1", "2"]})
    identity = Given("who", ("id",))

    def keys(*edges: int) -> list[tuple[str, int]]:
        stamper = identity.stamper("0")
        ends = [0, *edges, 3]
        runs = [stamper.stamp(batch.slice(a, b - a)) for a, b in pairwise(ends)]
        rows = Rows.concat(runs)
        return [(event.key, event.osn) for event in chunk(rows, 0, 3).events()]

    assert (
        keys()
        == keys(1)
        == keys(1, 2)
        == [("pay/a/=1", 1_000), ("pay/b/=1", 1_001), ("pay/a/=2", 1_002)]
    )
