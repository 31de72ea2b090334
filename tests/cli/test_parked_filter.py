"""The filter of `--where`: what it chooses, and that a mistake in it is shown at its place."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger.rows import ParkedRow
from semel.operate import read_filter
from semel.operate.bulk.parked_filter import FilteredEvent
from semel.protocol import ParkedState

NOW = 1_763_503_200.0  # 2025-11-18T22:00:00Z

ROW = ParkedRow(
    entity="c42",
    scope="c42",
    event=7,
    minibatch=Minibatch(1, 57),
    partition="3of8",
    position=0,
    osn=8,
    state=ParkedState.HELD,
    why="TimeoutError: no reply in 30 s",
    at=NOW - 7_200,
    blocks=True,
)


def fits(text: str, pipeline: str = "charges", sink: str = "charge", **fields: Any) -> bool:
    event = FilteredEvent(pipeline, sink, replace(ROW, **fields), NOW)
    return read_filter(text).fits(event)


@pytest.mark.parametrize(
    "text",
    [
        "sink=charge",
        "sink = 'charge' and why~timeout",
        'why~"no reply in"',
        "pipeline!=other",
        "entity=c42 AND event=7",
        "entity~C4",
        "event>6 and event<=7",
        "event!=8",
        "state=held",
        "state!=rejected",
        "age>1h and age<3h",
        "age>=7200s and age<=120min",
        "since<2025-11-18T21:00:00",
        "since>2025-11-18",
        "since<2025-11-18T22:00:00+01:00",
        "minibatch=1.57",
        "minibatch>1.9 and minibatch<2.0",
        "partition=3of8",
        "not sink=mail",
        "sink=mail or sink=charge and state=held",
        "(sink=mail or sink=charge) and not (state=rejected)",
        "why!~refused",
        r'why~"\"" or why~reply',
    ],
)
def test_a_filter_chooses_what_it_says(text: str) -> None:
    assert fits(text)
    assert not fits(f"not ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "sink=charg",
        "why=timeout",
        "event=8",
        "event>7",
        "state=resend",
        "age<1h",
        "since>2025-11-19",
        "minibatch=1.5",
        "sink=charge and why~refused",
        "sink=mail and state=held or state=rejected",
    ],
)
def test_a_filter_leaves_out_what_it_does_not_say(text: str) -> None:
    assert not fits(text)


def test_and_binds_closer_than_or_and_not_closer_than_and() -> None:
    assert fits("sink=charge or sink=mail and state=rejected")
    assert not fits("(sink=charge or sink=mail) and state=rejected")
    assert not fits("not sink=charge and state=rejected")
    assert not fits("not state=held or sink=mail")


def test_an_id_is_compared_as_a_number_or_a_text_and_an_entity_by_both_its_names() -> None:
    assert fits("event=007 or event='007'", event="007")
    assert not fits("event=7", event="8")
    assert fits("event=7", event="7"), "digits may be a text"
    assert not fits("event>6", event="7"), "only integers are greater"
    assert fits("event=a,7", event=("a", 7))
    assert fits("entity=t/0 and entity=shop-1", entity="t/0", shown="shop-1")
    assert not fits("entity!=shop-1", entity="t/0", shown="shop-1")


@pytest.mark.parametrize(
    ("text", "character", "says"),
    [
        ("sinks=charge", 1, "expected a field, got 'sinks'; use pipeline, sink, entity"),
        ("sink=charge an why~x", 13, "expected `and` or `or`, got 'an'"),
        ("sink=charge and", 16, "expected a field, got the end"),
        ("sink~", 6, "expected a value, got the end"),
        ("sink", 5, "expected one of = != ~ !~ after sink, got the end"),
        ("sink<charge", 5, "expected one of = != ~ !~ after sink, got '<'"),
        ("state~held", 6, "expected one of = != after state"),
        ("state=lost", 7, "unknown state 'lost'; use"),
        ("age>2", 5, "'2' is not an age; write 90s, 15min, 2h, 3d or 1w"),
        ("age>2y", 5, "'2y' is not an age"),
        ("since>yesterday", 7, "'yesterday' is not a time"),
        ("minibatch=57", 11, "'57' is not a minibatch; write GENERATION.BATCH"),
        ("event>x", 7, "'x' is not an integer"),
        ("(sink=charge", 13, "expected `)`"),
        ("sink=charge)", 12, "expected `and` or `or`, got ')'"),
        ('why~"no reply', 5, "a quote that is not closed"),
        ("sink!charge", 5, "an unknown operator"),
        ("(" * 60 + "sink=a" + ")" * 60, 51, "more than 50 parentheses"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, character: int, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_filter(text)
    told = str(refused.value)
    assert f"the filter is wrong at character {character}: " in told
    assert says in told
    assert f"{text[: character - 1]}>>>{text[character - 1 :]}" in told


@pytest.mark.parametrize("text", ["", "   ", "sink=" + "x" * 10_001])
def test_an_empty_or_endless_filter_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="the filter"):
        read_filter(text)


WORDS = [
    "sink",
    "state",
    "why",
    "age",
    "event",
    "=",
    "!=",
    "~",
    "(",
    ")",
    "and",
    "or",
    "not",
    "'x'",
    '"',
    "held",
    "2h",
    "<",
    "1.2",
    "é",
    "\\",
    "!",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(["", " ", "\n"]))
def test_any_text_is_read_or_refused_in_words(words: list[str], between: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(fits(between.join(words)), bool)
