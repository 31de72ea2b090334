"""The names of parked events: what is printed is typed again, whatever texts are in it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.events.event import EventID
from semel.ledger import Ledger, LedgerClient, keys
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.parked import plan_parking
from semel.ledger.verbs.runs import Owners
from semel.operate.event_names import read_ids, write_id, write_text
from semel.operate.parked import read_parked_events
from semel.protocol import ParkedState
from semel.runtime import Process
from semel.verify.simulator.cluster import MemoryStore
from support.ledger.one_pipeline import parked

TEXTS = [
    "c42",
    "7",
    "-7",
    "007",
    "",
    "a/b",
    "100%",
    "%37",
    "%-",
    "%~",
    "ann smith",
    "ann@example.com",
    "x@1.57",
    "a,b",
    ",",
    "it's",
    '"$HOME" `id` (x) ~ *?[]',
    "-o",
    "~root",
    "\x1b[31mred\n\x00",
    "Zürich",
    "日本",
    "\u202eevil",
    "\xa0",
    "😀",
    "x" * 1_000,
    "é" * 500,
]
IDS: list[EventID] = [0, 7, -7, 10**30, *TEXTS, (7, "x"), ("a,b", 1), ("",), ("7", 7), (7, "@1.2")]


def test_every_printed_handle_finds_its_own_event_again(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/ledger.db")
    for pipeline, sink in [("pay", "out"), ("a/b", "it's"), ("-x", "7")]:
        client = LedgerClient(store, pipeline)
        Owners(client).register({"sinks": {sink: {}}}, Process.here(), "n")
        rows = [parked(7, entity=entity, blocks=False) for entity in TEXTS]
        rows += [parked(event, entity="e", blocks=False) for event in IDS]
        rows += [parked(event, entity="e", scope="t/0", blocks=False) for event in (7, (7, 1))]
        made = plan_parking(pipeline, sink, rows, {})
        store.commit([], made.updates)
    known = read_parked_events(Ledger(store))
    events = known.events
    assert len(events) == 3 * (len(TEXTS) + len(IDS) + 2)
    for each in events:
        assert known.find(each.handle) is each
        assert known.find(each.short) is each
        assert shlex.split(each.handle) == [each.handle]
        assert each.handle.isprintable()
        assert not each.handle.startswith(("-", "~"))
    store.close()


@given(st.text(max_size=40))
def test_a_text_is_read_as_it_was_written(text: str) -> None:
    assert keys.key_text(write_text(text)) == text
    assert shlex.split(write_text(text)) == [write_text(text)]
    assert read_ids(write_id(text))[0] == text


@given(st.lists(st.integers() | st.text(max_size=10), min_size=1, max_size=3).map(tuple))
def test_an_id_of_several_columns_is_read_as_it_was_written(event: tuple[int | str, ...]) -> None:
    assert read_ids(write_id(event))[0] == event


def ledger_with(*events: EventID, sinks: tuple[str, ...] = ("out",)) -> Ledger:
    store = MemoryStore()
    client = LedgerClient(store, "pay")
    Owners(client).register({"sinks": {sink: {} for sink in sinks}}, Process.here(), "n")
    for sink in sinks:
        rows = [parked(event, blocks=False) for event in events]
        store.commit([], plan_parking("pay", sink, rows, {}).updates)
    return Ledger(store)


@pytest.mark.parametrize("typed", ["pay/out/e/7", "out/e/7", "e/7", "e/7@1.0", "pay/out/e/7@1.0"])
def test_what_stands_before_the_entity_may_be_left_out(typed: str) -> None:
    assert read_parked_events(ledger_with(7, 8)).find(typed).row.event == 7


@pytest.mark.parametrize("typed", ["7", "e", "e/9", "e/7@1.1", "pa/out/e/7", "x/pay/out/e/7", "@f"])
def test_what_is_not_parked_is_not_found(typed: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no parked event"):
        read_parked_events(ledger_with(7)).find(typed)


def test_digits_mean_the_text_where_ids_are_texts() -> None:
    assert read_parked_events(ledger_with("7", "8")).find("e/7").row.event == "7"


def test_a_comma_that_nobody_escaped_is_found_too() -> None:
    assert read_parked_events(ledger_with("a,b")).find("e/a,b").row.event == "a,b"


def test_what_fits_several_events_lists_them() -> None:
    known = read_parked_events(ledger_with(7, sinks=("mail", "post")))
    events = known.events
    with pytest.raises(ConfigurationError) as told:
        known.find("e/7")
    for each in events:
        assert each.handle in str(told.value)
        assert each.short in str(told.value)


def test_an_event_that_was_parked_in_two_minibatches_has_two_names() -> None:
    store = MemoryStore()
    client = LedgerClient(store, "pay")
    Owners(client).register({"sinks": {"out": {}}}, Process.here(), "n")
    rows = [
        parked(7, minibatch=Minibatch(1, 0), state=ParkedState.RESENT, blocks=False),
        parked(7, minibatch=Minibatch(2, 3)),
    ]
    store.commit([], plan_parking("pay", "out", rows, {}).updates)
    known = read_parked_events(Ledger(store))
    events = known.events
    assert [each.handle for each in events] == ["pay/out/e/7@1.0", "pay/out/e/7@2.3"]
    assert all(known.find(each.handle) is each for each in events)
    assert known.find("e/7") is events[1]  # the other one is final
