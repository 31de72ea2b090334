"""Different parts make different keys, and keys sort as their parts do."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semel.events.event import EventID
from semel.ledger import keys

numbers = st.integers() | st.integers(-(10**60), 10**60)
texts = st.text(st.characters(), max_size=20) | st.text("a/%'(),-~\x00\ud800", max_size=8)
parts = st.lists(texts, min_size=1, max_size=4).map(tuple)
events = (
    numbers | texts | st.lists(numbers | texts, max_size=3).map(tuple) | st.tuples(numbers, numbers)
)


def by_bytes(*values: str | int) -> bytes:
    return keys.make_key("t", *values).key.encode()


@given(parts, parts)
@example(("a/b", "c"), ("a", "b/c"))
@example(("",), ("", ""))
@example(("%2F",), ("/",))
@example(("%-",), ("",))
def test_different_parts_make_different_keys(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (keys.make_key("t", *one) == keys.make_key("t", *other)) == (one == other)


@given(parts)
def test_a_key_can_be_taken_apart_again(given_parts: tuple[str, ...]) -> None:
    written = keys.split_key(keys.make_key("t", *given_parts).key)
    assert tuple(map(keys.key_text, written)) == given_parts


@given(numbers)
def test_a_number_can_be_read_again(number: int) -> None:
    assert keys.key_number(keys.written_part(number)) == number


@given(numbers, numbers)
@example(9, 10)
@example(-9, -10)
@example(-1, 0)
@example(10**24, 10**25)
@example(-(10**25), -(10**24))
@example(10**98, 10**99)
def test_numbers_sort_by_bytes_as_numbers(one: int, other: int) -> None:
    assert (by_bytes(one) < by_bytes(other)) == (one < other)


@given(st.lists(numbers, min_size=2, max_size=3), st.lists(numbers, min_size=2, max_size=3))
def test_keys_of_several_numbers_sort_part_by_part(one: list[int], other: list[int]) -> None:
    assert (by_bytes(*one) < by_bytes(*other)) == (one < other)


@given(events, events)
@example(7, "a7")
@example("a7", "'a7")
@example((1,), 1)
@example(("a,", "b"), ("a", ",b"))
@example(("a,'b",), ("a", "b"))
@example((), ("",))
def test_different_event_ids_make_different_keys(one: EventID, other: EventID) -> None:
    assert (by_bytes(keys.written_event(one)) == by_bytes(keys.written_event(other))) == (
        one == other
    )


@given(events)
@example("a" * 100)
@example((",", "", "(", ")"))
def test_an_event_id_can_be_read_again(event: EventID) -> None:
    [written] = keys.split_key(keys.make_key("t", keys.written_event(event)).key)
    assert keys.key_event(written) == event


@given(st.lists(numbers, max_size=3).map(tuple), st.lists(numbers, max_size=3).map(tuple))
@example((1,), (1, 2))
@example((9,), (10,))
def test_event_ids_of_numbers_sort_as_tuples(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (by_bytes(keys.written_event(one)) < by_bytes(keys.written_event(other))) == (
        one < other
    )


@given(parts)
def test_every_store_can_hold_a_key(given_parts: tuple[str, ...]) -> None:
    key = keys.make_key("t", *given_parts).key
    assert key
    key.encode()
    assert all(ord(character) >= 32 for character in key)


def test_keys_stay_readable() -> None:
    written = keys.make_key("parked", "pay@7", 10, -3, keys.written_event((7, "grüße")), "a/b%").key
    assert written == "pay@7/b10/Z6/(a7,'grüße)/a%2Fb%25"


def test_the_prefix_pay_is_not_payroll() -> None:
    payroll = keys.make_key("t", "payroll", "x").key
    assert not payroll.startswith(keys.make_prefix("pay"))
    assert payroll.startswith(keys.make_prefix("payroll"))
    assert payroll.startswith(keys.make_prefix())


def test_long_texts_are_shortened_and_stay_different() -> None:
    long = "é" * 5000
    one, other = keys.make_key("t", long + "1").key, keys.make_key("t", long + "2").key
    assert one != other
    assert len(one.encode()) <= keys.TEXT_BYTES_MAX
    with pytest.raises(ValueError, match="too long for a key"):
        keys.key_text(one)


def test_a_key_has_a_part() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        keys.make_key("t")
