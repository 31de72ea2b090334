"""By hash, by range, by directory: each entity has one partition, whoever computes it."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel.delivery import PipelineSpec
from semel.errors import ConfigurationError
from semel.events import Given
from semel.events.routing import Routing, is_continued, places
from semel.sinks import sink

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1)
NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)


def bounds_of(values: list[Any]) -> list[Any]:
    return sorted(set(values))[:7]


@pytest.mark.rows("S14")
@settings(deadline=None)
@given(entities=st.one_of(TEXTS, NUMBERS), others=st.data())
def test_each_entity_is_in_exactly_one_partition_that_there_is(
    entities: list[Any], others: st.DataObject
) -> None:
    kind = pa.int64() if isinstance(entities[0], int) else pa.string()
    bounds = bounds_of(others.draw(NUMBERS if isinstance(entities[0], int) else TEXTS))
    table = {each: place % 3 for place, each in enumerate(sorted(set(entities))[:5])}
    routings: list[tuple[Routing | None, int]] = [
        (None, 5),
        (semel.by_range(bounds), len(bounds) + 1),
        (semel.by_directory(table, partitions=4, default=3), 4),
        (semel.by_directory(len, partitions=9), 9),
        (semel.by_directory(lambda entity: sum(entity.encode()) % 7, partitions=7), 7),
    ]
    for routing, n in routings[: 3 if kind == pa.int64() else 5]:
        array = pa.array(entities + entities[::-1], kind)
        found = places(array, n, routing).tolist()
        assert all(0 <= each < n for each in found)
        by_entity: dict[Any, set[int]] = {}
        for entity, each in zip(array.to_pylist(), found, strict=True):
            by_entity.setdefault(entity, set()).add(each)
        assert all(len(each) == 1 for each in by_entity.values())
        assert places(array.dictionary_encode(), n, routing).tolist() == found
        assert places(array, n, pickle.loads(pickle.dumps(routing)) if n < 5 else routing).tolist()


@pytest.mark.rows("S14")
@settings(deadline=None)
@given(entities=NUMBERS, bounds=NUMBERS)
def test_ranges_are_in_the_order_of_their_entities(entities: list[int], bounds: list[int]) -> None:
    chosen = bounds_of(bounds)
    ordered = sorted(entities)
    found = places(pa.array(ordered, pa.int64()), len(chosen) + 1, semel.by_range(chosen)).tolist()
    assert found == sorted(found)
    assert found == [sum(bound <= each for bound in chosen) for each in ordered]


def test_bounds_are_the_first_of_their_range_and_texts_go_by_their_bytes() -> None:
    def parts(entities: list[Any], bounds: list[Any]) -> list[int]:
        found = places(pa.array(entities), len(bounds) + 1, semel.by_range(bounds))
        return [int(each) for each in found]

    assert parts([-5, 99, 100, 199, 200], [100, 200]) == [0, 0, 1, 1, 2]
    assert parts(["", "a", "m", "mm", "z", "\u00e9"], ["m", "z"]) == [0, 0, 1, 1, 2, 2]
    assert parts(["10", "9"], ["5"]) == [0, 1]


def test_a_function_is_called_once_for_each_distinct_entity() -> None:
    calls: list[str] = []

    def region(entity: str) -> int:
        calls.append(entity)
        return int(entity) % 2

    array = pa.array([7, 8, 7, 7, 8] * 1000)
    found = places(array, 2, semel.by_directory(region, partitions=2))
    assert found.tolist() == [1, 0, 1, 1, 0] * 1000
    assert sorted(calls) == ["7", "8"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: semel.by_range([]), "at least one"),
        (lambda: semel.by_range([1, "a"]), "all of one kind"),  # type: ignore[arg-type]
        (lambda: semel.by_range([True]), "must be integers or strings"),
        (lambda: semel.by_range([2, 1]), "bounds must increase"),
        (lambda: semel.by_range("abc"), "needs a list of bounds"),
        (lambda: semel.by_directory({}), "must have 1 to 10000"),
        (lambda: semel.by_directory({1: 0, "1": 1}), "2 entities of 1 names"),
        (lambda: semel.by_directory({"a": -1}), "got -1"),
        (lambda: semel.by_directory({"a": 1.5}), "got 1.5"),  # type: ignore[dict-item]
        (lambda: semel.by_directory({"a": 4}, partitions=4), "numbered from 0 to 3"),
        (lambda: semel.by_directory(7), "needs a dict"),  # type: ignore[arg-type]
        (lambda: semel.by_directory(len, default=1), "default= needs a table"),
    ],
)
def test_a_routing_that_cannot_be_is_refused_where_it_is_made(make: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make()


@pytest.mark.parametrize(
    ("routing", "why"),
    [
        (semel.by_directory({"a": 0}), "entity 'x' is not in the table of by_directory"),
        (semel.by_directory(lambda _: 9, partitions=2), "returned 9 for entity 'x'"),
        (semel.by_directory(lambda _: True, partitions=2), "returned True for entity 'x'"),
        (semel.by_range([5]), "entity 'x' is not an integer"),
    ],
)
def test_an_entity_without_a_partition_is_named(routing: Routing, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        places(pa.array(["x"]), 2, routing)


def test_only_a_table_without_a_default_may_name_further_entities() -> None:
    def table(default: int | None = None, **entities: int) -> dict[str, Any]:
        return semel.by_directory(entities, partitions=4, default=default).describe()

    assert is_continued(table(a=0), table(a=0, b=1))
    assert not is_continued(table(a=0, b=1), table(a=0))
    assert not is_continued(table(a=0), table(a=1))
    assert not is_continued(table(3, a=0), table(3, a=0, b=1))  # b was in partition 3
    assert not is_continued(None, table(a=0))
    assert not is_continued(semel.by_range([1]).describe(), None)


def test_the_number_of_partitions_follows_from_the_routing() -> None:
    def agreed(**words: Any) -> int | None:
        return PipelineSpec("pay", (sink(print),), Given("c", ("id",)), **words).partitions

    assert agreed(partition_by=semel.by_range([1, 2])) == 3
    assert agreed(partition_by=semel.by_directory({"a": 4})) == 5
    assert agreed(partition_by=semel.by_directory(len), partitions=6) == 6
    refused: list[tuple[dict[str, Any], str]] = [
        ({"partition_by": semel.by_directory(len)}, "pass partitions=8"),
        ({"partition_by": semel.by_range([1]), "partitions": 3}, "spreads entities over 2"),
        ({"partition_by": {"a": 1}}, r"must be semel.by_range\(\[...\]\) or semel.by_directory"),
    ]
    for words, why in refused:
        with pytest.raises(ConfigurationError, match=why):
            agreed(**words)
