"""Values that Arrow has and Python has not, and ids whose type was changed: told in words."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from delivery.world import GIVEN, INCREASING, World, world_like
from semel.errors import ConfigurationError
from semel.events import Identity, Rows
from semel.events.values import require_values

LAST = pa.array([0, 253402300799_000000], pa.int64()).cast(pa.timestamp("us", "Asia/Tokyo"))
FAR = pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())
TEXT = pa.Array.from_buffers(
    pa.string(),
    2,
    [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"x\xff\xfe")],
)
CASES = {
    "9999 in a zone east of Greenwich": LAST,
    "a date after the year 9999": FAR,
    "text that is not UTF-8": TEXT,
    "within a struct": pa.StructArray.from_arrays([LAST], ["x"]),
    "within a list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), LAST),
}


def batch(values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array([1, 2]), values], ["c", "id", "v"]
    )


def rows_of(values: pa.Array) -> Rows:
    return GIVEN.stamper("0").stamp(batch(values))


@pytest.mark.parametrize("name", list(CASES))
def test_a_value_python_cannot_hold_is_told_before_there_is_an_intent(name: str) -> None:
    world = world_like("opaque", GIVEN, window=2)
    for _ in range(2):
        world.start()
        opening = world.open(0)
        with pytest.raises(ConfigurationError, match=r"column 'v' .* event 2 of 'b'.*Cast"):
            world.task(opening, [batch(CASES[name])])
        assert (world.out.seen, world.spans(), world.streams()) == ("", [], [])
    mended = batch(CASES[name]).set_column(2, "v", pa.array([1, 2]))
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, [mended]))
    assert world.out.seen == "a1 b2"


@pytest.mark.parametrize("kind", ["transactional", "repeatable", "probing", "sequenced"])
@pytest.mark.parametrize("name", list(CASES))
def test_a_value_python_cannot_hold_is_told_when_any_other_sink_asks_for_it(
    kind: str, name: str
) -> None:
    world = world_like(kind, GIVEN)
    opening = world.open(0)
    with pytest.raises(ConfigurationError, match=r"column 'v' .* event 2 of 'b'"):
        world.task(opening, [batch(CASES[name])])


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 253402300799_000000], pa.int64()).cast(pa.timestamp("us")),
        pa.array([None, None], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        pa.array([{"x": [1]}, None]),
        pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
        pa.array([dt.timedelta(1), None]),
    ],
    ids=lambda values: str(values.type),
)
def test_values_at_the_edge_that_python_can_hold_are_let_through(values: pa.Array) -> None:
    rows = rows_of(values)
    require_values(rows)
    assert [rows.value(at) for at in range(2)] == rows.values() == rows.batch.to_pylist()


@pytest.mark.parametrize("identity", [GIVEN, INCREASING], ids=["given", "increasing"])
def test_ids_whose_type_was_changed_are_told_in_words(identity: Identity) -> None:
    world = world_like("transactional", identity)
    world.minibatch(0, "a1 a2")
    _lose_the_checkpoint(world)
    opening = world.open(0, "q2")
    texts = pa.RecordBatch.from_pydict({"c": ["a"], "id": ["3"], "v": [0]})
    with pytest.raises(ConfigurationError, match=r"text ids.*integer ids.*Cast.*new name"):
        world.task(opening, [texts])


def _lose_the_checkpoint(world: World) -> None:
    world.start()
