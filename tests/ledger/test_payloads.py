"""Payloads return the value that was written, and equal values are equal text."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.events.encoding import decode_value, encode_value
from semel.ledger import payloads

# A high surrogate next to a low one is one character in JSON; alone, each survives.
texts = st.text(st.characters()).map(lambda text: text.encode("utf-16", "surrogatepass").decode(
    "utf-16", "surrogatepass"))  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
plain = st.recursive(
    scalars.filter(lambda v: not (isinstance(v, float) and math.isinf(v))),
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)
columns = st.recursive(
    scalars
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30))))
    | st.dates()
    | st.times()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(texts, inner)
        | st.dictionaries(st.sampled_from(["$map", "$bytes", "$", "$$", "z"]), inner, max_size=1)
        | st.dictionaries(st.integers() | st.dates() | st.binary(), inner)
    ),
    max_leaves=10,
)


def shown(value: Any) -> str:
    """Show a value with its types; the order of a dictionary's names is not part of it."""
    if isinstance(value, dict):
        return str(sorted((shown(name), shown(each)) for name, each in value.items()))
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[shown(each) for each in value]}"
    return repr(value)


@given(st.dictionaries(texts, plain))
@example({"z": "x"})
@example({"z": 1})
@example({"nul": "a\x00b", "\x00": "\ud800"})
def test_what_is_put_in_comes_out(value: dict[str, Any]) -> None:
    text = payloads.dump_payload(value)
    assert payloads.load_payload(text) == value
    assert "\x00" not in text
    text.encode()


@given(st.dictionaries(texts, plain, min_size=2))
def test_the_order_of_names_does_not_show(value: dict[str, Any]) -> None:
    assert payloads.dump_payload(value) == payloads.dump_payload(dict(reversed(value.items())))


def test_a_person_can_read_it() -> None:
    assert payloads.dump_payload({"b": "grüße", "a": [1, None]}) == '{"a":[1,null],"b":"grüße"}'


@pytest.mark.parametrize("text", ["x", "é", "\x00", "\ud800", "€uro"])
@pytest.mark.parametrize("count", [64 * 1024 - 9, 64 * 1024, 200_000])
def test_a_large_payload_is_compressed_and_expands_again(text: str, count: int) -> None:
    value = {"a": text * count}
    stored = payloads.dump_payload(value)
    assert payloads.load_payload(stored) == value
    assert payloads.dump_payload(value) == stored
    if count > 64 * 1024:
        assert len(stored) < 64 * 1024
        assert json.loads(stored).keys() == {"z"}


def test_the_limit_is_in_bytes() -> None:
    assert payloads.dump_payload({"a": "x" * (64 * 1024 - 8)}).startswith('{"a"')
    assert payloads.dump_payload({"a": "x" * (64 * 1024 - 7)}).startswith('{"z"')
    assert payloads.dump_payload({"a": "é" * (32 * 1024)}).startswith('{"z"')


def test_nan_has_no_place_in_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        payloads.dump_payload({"a": math.nan})


@given(columns)
@example({"$bytes": "x"})
@example({"$map": []})
@example(datetime(2024, 10, 27, 2, 30, fold=1))  # noqa: DTZ001 - naive on purpose
@example(2**63)
@example(-(2**63))
@example(math.inf)
@example(-0.0)
def test_the_value_of_a_column_comes_back_as_it_was(value: Any) -> None:
    again = decode_value(
        payloads.load_payload(payloads.dump_payload({"v": encode_value(value)}))["v"]
    )
    assert shown(again) == shown(value)


@pytest.mark.parametrize("value", [math.nan, Decimal("NaN"), Decimal("-0E-10"), time(1, fold=1)])
def test_what_is_not_equal_to_itself_comes_back_too(value: Any) -> None:
    assert repr(decode_value(encode_value(value))) == repr(value)


def test_an_instant_survives_though_its_zone_has_no_name_any_more() -> None:
    value = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    again = decode_value(encode_value(value))
    assert again.astimezone(UTC) == value.astimezone(UTC)
    assert again.utcoffset() == value.utcoffset()


def test_integers_that_other_readers_would_round_are_text() -> None:
    assert encode_value(2**63 - 1) == 2**63 - 1
    assert encode_value(2**63) == {"$int": str(2**63)}


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": [date]}])
def test_a_type_that_no_column_has_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="no form in the ledger"):
        encode_value(value)
