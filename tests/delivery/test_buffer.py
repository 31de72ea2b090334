"""The buffer of a partition: rows leave in the order in which they came, each digested once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.delivery.assignment import COLUMNS_MAX, recorded_columns
from semel.delivery.partition import Buffer
from semel.events import Digest, Rows
from support.pipeline import GIVEN, events


def rows(text: str) -> Rows:
    return GIVEN.stamper("0").stamp(events(text))


def named(found: Rows) -> str:
    return " ".join(f"{found.entity(at)}{found.id(at)}" for at in range(len(found)))


def digest(text: str) -> str:
    made = Digest(events(text).schema)
    made.update(events(text))
    return made.hexdigest()


def test_rows_of_several_batches_leave_as_wanted() -> None:
    buffer = Buffer()
    buffer.push(rows("a1 b2"))
    buffer.push(rows("c3 d4 e5"))
    assert (buffer.count, buffer.waiting, buffer.position) == (5, 5, 0)
    assert named(buffer.next(3)) == "a1 b2 c3"
    buffer.drop(3)
    assert (buffer.count, buffer.waiting, buffer.position) == (5, 2, 3)
    left = buffer.next(9)
    assert (named(left), left.positions.tolist()) == ("d4 e5", [3, 4])
    assert buffer.ends == ([1, "a"], [5, "e"])


def test_what_is_not_done_stays() -> None:
    buffer = Buffer()
    buffer.push(rows("a1 b2"))
    buffer.next(2)
    buffer.drop(0)
    assert named(buffer.next(2)) == "a1 b2"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.booleans())
def test_the_digest_does_not_depend_on_the_steps_or_on_looking_ahead(
    sizes: list[int], ahead: bool
) -> None:
    names = [f"a{at}" for at in range(1, sum(sizes) + 1)]
    buffer = Buffer()
    buffer.push(rows(" ".join(names)))
    for size in sizes:
        buffer.next(size)
        stop = buffer.position + size
        if ahead:
            assert buffer.digest_to(stop) == digest(" ".join(names[:stop]))
        buffer.drop(size)
    assert buffer.digest_to(buffer.position) == digest(" ".join(names))


def test_a_digest_that_was_looked_up_too_far_is_not_taken() -> None:
    buffer = Buffer()
    buffer.push(rows("a1 b2 c3"))
    buffer.next(3)
    buffer.digest_to(3)
    buffer.drop(2)
    assert buffer.digest_to(2) == digest("a1 b2")


def test_columns_are_those_of_the_first_rows_unless_they_are_too_many() -> None:
    buffer = Buffer()
    buffer.push(rows("a1"))
    assert buffer.columns == recorded_columns(rows("a1"))
    assert list(buffer.columns or ()) == events("a1").schema.names
    names = [*events("a1").schema.names[:-1], "v" * COLUMNS_MAX]
    wide = Buffer()
    wide.push(GIVEN.stamper("0").stamp(events("a1").rename_columns(names)))
    assert wide.columns is None
