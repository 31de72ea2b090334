"""Appending to an inbox and reading exact ranges of it, on every kind of ledger."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from semel.errors import RangeUnavailable, RepeatDiffers
from semel.ledger import DamagedRow
from semel.ledger.store import Put
from semel.streams import INBOX_SCHEMA, Inbox, NewEvent


def new(
    number: int, entity: str | None = None, id_: str | None = None, value: bytes | None = None
) -> NewEvent:
    """An event; its value is its number if nothing else is given."""
    return NewEvent(
        value if value is not None else b"%d" % number,
        entity=entity,
        source="/shop",
        id=id_,
        type="order.created",
    )


def everything(inbox: Inbox) -> list[dict[str, object]]:
    """All events of a stream, by partition and offset."""
    return [
        event
        for part in inbox.layout()
        for event in inbox.read(part.partition, part.begin, part.end).to_pylist()
    ]


@pytest.mark.rows("S1", "S2", "S3")
def test_every_event_gets_an_entity_and_the_next_id_of_that_entity(inbox: Inbox) -> None:
    stored = inbox.append([new(n, entity=f"e{n % 3}") for n in range(10)])
    assert [(each.entity, each.event) for each in stored] == [
        (f"e{n % 3}", n // 3 + 1) for n in range(10)
    ]
    stored = inbox.append([new(10, entity="e0"), new(11), new(12, id_="a"), new(13)])
    assert stored[0].event == 5
    assigned = {each.entity for each in stored[1:]}
    assert len(assigned) == 3
    assert all(each.event == 1 for each in stored[1:])
    assert not any(each.repeat for each in stored)


@pytest.mark.rows("A1", "S4")
def test_a_range_has_exactly_its_events_in_order_whenever_it_is_read(inbox: Inbox) -> None:
    inbox.append([new(n, entity=f"e{n % 7}") for n in range(40)])
    for n in range(40, 60):
        inbox.append([new(n, entity=f"e{n % 7}")])
    found = defaultdict(list)
    for partition, end in inbox.ends().items():
        whole = inbox.read(partition, 0, end)
        assert whole.schema == INBOX_SCHEMA
        whole.validate(full=True)
        assert whole["offset"].to_pylist() == list(range(end))
        for start in range(end + 1):
            for stop in range(start, end + 1, 3):
                assert inbox.read(partition, start, stop).equals(whole.slice(start, stop - start))
        for row in whole.to_pylist():
            found[row["entity"]].append((row["event"], int(row["value"])))
    assert dict(sorted(found.items())) == {
        f"e{k}": [(i + 1, n) for i, n in enumerate(range(k, 60, 7))] for k in range(7)
    }


def test_what_is_not_there_yet_is_an_error_that_names_the_range(inbox: Inbox) -> None:
    [stored] = inbox.append([new(1, entity="a")])
    with pytest.raises(RangeUnavailable, match=r"'orders'.*offsets 0 to 2 is not there yet.*at 1"):
        inbox.read(stored.partition, 0, 2)
    with pytest.raises(RangeUnavailable, match="no such partition; there are 0, 1, 2, 3"):
        inbox.read(7, 0, 1)
    with pytest.raises(RangeUnavailable, match="give 0 <= start <= stop"):
        inbox.read(stored.partition, 1, 0)


@pytest.mark.rows("S1", "S2")
def test_a_repeat_gets_the_ids_that_it_got_before(inbox: Inbox, url: str) -> None:
    events = [new(n, entity=f"e{n % 2}", id_=f"id{n}") for n in range(4)] + [new(4, id_="x")]
    first = inbox.append(events)
    with Inbox(url, "orders") as other:
        again = other.append([*events, new(5, entity="e1", id_="new")])
    for before, now in zip(first, again, strict=False):
        assert (now.entity, now.event, now.partition, now.offset) == (
            before.entity,
            before.event,
            before.partition,
            before.offset,
        )
    assert [each.repeat for each in again] == [True] * 5 + [False]
    assert again[-1].event == 3
    assert len(everything(inbox)) == 6


def test_a_repeat_with_other_content_is_refused_and_the_other_requests_are_stored(
    inbox: Inbox, url: str
) -> None:
    inbox.append([new(1, entity="a", id_="1")])
    with Inbox(url, "orders") as other:
        answers = other.append_groups(
            [
                [new(2, entity="a", id_="2")],
                [new(3, entity="a", id_="3"), new(99, entity="a", id_="1")],
                [new(3, entity="a", id_="3")],
            ]
        )
    assert isinstance(answers[1], RepeatDiffers)
    assert "event 1: source '/shop' has used the id '1'" in str(answers[1])
    assert not isinstance(answers[0], Exception)
    assert not isinstance(answers[2], Exception)
    assert answers[0][0].event == 2
    assert answers[2][0].event == 3
    assert [row["value"] for row in everything(inbox)] == [b"1", b"2", b"3"]


def test_a_group_of_which_one_character_changed_is_damaged_and_not_other_events(
    inbox: Inbox,
) -> None:
    inbox.append([new(1, "a", value=b"x" * 60)])
    store, [part] = inbox._store, [each for each in inbox.layout() if each.end]
    [(at, text)] = list(store.scan("inbox", ""))
    row = json.loads(text)
    for place in range(0, len(row["content"]), 7):
        content = row["content"]
        other = "B" if content[place] != "B" else "C"
        changed = content[:place] + other + content[place + 1 :]
        store.commit([], [Put(at, json.dumps({**row, "content": changed}))])
        with pytest.raises(DamagedRow):
            inbox.read(part.partition, 0, 1)
    store.commit([], [Put(at, text)])
    assert inbox.read(part.partition, 0, 1).num_rows == 1
