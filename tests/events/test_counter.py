"""Counted ids: last + 1, 2, ... per entity, the same on every replay."""

from __future__ import annotations

import pickle
import random
from collections import Counter as Tally
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged
from semel.events import Counter, EntityIds, Rows


def numbered(entities: list[str], last: dict[str, int]) -> list[int]:
    """What the counters are to be, one row at a time."""
    seen: Tally[str] = Tally(last)
    ids = []
    for entity in entities:
        seen[entity] += 1
        ids.append(seen[entity])
    return ids


def stamp(
    entities: list[Any], edges: list[int], last: dict[str, int]
) -> tuple[Rows, dict[str, int]]:
    batch = pa.record_batch({"who": entities, "n": list(range(len(entities)))})
    stamper = Counter("who").stamper("0", last=last)
    runs = [stamper.stamp(batch.slice(a, b - a)) for a, b in pairwise(edges)]
    return Rows.concat(runs), stamper.state()


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_gives_every_event_the_same_id_wherever_its_batches_end(seed: int) -> None:
    dice = random.Random(seed)
    entities = [f"e{dice.randrange(12)}" for _ in range(dice.randrange(1, 200))]
    if dice.random() < 0.5:
        entities.sort()
    last = {f"e{at}": dice.randrange(10**12) for at in range(0, 12, 2)}
    edges = [0, *sorted(dice.choices(range(len(entities) + 1), k=4)), len(entities)]
    rows, state = stamp(entities, edges, last)
    wanted = numbered(entities, last)
    assert rows.all_ids() == wanted
    assert rows.positions.tolist() == list(range(len(entities)))
    assert state == {each: dict(zip(entities, wanted, strict=True))[each] for each in entities}
    assert state == rows.last_ids()


def test_state_is_the_delta_of_this_partition_alone() -> None:
    _, state = stamp(["a", "b", "a"], [0, 3], {"a": 7, "never": 3})
    assert state == {"a": 9, "b": 1}


def test_an_entity_is_its_text_form() -> None:
    integers, _ = stamp([42, 7, 42], [0, 3], {"42": 10})
    assert integers.id_sets() == EntityIds.of({"42": [11, 12], "7": [1]})
    booleans, _ = stamp([True, False], [0, 2], {})
    assert [booleans.scope(0), booleans.entity(1)] == ["true", "false"]


def test_the_sort_key_is_entity_and_id() -> None:
    rows, _ = stamp(["a", "b", "a"], [0, 3], {})
    assert [rows.sort_key(at) for at in range(3)] == [["a", 1], ["b", 1], ["a", 2]]
    assert rows.ordered


def test_an_empty_batch_is_no_rows() -> None:
    rows, state = stamp(["a"], [0, 0, 1, 1], {})
    assert (len(rows), state) == (1, {"a": 1})
    empty = Counter("who").stamper("0").stamp(pa.record_batch({"who": pa.array([], pa.string())}))
    assert (len(empty), empty.id_sets(), empty.last_ids()) == (0, EntityIds.EMPTY, {})


def test_rows_out_of_the_declared_order_diverge_also_across_batches() -> None:
    def order(times: list[int | None], *, edge: int) -> None:
        batch = pa.record_batch({"who": ["a"] * len(times), "at": pa.array(times, pa.int64())})
        stamper = Counter("who", order_by=("at",)).stamper("7")
        stamper.stamp(batch.slice(0, edge))
        stamper.stamp(batch.slice(edge))

    order([None, None, 1, 1, 2], edge=2)
    for edge in (0, 1, 2, 3):
        with pytest.raises(Diverged, match=r"entity 'a' in partition '7' \(position 2\)"):
            order([1, 3, 2], edge=edge)
        with pytest.raises(Diverged, match="position 1"):
            order([1, None, 2], edge=edge)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"other": ["a"]}, "no column 'who'; the query has other"),
        ({"who": ["a", None]}, r"'who' is null \(row 1 of a batch of partition '0'\)"),
        ({"who": [1.5]}, "'who' is double; an entity is a string"),
        ({"who": [["a"]]}, "an entity is a string"),
    ],
)
def test_an_entity_that_is_none_is_refused(batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Counter("who").stamper("0").stamp(pa.record_batch(batch))


def test_a_description_travels() -> None:
    identity = Counter("who", order_by=("at",))
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert identity.describe() == {
        "kind": "counter",
        "entity": "who",
        "order_by": ["at"],
        "rules": {"bucket": 1, "digest": 1, "order": 1},
    }
    assert identity.columns() == ["at", "who"]
    assert not identity.survives_lost_checkpoint
