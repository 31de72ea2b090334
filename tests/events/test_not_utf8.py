"""A text that names an event is UTF-8; Spark's own strings need not be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Identity, Position

BAD = b"caf\xe9\n\x1b"


def text(*values: bytes, wide: bool = False) -> pa.Array:
    """Texts as Spark's workers get them: their bytes were not checked."""
    kind, raw = (pa.large_string(), pa.large_binary()) if wide else (pa.string(), pa.binary())
    return pa.array(values, raw).view(kind)


def batch(entity: pa.Array, event: pa.Array) -> pa.RecordBatch:
    count = len(entity)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count),
            "offset": pa.array(range(count)),
            "who": entity,
            "id": event,
        }
    )


IDENTITIES: dict[str, Identity] = {
    "given": Given("who", ("id",), order_by=("offset",)),
    "counter": Counter("who"),
    "position": Position(entity="who"),
}


@pytest.mark.parametrize("kind", IDENTITIES)
@pytest.mark.parametrize("wide", [False, True])
def test_an_entity_that_is_not_utf8_is_refused_with_its_column_and_position(
    kind: str, wide: bool
) -> None:
    stamper = IDENTITIES[kind].stamper("t/0")
    good = text(b"a", b"b", wide=wide)
    numbers = pa.array(["1", "2"])
    stamper.stamp(batch(good, numbers))
    more = batch(text(b"c", BAD, wide=wide), numbers)
    more = more.set_column(2, "offset", pa.array([2, 3]))
    with pytest.raises(ConfigurationError) as refused:
        stamper.stamp(more)
    assert str(refused.value).startswith(
        "entity column 'who' is a text that is not UTF-8, b'caf\\xe9\\n\\x1b' (the event at "
        "position 3 of partition 't/0'); filter such rows out"
    )


@pytest.mark.parametrize("wide", [False, True])
def test_an_id_that_is_not_utf8_is_refused_with_its_column_and_position(wide: bool) -> None:
    stamper = IDENTITIES["given"].stamper("3of8")
    with pytest.raises(ConfigurationError, match=r"event id column 'id' is a text .* position 1 "):
        stamper.stamp(batch(text(b"a", b"a"), text(b"x", BAD, wide=wide)))


def test_a_topic_that_is_not_utf8_is_refused_before_rows_are_told_apart_by_it() -> None:
    rows = batch(text(b"a"), text(b"x")).set_column(0, "topic", text(BAD))
    with pytest.raises(ConfigurationError, match="position column 'topic' is a text that is not"):
        Position().split(rows)
