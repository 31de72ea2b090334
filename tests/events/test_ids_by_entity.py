"""Ids by scope are one value in two forms, columns and a dictionary, with one text."""

from __future__ import annotations

import gc
import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.events import EntityIds, Gathered, Given, IdSet
from semel.events.encoding.canonical_json import canonical
from semel.events.ids.id_columns import Labels
from semel.events.ids.ids_by_entity import GATHERED_MAX, unpacked
from semel.events.ids.membership import contained_in, id_sets
from semel.events.ids.packing import PACKED_MIN
from semel.ledger import payloads

NASTY = ["", '"', "\\", '\\"', "\x00", "\n\t\b\f\r", "\x1f", "\x7f", "ä", "é", "漢", "😀", "﷐"]
NASTY += ["a", "a\x00", "aa", "a/", "\uffff", "\U00010000", "\u2028", "\ud7ff", "\ue000"]
NAMES = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
NUMBERS = st.integers(0, 12) | st.sampled_from([-(2**63), 2**63 - 1, 2**63 - 2, -1])
RUNS = st.lists(st.tuples(NAMES, NUMBERS)) | st.lists(st.tuples(NAMES, NAMES))
Pairs = list[tuple[str, Any]]


def as_dictionary(pairs: Pairs) -> EntityIds:
    """The ids of pairs, one by one."""
    found: dict[str, set[Any]] = {}
    for scope, id_ in pairs:
        found.setdefault(scope, set()).add(id_)
    return EntityIds.of(found)


def as_columns(pairs: Pairs) -> EntityIds:
    """The ids of pairs, as those of rows are found."""
    return id_sets(*labelled(pairs))


def labelled(pairs: Pairs) -> tuple[Labels, tuple[pa.Array, ...]]:
    kind = pa.string() if pairs and isinstance(pairs[0][1], str) else pa.int64()
    scopes = Labels.of(pa.array([scope for scope, _ in pairs], pa.string()), "entity")
    return scopes, (pa.array([id_ for _, id_ in pairs], kind),)


def plain(ids: EntityIds) -> bytes:
    """The text as `json` alone writes it."""
    form = json.dumps(ids.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return form.encode()


@settings(deadline=None)
@given(RUNS)
@example([(name, 7) for name in NASTY])
@example([(name, other) for name in NASTY for other in NASTY])
@example([("a", 2**63 - 1), ("a", -(2**63)), ("b", 2**63 - 1)])
def test_columns_and_dictionaries_are_one_value(pairs: Pairs) -> None:
    mine, theirs = as_columns(pairs), as_dictionary(pairs)
    assert mine == theirs
    assert theirs == mine
    assert hash(mine) == hash(theirs)
    assert len(mine) == len(theirs)
    assert bool(mine) == bool(theirs)
    assert mine.to_json() == theirs.to_json()
    assert list(mine.to_json()) == sorted(theirs.scopes())
    assert pickle.loads(pickle.dumps(mine)) == theirs
    assert not (mine - theirs)
    assert (mine & theirs) == mine


@settings(deadline=None)
@given(RUNS)
@example([(name, 7) for name in NASTY])
@example([(name, other) for name in NASTY for other in NASTY])
def test_the_text_is_that_of_json_for_every_name(pairs: Pairs) -> None:
    mine, theirs = as_columns(pairs), as_dictionary(pairs)
    assert mine.written().content == theirs.written().content == plain(theirs)
    again = EntityIds.from_json(json.loads(mine.written().content))
    assert again == theirs
    assert (again.columns is None) == (not pairs)
    assert again.written() == mine.written()


@settings(deadline=None)
@given(st.lists(RUNS, max_size=4))
def test_a_union_of_columns_is_that_of_dictionaries(runs: list[Pairs]) -> None:
    for kind in (int, str):
        chosen = [run for run in runs if run and isinstance(run[0][1], kind)]
        united = EntityIds.union(map(as_columns, chosen))
        assert united == EntityIds.union(map(as_dictionary, chosen))
        assert united.written().content == plain(united)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1), max_size=4))
def test_intervals_that_overlap_are_united(sets: list[list[tuple[int, int]]]) -> None:
    parts = []
    for number, each in enumerate(sets):
        made = IdSet.from_intervals([[first, first + more] for first, more in each])
        parts.append(EntityIds.from_json({"a": made.to_json(), str(number): made.to_json()}))
    expected: set[tuple[str, Any]] = set()
    for part in parts:
        expected |= {(scope, id_) for scope, ids in part.items() for id_ in ids}
    united = EntityIds.union(parts)
    assert {(scope, id_) for scope, ids in united.items() for id_ in ids} == expected
    assert united.written().content == plain(EntityIds.of(dict(united.items())))


@settings(deadline=None)
@given(RUNS, RUNS)
def test_rows_are_found_in_columns_as_in_dictionaries(mine: Pairs, theirs: Pairs) -> None:
    if mine and theirs and type(mine[0][1]) is not type(theirs[0][1]):
        theirs = mine[: len(mine) // 2]
    found = contained_in(*labelled(mine), as_columns(theirs))
    assert found.tolist() == contained_in(*labelled(mine), as_dictionary(theirs)).tolist()
    assert found.tolist() == [pair in theirs for pair in mine]


def test_a_growing_union_holds_every_part() -> None:
    gathered = Gathered()
    assert not gathered.ids()
    parts = [as_columns([("a", 3 * at), ("b", at)]) for at in range(GATHERED_MAX**2 + 40)]
    for part in parts:
        gathered.add(part)
    assert gathered.ids() == EntityIds.union(parts)
    assert gathered.ids().get("b").to_json() == [[0, len(parts) - 1]]


@pytest.mark.parametrize("kind", [int, str])
def test_packed_parts_of_a_growing_union_are_written_without_being_united(kind: type) -> None:
    gathered = Gathered()
    parts = [
        as_columns([(f"e{at % 7}", kind(5 * at + more)) for at in range(3_000)])
        for more in (0, 1, 3)
    ]
    for part in parts:
        gathered.add(part)
    text = gathered.written()
    assert text.dense
    assert len(text.content) < sum(len(part.written().content) for part in parts)
    again = EntityIds.from_json(json.loads(text.content))
    assert again == gathered.ids() == EntityIds.union(parts)


def test_a_growing_union_of_small_parts_is_written_as_one() -> None:
    gathered = Gathered()
    assert not gathered
    gathered.add(as_columns([("a", at * 3) for at in range(3_000)]))
    gathered.add(as_columns([("a", 1)]))
    assert gathered
    assert gathered.written() == gathered.ids().written()


def test_sets_of_several_shapes_are_united_scope_by_scope() -> None:
    united = as_columns([("a", 1)]) | as_columns([("b", "x")])
    assert united.to_json() == {"a": [[1, 1]], "b": ["x"]}
    with pytest.raises(ValueError, match="several shapes"):
        as_columns([("a", 1)]) | as_columns([("a", "x")])


@pytest.mark.parametrize(
    "value",
    [
        {"a": [[1, 2], [3, 4]]},
        {"a": [[5, 5], [1, 1]]},
        {"a": ["y", "x", "x"]},
        {"a": [[1, 2**70]]},
        {"a": [], "b": [[1, 1]]},
        {"\ud800": [[1, 1]]},
        {"a": {"of": [[1, "x"]]}},
    ],
)
def test_json_of_another_form_is_read_all_the_same(value: dict[str, Any]) -> None:
    ids = EntityIds.from_json(value)
    assert ids == EntityIds.of({scope: IdSet.from_json(each) for scope, each in value.items()})
    assert json.loads(ids.written().content) == ids.to_json()


@pytest.mark.parametrize("value", [{"a": [[2, 1]]}, {"a": [[True, 2]]}, {"a": [1]}, {"a": "x"}])
def test_json_that_is_no_set_is_refused_by_scope_too(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not"):
        EntityIds.from_json(value)


@settings(deadline=None)
@given(RUNS)
@example([("n" * 100 + str(at), at) for at in range(2000)])
def test_a_payload_with_ready_text_is_the_payload_with_the_value(pairs: Pairs) -> None:
    ids = as_columns(pairs)
    text = payloads.dump_payload(
        {"b": [ids.written(), ids.written()], "a": '"', "c": {"7": ids.written()}}
    )
    told = {"b": [ids.to_json()] * 2, "a": '"', "c": {"7": ids.to_json()}}
    assert unpacked(payloads.load_payload(text)) == told
    if len(canonical(told).encode()) <= payloads.EXPANDED_BYTES_MAX and not ids.written().dense:
        assert text == canonical(told)
    travelled = pickle.loads(pickle.dumps(ids.written()))
    assert travelled == ids.written()
    assert travelled.deflated() == ids.written().deflated()


MANY = [(NASTY[at % len(NASTY)], at) for at in range(PACKED_MIN)]


@pytest.mark.parametrize(
    "pairs",
    [
        [(scope, 3 * at) for scope, at in MANY],
        [(scope, 2**63 - 1 - at * 2**53) for scope, at in MANY],
        [(scope, at * 2**54 - 2**63) for scope, at in MANY],
        [(f"{scope}{at}", at) for scope, at in MANY],
        [(scope, f"{at}{scope}") for scope, at in MANY],
        [(scope, more) for scope, at in MANY for more in (10 * at, 10 * at + 1, 10 * at + 5)],
    ],
    ids=["steps", "down", "far", "single", "texts", "intervals"],
)
def test_many_ids_are_packed_and_come_out_the_same(pairs: Pairs) -> None:
    ids, one_by_one = as_columns(pairs), as_dictionary(pairs)
    text = ids.written().content
    assert ids.written().dense
    assert len(text) < len(plain(one_by_one))
    again = EntityIds.from_json(json.loads(text))
    assert again == ids == one_by_one
    assert again.to_json() == one_by_one.to_json()
    assert again.written() == ids.written()
    assert unpacked([{"ids": json.loads(text)}]) == [{"ids": one_by_one.to_json()}]
    assert again | ids == ids


def test_a_scope_may_be_called_packed() -> None:
    ids = as_columns([("packed", "a"), ("packed", "b")])
    assert EntityIds.from_json(json.loads(ids.written().content)) == ids
    assert unpacked(ids.to_json()) == ids.to_json()


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_rows_become_a_payload_without_a_container_for_each(kind: str) -> None:
    rows = 20_000
    numbers = pa.array(np.arange(rows) * 3)
    ids = numbers if kind == "integer" else numbers.cast(pa.string())
    entity = pa.array((np.arange(rows) % 5_000).astype(str))
    batch = pa.RecordBatch.from_arrays([entity, ids], names=["entity", "id"])
    identity = Given("entity", ("id",), order_by=("id",))
    stamped = identity.stamper("0of1").stamp(batch.sort_by("id"))
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        gathered = Gathered()
        gathered.add(stamped.id_sets())
        payloads.dump_payload({"ids": gathered.ids().written()})
        made = gc.get_count()[0] - before
    finally:
        gc.enable()
    assert made < 500
