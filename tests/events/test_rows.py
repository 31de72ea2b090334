"""Rows are asked in columns and answer as a loop over rows would."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.errors import ConfigurationError
from semel.events import Counter, EntityIds, Given, IdSet, Position, Rows, sort

Pair = tuple[str, Any]

KINDS = ["integers", "wide", "texts", "tuples"]


def draw_id(kind: str, dice: random.Random) -> Any:
    if kind == "integers":
        return dice.randrange(-20, 20)
    if kind == "wide":
        return dice.choice([-(2**63), 2**63 - 1, 2**63 - 2, 0, dice.randrange(-(2**63), 2**63)])
    if kind == "texts":
        return dice.choice("abZé\0\uffff\U00010000") * dice.randrange(3)
    return dice.randrange(4), dice.choice("abc")


def rows_of(pairs: list[Pair]) -> Rows:
    whole = isinstance(pairs[0][1], tuple)
    ids = [pair[1] if whole else (pair[1],) for pair in pairs]
    parts = {f"id{at}": [each[at] for each in ids] for at in range(len(ids[0]))}
    identity = Given("who", tuple(parts))
    batch = pa.record_batch({"who": [pair[0] for pair in pairs], **parts})
    return identity.stamper("0").stamp(sort(batch, identity))


def world(seed: int, kind: str) -> tuple[random.Random, Rows, list[Pair]]:
    dice = random.Random(seed)
    pairs = {(f"e{dice.randrange(6)}", draw_id(kind, dice)) for _ in range(dice.randrange(1, 80))}
    rows = rows_of(list(pairs))
    return dice, rows, [(rows.scope(at), rows.id(at)) for at in range(len(rows))]


def by_scope(pairs: list[Pair]) -> dict[str, list[Any]]:
    return {scope: [each for owner, each in pairs if owner == scope] for scope, _ in pairs}


@pytest.mark.rows("S9")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(15))
def test_sets_of_rows_are_what_a_loop_would_find(seed: int, kind: str) -> None:
    dice, rows, pairs = world(seed, kind)
    assert rows.id_sets() == EntityIds.of(by_scope(pairs))
    last_ids = {scope: max(ids) for scope, ids in by_scope(pairs).items()}
    assert rows.last_ids() == last_ids
    assert rows.last_id_sets() == EntityIds.of({scope: [last] for scope, last in last_ids.items()})
    some = dice.sample(pairs, dice.randrange(len(pairs) + 1))
    more = [(f"e{at}", draw_id(kind, dice)) for at in range(9)]
    done = EntityIds.of(by_scope(some + more))
    assert rows.contained_in(done).tolist() == [done.contains(*pair) for pair in pairs]
    last = {f"e{at}": draw_id(kind, dice) for at in range(0, 6, 2)}
    assert rows.at_most(last).tolist() == [s in last and i <= last[s] for s, i in pairs]
    assert rows.all_ids() == [each for _, each in pairs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_parts_of_rows_answer_for_themselves(seed: int, kind: str) -> None:
    dice, rows, pairs = world(seed, kind)
    start, stop = sorted(dice.choices(range(len(pairs) + 1), k=2))
    part = rows.slice(start, stop)
    assert part.id_sets() == EntityIds.of(by_scope(pairs[start:stop]))
    assert part.positions.tolist() == list(range(start, stop))
    mask = np.array([dice.random() < 0.5 for _ in pairs])
    chosen = rows.take(mask)
    left = [pair for pair, kept in zip(pairs, mask, strict=True) if kept]
    assert chosen.id_sets() == EntityIds.of(by_scope(left))
    assert chosen.positions.tolist() == np.flatnonzero(mask).tolist()
    assert chosen.contained_in(rows.id_sets()).all()
    assert not rows.take(~mask).contained_in(chosen.id_sets()).any()
    edge = dice.randrange(len(pairs) + 1)
    whole = Rows.concat([rows.slice(0, edge), rows.slice(edge, len(rows))])
    assert [(whole.scope(at), whole.id(at)) for at in range(len(whole))] == pairs
    assert whole.batch == rows.batch
    assert [whole.sort_key(at) for at in range(len(whole))] == [
        rows.sort_key(at) for at in range(len(rows))
    ]
    assert Rows.concat([rows, chosen]).id_sets() == rows.id_sets()
    assert part.renumber(100).positions.tolist() == list(range(100, 100 + len(part)))


def test_rows_of_two_batches_share_the_entities_they_have_in_common() -> None:
    stamper = Counter("who").stamper("0")
    runs = [stamper.stamp(pa.record_batch({"who": who})) for who in (["a", "b"], ["c", "a"], ["b"])]
    rows = Rows.concat(runs)
    assert rows.id_sets() == EntityIds.of({"a": [1, 2], "b": [1, 2], "c": [1]})
    assert rows.of_entities({"a", "nobody"}).tolist() == [True, False, False, True, False]


def test_a_slice_copies_nothing() -> None:
    rows = (
        Counter("who").stamper("0").stamp(pa.record_batch({"who": ["a"] * 9, "n": list(range(9))}))
    )
    part = rows.slice(2, 5)
    assert part.batch["n"].buffers()[1].address == rows.batch["n"].buffers()[1].address
    assert np.shares_memory(part.positions, rows.positions)
    assert len(rows.slice(5, 5)) == 0
    assert len(rows.slice(5, 99)) == 4


def test_the_watermark_of_another_shape_is_an_error_and_not_an_answer() -> None:
    rows = rows_of([("a", 1)])
    with pytest.raises(ConfigurationError, match="compared with text ids"):
        rows.at_most({"a": "1"})
    with pytest.raises(ConfigurationError, match="compared with text ids"):
        rows.contained_in(EntityIds.of({"a": ["1"]}))
    assert not rows.at_most({"b": "1"}).any()


def test_bounds_beyond_64_bits_are_bounds() -> None:
    rows = rows_of([("a", 2**63 - 1), ("b", -(2**63))])
    assert rows.at_most({"a": 2**70, "b": 2**70}).all()
    assert not rows.at_most({"a": -(2**70), "b": -(2**70)}).any()
    assert rows.contained_in(EntityIds.of({"a": IdSet.from_intervals([[0, 2**70]])})).sum() == 1
    assert not rows.contained_in(EntityIds.of({"a": [2**63], "b": [-(2**63) - 1]})).any()


def test_no_rows_are_in_no_set() -> None:
    rows = rows_of([("a", 1)]).slice(0, 0)
    assert rows.contained_in(EntityIds.of({"a": [1]})).tolist() == []
    assert rows.at_most({"a": 1}).tolist() == []
    assert rows.of_entities({"a"}).tolist() == []
    assert rows.values() == []
    with pytest.raises(ValueError, match="no rows to put together"):
        Rows.concat([])


def test_a_value_is_the_row_as_python_has_it() -> None:
    batch = pa.record_batch(
        {"topic": ["t"], "partition": [0], "offset": [1], "at": pa.array([{"x": [1, None]}])}
    )
    rows = Position().stamper("t/0").stamp(batch)
    assert rows.value(0) == {"topic": "t", "partition": 0, "offset": 1, "at": {"x": [1, None]}}
    assert rows.values() == [rows.value(0)]
