"""The codec of rows: what a field declares is what is written and read, and damage has a name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from semel.events import Attempt, EntityIds, EventID, IdSet, Minibatch
from semel.ledger.inspect.listing import load_row
from semel.ledger.payloads import (
    ADDED,
    INLINE,
    LATER,
    DamagedRow,
    Row,
    Unfit,
    codec_of,
    pair_of,
)
from semel.ledger.store.commit import Key

FIXTURES = Path(__file__).parent / "fixtures"
AT = Key("things", "a/b")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Inner:
    size: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Thing(Row):
    """One field of every form."""

    TABLE = "things"

    name: str
    minibatch: Annotated[Minibatch, INLINE]
    attempt: Annotated[Attempt, pair_of(Attempt, -1)]
    colour: Colour
    at_s: Annotated[float, "at"]
    event: EventID
    inner: Inner | None = None
    ids: EntityIds = field(default=EntityIds.EMPTY)
    above: IdSet = field(default=IdSet.EMPTY)
    texts: tuple[str, ...] = ()
    count: Annotated[int, LATER] = 0
    found: Annotated[dict[str, Any] | None, LATER] = None
    begins: Annotated[EventID | None, ADDED] = None

    def check(self) -> None:
        if self.count > 9:
            raise Unfit("the field 'count' must be at most 9")


SMALL = Thing("a", Minibatch(1, 2), Attempt(3, -1), Colour.RED, 1.5, 7)
LARGE = Thing(
    "grüße \x00",
    Minibatch(1, 2),
    Attempt(3, 4),
    Colour.BLUE,
    2,
    ("x", 7),
    Inner(5, "n"),
    EntityIds.of({"a": IdSet.of([1, 2])}),
    IdSet.of(["b"]),
    ("t",),
    3,
    {"f": [1]},
    "e",
)


def changed(row: Thing, **values: Any) -> str:
    return json.dumps({**json.loads(row.dump()), **values})


def without(row: Thing, name: str) -> str:
    return json.dumps({at: each for at, each in json.loads(row.dump()).items() if at != name})


@pytest.mark.parametrize("row", [SMALL, LARGE])
def test_a_row_is_read_back_as_it_was_written(row: Thing) -> None:
    assert Thing.load(row.dump()) == row
    assert Thing.load(row.dump()).dump() == row.dump()


def test_fields_are_written_as_they_declare() -> None:
    assert json.loads(SMALL.dump()) == {
        "above": [],
        "at": 1.5,
        "attempt": [3, -1],
        "batch": 2,
        "begins": None,
        "colour": "red",
        "event": 7,
        "generation": 1,
        "ids": {},
        "inner": None,
        "name": "a",
        "texts": [],
    }
    large = json.loads(LARGE.dump())
    assert large["event"] == ["x", 7]
    assert large["inner"] == {"size": 5, "note": "n"}
    assert (large["count"], large["found"], large["begins"]) == (3, {"f": [1]}, "e")


def test_a_row_of_an_older_version_has_the_default_of_a_later_field() -> None:
    for name in ("count", "found", "begins"):
        assert getattr(Thing.load(without(LARGE, name)), name) == getattr(SMALL, name)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "its payload is not JSON"),
        ("[]", "its payload cannot be read (TypeError)"),
        ('{"z":"eJw="}', "its compressed payload cannot be expanded"),
        (without(SMALL, "name"), "the field 'name' is missing"),
        (without(SMALL, "batch"), "the field 'batch' is missing"),
        (without(SMALL, "inner"), "the field 'inner' is missing"),
        (changed(SMALL, name=1), "the field 'name' must be text, got a number"),
        (changed(SMALL, generation=True), "must be an integer, got true or false"),
        (changed(SMALL, generation=-1), "the field 'generation' must be at least 0"),
        (changed(SMALL, attempt=[1]), "the field 'attempt' must be a list of two integers"),
        (changed(SMALL, attempt=[1, -2]), "the field 'attempt' must be at least -1"),
        (changed(SMALL, colour="green"), "the field 'colour' must be one of red, blue"),
        (changed(SMALL, colour=[]), "the field 'colour' must be one of red, blue"),
        (changed(SMALL, at=float("nan")), "its payload cannot be read (ValueError)"),
        (SMALL.dump().replace("1.5", "1e999"), "the field 'at' must be a finite number"),
        (changed(SMALL, event=[]), "the field 'event' must be an event id, got a list"),
        (changed(SMALL, inner=[]), "the field 'inner' must be an object, got a list"),
        (changed(SMALL, inner={"size": 1}), "the field 'note' is missing"),
        (changed(SMALL, ids=[]), "the field 'ids' must be an object, got a list"),
        (changed(SMALL, above=7), "its payload cannot be read (ValueError)"),
        (changed(SMALL, texts=[1]), "the field 'texts' must be a list of texts"),
        (changed(SMALL, found=None), "the field 'found' must be an object, got null"),
        (changed(LARGE, count=10), "the field 'count' must be at most 9"),
    ],
)
def test_damage_is_named_with_table_and_key(text: str, what: str) -> None:
    with pytest.raises(DamagedRow) as caught:
        Thing.load(text, AT)
    assert (caught.value.table, caught.value.key) == AT
    assert what in caught.value.what
    assert caught.value.__cause__ is None


def test_a_type_without_a_form_is_refused_before_anything_is_written() -> None:
    with pytest.raises(TypeError, match="no form for <class 'complex'>"):
        codec_of(Odd)


@dataclass(frozen=True)
class Odd:
    number: complex


def committed() -> Iterator[tuple[Key, str]]:
    for path in sorted(FIXTURES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "key" in row and row["table"] not in ("semel", "pipelines"):
                yield Key(row["table"], row["key"]), row["payload"]


def test_every_committed_row_is_written_as_it_was_read() -> None:
    tables = set()
    for at, text in committed():
        row = load_row(at, text)
        expected = json.loads(text)
        if at.table == "sequences":  # version 0.1 did not write where a partition begins
            expected["after"] = json.loads(row.dump())["after"]
            expected["before"] = json.loads(row.dump())["before"]
        assert json.loads(row.dump()) == expected
        tables.add(at.table)
    assert len(tables) >= 8
