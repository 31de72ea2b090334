"""Sets of event ids behave as sets, whatever the ids, and keep to one shape."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.events import EntityIds, IdSet

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

INTEGERS = st.frozensets(st.integers(-8, 24) | st.integers())
TEXTS = st.frozensets(st.text(max_size=3))
TUPLES = st.frozensets(st.tuples(st.integers(0, 3), st.text("ab", max_size=2)))
PAIRS = st.tuples(INTEGERS, INTEGERS) | st.tuples(TEXTS, TEXTS) | st.tuples(TUPLES, TUPLES)
BY_SCOPE = st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(0, 9)))


def flat(sets: dict[str, Any]) -> set[tuple[str, Any]]:
    return {(scope, each) for scope, ids in sets.items() for each in ids}


def flatten(ids: EntityIds) -> set[tuple[str, Any]]:
    return {(scope, each) for scope, kept in ids.items() for each in kept}


@given(PAIRS)
def test_an_id_set_is_the_set_of_its_ids(pair: tuple[AbstractSet[Any], AbstractSet[Any]]) -> None:
    mine, theirs = pair
    left, right = IdSet.of(mine), IdSet.of(theirs)
    assert list(left) == sorted(mine)
    assert len(left) == len(mine)
    assert bool(left) == bool(mine)
    assert all(each in left for each in mine)
    assert not any(each in left for each in theirs - mine)
    assert list(left | right) == sorted(mine | theirs)
    assert list(left & right) == sorted(mine & theirs)
    assert list(left - right) == sorted(mine - theirs)
    assert left.isdisjoint(right) == mine.isdisjoint(theirs)
    assert (left == right) == (mine == theirs)


@given(PAIRS)
def test_equal_sets_are_one_value_however_they_were_made(
    pair: tuple[AbstractSet[Any], AbstractSet[Any]],
) -> None:
    mine, theirs = map(IdSet.of, pair)
    made = {mine | theirs, theirs | mine, (mine - theirs) | theirs, (theirs - mine) | mine}
    assert len(made) == 1
    assert len({json.dumps(each.to_json()) for each in made}) == 1


@given(PAIRS)
def test_a_set_survives_json_and_pickle(pair: tuple[AbstractSet[Any], AbstractSet[Any]]) -> None:
    ids = IdSet.of(pair[0])
    assert IdSet.from_json(json.loads(json.dumps(ids.to_json()))) == ids
    assert pickle.loads(pickle.dumps(ids)) == ids


def test_a_run_of_ids_is_one_pair_however_long() -> None:
    ids = IdSet.from_intervals([[5, 10**30], [-(10**30), 4]])
    assert ids.to_json() == [[-(10**30), 10**30]]
    assert 0 in ids
    assert 10**30 + 1 not in ids
    assert (ids.min(), ids.max()) == (-(10**30), 10**30)
    assert (ids - IdSet.of([7])).to_json() == [[-(10**30), 6], [8, 10**30]]


def test_each_shape_has_its_own_json() -> None:
    assert IdSet.of([3, 1, 2, 9]).to_json() == [[1, 3], [9, 9]]
    assert IdSet.of(["b", "a"]).to_json() == ["a", "b"]
    assert IdSet.of([(2, "b"), (1, "a")]).to_json() == {"of": [[1, "a"], [2, "b"]]}
    assert IdSet.EMPTY.to_json() == []
    assert IdSet.from_json([]) == IdSet.EMPTY


@pytest.mark.parametrize("ids", [[1, "1"], [(1, 2), (1, "2")], [(1, 2), (1, 2, 3)], [1, (1,)]])
def test_ids_of_several_shapes_are_not_one_set(ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="several shapes"):
        IdSet.of(ids)


@pytest.mark.parametrize("id_", [1.0, True, None, (), (1, None), b"a"])
def test_what_is_no_id_is_refused(id_: Any) -> None:
    with pytest.raises(ValueError, match="not an event id"):
        IdSet.of([id_])
    assert id_ not in IdSet.of([1])


def test_sets_of_two_shapes_do_not_mix() -> None:
    with pytest.raises(ValueError, match="several shapes"):
        IdSet.of([1]) | IdSet.of(["1"])
    assert "1" not in IdSet.of([1])


def test_the_empty_set_has_no_ends() -> None:
    with pytest.raises(ValueError, match="greatest"):
        IdSet.EMPTY.max()
    with pytest.raises(ValueError, match="least"):
        IdSet.EMPTY.min()


@pytest.mark.parametrize(
    "value", [[[2, 1]], [[1]], {"of": [[1]], "and": []}, [1], "ab", [["a", "b"]]]
)
def test_json_that_is_no_set_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not"):
        IdSet.from_json(value)


@given(BY_SCOPE, BY_SCOPE)
def test_ids_by_scope_are_a_set_of_pairs(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    left, right = EntityIds.of(mine), EntityIds.of(theirs)
    assert flatten(left | right) == flat(mine) | flat(theirs)
    assert flatten(left & right) == flat(mine) & flat(theirs)
    assert flatten(left - right) == flat(mine) - flat(theirs)
    assert left.isdisjoint(right) == flat(mine).isdisjoint(flat(theirs))
    assert len(left) == len(flat(mine))
    assert bool(left) == bool(flat(mine))
    assert (left == right) == (flat(mine) == flat(theirs))
    assert all(left.contains(scope, each) for scope, each in flat(mine))
    assert not any(left.contains(scope, each) for scope, each in flat(theirs) - flat(mine))
    assert EntityIds.from_json(json.loads(json.dumps(left.to_json()))) == left
    assert pickle.loads(pickle.dumps(left)) == left


def test_a_union_does_not_change_what_it_was_made_of() -> None:
    one, other = EntityIds.of({"a": [1]}), EntityIds.of({"a": [2], "b": [1]})
    both = one | other
    assert (len(one), len(other), len(both)) == (1, 2, 3)


def test_json_by_scope_is_sorted_and_without_empty_scopes() -> None:
    ids = EntityIds.of({"b": [1, 2], "a": ["x"], "c": []})
    assert list(ids.to_json().items()) == [("a", ["x"]), ("b", [[1, 2]])]
    assert set(ids.scopes()) == {"a", "b"}
    assert ids.get("c") == IdSet.EMPTY
