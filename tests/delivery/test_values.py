"""Values that Arrow has and Python has not, and ids whose type was changed: each is named."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.delivery.parking import parking
from semel.errors import ConfigurationError
from semel.events import Digest, Identity, Rows
from semel.events.encoding import decode_value, encode_value
from semel.ledger import payloads
from semel.protocol import OnReject
from support.pipeline import GIVEN, INCREASING, World, world_like

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
    rows.require_python_values()
    assert [rows.value(at) for at in range(2)] == rows.values() == rows.batch.to_pylist()


@pytest.mark.parametrize("identity", [GIVEN, INCREASING], ids=["given", "increasing"])
def test_ids_whose_type_was_changed_are_told_in_words(identity: Identity) -> None:
    world = world_like("transactional", identity)
    world.minibatch(0, "a1 a2")
    _lose_the_checkpoint(world)
    opening = world.open(0, "q2")
    texts = pa.RecordBatch.from_pydict({"c": ["a"], "id": ["3"], "v": [0]})
    with pytest.raises(ConfigurationError, match=r"text ids.*integer ids.*Cast.*new pipeline name"):
        world.task(opening, [texts])


def _lose_the_checkpoint(world: World) -> None:
    world.start()


# -- parked all the same

PARKED = {
    **CASES,
    "a moment in the year 290000": pa.array([0, 2**63 - 1]).cast(pa.timestamp("us")),
    "a duration of 290000 million years": pa.array([0, 2**63 - 1]).cast(pa.duration("s")),
    "nanoseconds": pa.array([0, 1_000_000_001]).cast(pa.timestamp("ns")),
    "a duration in nanoseconds": pa.array([0, 1_000_000_001]).cast(pa.duration("ns")),
    "a decimal of 76 digits": pa.array([0, 10**75], pa.decimal256(76, 0)),
    "a null": pa.array([None, None], pa.timestamp("us", "Asia/Tokyo")),
    "not a number": pa.array([0.0, float("nan")]),
}


def parked_behind(values: pa.Array) -> World:
    """The event with the second value waits behind one of its entity that was refused."""
    world = world_like("transactional", GIVEN, on_reject=OnReject.BLOCK)
    world.out.refuses.add("b1")
    world.minibatch(0, "b1")
    world.out.refuses.clear()
    opening = world.open(1)
    later = batch(values).slice(1)
    world.driver.end(opening, world.task(opening, [later]))
    assert world.parked() == ["b1 rejected", "b2 waiting"]
    return world


@pytest.mark.parametrize("name", list(PARKED))
def test_an_event_with_a_value_python_cannot_hold_is_parked_as_it_was(name: str) -> None:
    world = parked_behind(PARKED[name])
    row = world.parked_rows()[1][1]
    again = parking.rows_of(row).batch
    assert str(again.schema) == str(batch(PARKED[name]).schema)
    assert _digest(again) == _digest(batch(PARKED[name]).slice(1))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a moment in the year 290000", "294247-01-10 04:00:54.775807"),
        ("a duration of 290000 million years", str(2**63 - 1)),
        ("nanoseconds", "1970-01-01 00:00:01.000000001"),
        ("a date after the year 9999", "12921-08-"),
        ("text that is not UTF-8", "\\xff\\xfe"),
    ],
)
def test_a_person_can_read_such_a_value(name: str, shown: str) -> None:
    value = parked_behind(PARKED[name]).parked_rows()[1][1].value
    assert value is not None
    assert shown in str(value["v"])
    assert shown in repr(value["v"])


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["s", "ms", "us", "ns"]), st.booleans())
def test_every_moment_and_duration_comes_back_from_the_ledger(
    number: int, unit: str, zoned: bool
) -> None:
    for kind in (pa.timestamp(unit, "Asia/Tokyo" if zoned else None), pa.duration(unit)):
        made = rows_of(pa.array([0, number]).cast(kind))
        value = parking.value_of(made, 1)
        kept = {name: encode_value(each) for name, each in value.items()}
        read = payloads.load_payload(payloads.dump_payload(kept))
        back = decode_value(read["v"])
        assert parking._array(back, kind).cast(pa.int64()).to_pylist() == [number]


def _digest(rows: pa.RecordBatch) -> str:
    digest = Digest(rows.schema)
    digest.update(rows)
    return digest.hexdigest()
