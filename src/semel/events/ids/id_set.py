"""Sets of event ids, small enough to be the payload of a ledger row.

- The ids of one set have one shape: all integers, all texts, or tuples whose parts agree; anything
  else is a ValueError.
- Integers are stored as merged inclusive intervals: a run without gaps is one pair, however long.
- Sets are immutable, and equal sets have one JSON form.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from semel.events.event import EventID

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]
Shape = str | tuple[str, ...]

INTEGER = "integer"
TEXT = "text"


class IdSet:
    """An immutable set of event ids of one shape."""

    __slots__ = ("_items", "_shape")

    EMPTY: ClassVar[IdSet]

    def __init__(self, shape: Shape | None, items: tuple[Any, ...]) -> None:
        """Assumes that `items` are sorted, merged and of this shape; `of` and `from_...` do not."""
        self._shape = shape if items else None
        self._items = items

    @classmethod
    def of(cls, ids: Iterable[EventID]) -> IdSet:
        """Return the set of these ids. Raises ValueError if they are not of one shape."""
        if isinstance(ids, IdSet):
            return ids
        distinct: list[Any] = list(dict.fromkeys(ids))
        shapes = {_shape_of(each) for each in distinct}
        if len(shapes) > 1:
            raise ValueError(f"event ids of several shapes in one set: {sorted(map(str, shapes))}")
        if not distinct:
            return cls.EMPTY
        shape = shapes.pop()
        if shape == INTEGER:
            return cls(INTEGER, _merged((each, each) for each in distinct))
        return cls(shape, tuple(sorted(distinct)))

    @classmethod
    def from_intervals(cls, intervals: Iterable[Sequence[int]]) -> IdSet:
        """Return the set of integers in these inclusive intervals, which may touch and overlap."""
        pairs: list[Interval] = []
        for first, last in intervals:
            if _shape_of(first) != INTEGER or _shape_of(last) != INTEGER or last < first:
                raise ValueError(f"[{first!r}, {last!r}] is not an interval of integers")
            pairs.append((first, last))
        return cls(INTEGER, _merged(pairs))

    @property
    def shape(self) -> Shape | None:
        """`integer`, `text`, a tuple of those, or None for the empty set."""
        return self._shape

    @property
    def intervals(self) -> Intervals:
        """The inclusive intervals of a set of integers. Raises ValueError for other shapes."""
        if self._shape not in (INTEGER, None):
            raise ValueError(f"a set of {self._shape} ids has no intervals")
        return self._items

    def __contains__(self, id: object) -> bool:  # noqa: A002 - the term of the design
        if not self._items or _shape_or_none(id) != self._shape:
            return False
        if self._shape == INTEGER:
            number = cast("int", id)
            at = bisect_right(self._items, number, key=_first) - 1
            return at >= 0 and number <= self._items[at][1]
        at = bisect_left(self._items, cast("Any", id))
        return at < len(self._items) and bool(self._items[at] == id)

    def __len__(self) -> int:
        if self._shape == INTEGER:
            return sum(last - first + 1 for first, last in self._items)
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def __iter__(self) -> Iterator[EventID]:
        if self._shape == INTEGER:
            return chain.from_iterable(range(first, last + 1) for first, last in self._items)
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IdSet):
            return NotImplemented
        return self._shape == other._shape and self._items == other._items

    def __hash__(self) -> int:
        return hash((self._shape, self._items))

    def __repr__(self) -> str:
        return f"IdSet({self.to_json()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return IdSet, (self._shape, self._items)

    def __or__(self, other: IdSet) -> IdSet:
        shape = self._common_shape(other)
        if not self._items or not other._items:
            return self if self._items else other
        if shape == INTEGER:
            return IdSet(shape, _merged(self._items + other._items))
        return IdSet(shape, tuple(sorted({*self._items, *other._items})))

    def __sub__(self, other: IdSet) -> IdSet:
        shape = self._common_shape(other)
        if shape == INTEGER:
            return IdSet(shape, _minus(self._items, other._items))
        gone = set(other._items)
        return IdSet(shape, tuple(each for each in self._items if each not in gone))

    def __and__(self, other: IdSet) -> IdSet:
        shape = self._common_shape(other)
        if shape == INTEGER:
            return IdSet(shape, _common(self._items, other._items))
        both = set(other._items)
        return IdSet(shape, tuple(each for each in self._items if each in both))

    def isdisjoint(self, other: IdSet) -> bool:
        """Return whether no id is in both."""
        return not self & other

    def max(self) -> EventID:
        """Return the greatest id. Raises ValueError for the empty set."""
        if not self._items:
            raise ValueError("the empty set of event ids has no greatest id")
        return cast("EventID", self._items[-1][1] if self._shape == INTEGER else self._items[-1])

    def min(self) -> EventID:
        """Return the least id. Raises ValueError for the empty set."""
        if not self._items:
            raise ValueError("the empty set of event ids has no least id")
        return cast("EventID", self._items[0][0] if self._shape == INTEGER else self._items[0])

    def to_json(self) -> Any:
        """Integers as [[first, last], ...], texts as ["a", ...], tuples as {"of": [[...], ...]}."""
        if self._shape in (TEXT, None):
            return list(self._items)
        lists = [list(each) for each in self._items]
        return lists if self._shape == INTEGER else {"of": lists}

    @classmethod
    def from_json(cls, value: Any) -> IdSet:
        """Read the output of `to_json`. Raises ValueError for anything else."""
        if isinstance(value, dict) and value.keys() == {"of"}:
            return cls.of(tuple(each) for each in value["of"])
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return cls.of(value)
        if isinstance(value, list) and all(
            isinstance(each, (list, tuple)) and len(each) == 2 for each in value
        ):
            return cls.from_intervals(value)
        raise ValueError(f"not a set of event ids: {value!r}")

    def _common_shape(self, other: IdSet) -> Shape | None:
        shapes = {self._shape, other._shape} - {None}
        if len(shapes) > 1:
            raise ValueError(f"event ids of several shapes: {self._shape} and {other._shape}")
        return next(iter(shapes), None)


IdSet.EMPTY = IdSet(None, ())


def shape_of(id: EventID) -> Shape:  # noqa: A002 - the term of the design
    """Return the shape of an event id. Raises ValueError for any other value."""
    return _shape_of(id)


def _shape_of(id: object) -> Shape:  # noqa: A002
    shape = _shape_or_none(id)
    if shape is None:
        raise ValueError(f"{id!r} is not an event id: an integer, a text or a tuple of those")
    return shape


def _shape_or_none(id: object) -> Shape | None:  # noqa: A002
    if isinstance(id, str):
        return TEXT
    if isinstance(id, int) and not isinstance(id, bool):
        return INTEGER
    if isinstance(id, tuple) and id:
        parts = tuple(_shape_or_none(part) for part in id)
        if all(isinstance(part, str) for part in parts):
            return cast("tuple[str, ...]", parts)
    return None


def _first(interval: Interval) -> int:
    return interval[0]


def _merged(intervals: Iterable[Interval]) -> Intervals:
    kept: list[Interval] = []
    for first, last in sorted(intervals):
        if kept and first <= kept[-1][1] + 1:
            if last > kept[-1][1]:
                kept[-1] = (kept[-1][0], last)
        else:
            kept.append((first, last))
    return tuple(kept)


def _minus(mine: Intervals, theirs: Intervals) -> Intervals:
    kept: list[Interval] = []
    at = 0
    for first, last in mine:
        start = first
        while at < len(theirs) and theirs[at][1] < start:
            at += 1
        ahead = at
        while ahead < len(theirs) and theirs[ahead][0] <= last:
            if theirs[ahead][0] > start:
                kept.append((start, theirs[ahead][0] - 1))
            start = theirs[ahead][1] + 1
            ahead += 1
        if start <= last:
            kept.append((start, last))
    return tuple(kept)


def _common(mine: Intervals, theirs: Intervals) -> Intervals:
    kept: list[Interval] = []
    left = right = 0
    while left < len(mine) and right < len(theirs):
        first = max(mine[left][0], theirs[right][0])
        last = min(mine[left][1], theirs[right][1])
        if first <= last:
            kept.append((first, last))
        if mine[left][1] < theirs[right][1]:
            left += 1
        else:
            right += 1
    return tuple(kept)
