"""What an event may be: every text and value comes back as it was given, or is refused clearly."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import EventRefused, EventTooLarge, RepeatDiffers, SemelError
from semel.ledger import (
    CounterRow,
    InboxGroupRow,
    ProducerRow,
    counter_text,
    group_text,
    open_store,
    producer_text,
)
from semel.streams import EVENT_BYTES_MAX, Inbox, NewEvent

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EVENTS = st.builds(
    NewEvent,
    st.binary(max_size=40),
    entity=st.none() | st.sampled_from(["a", "b", "/%é\x00", "7"]) | TEXTS.filter(bool),
    source=st.sampled_from(["", "/shop"]) | TEXTS,
    id=st.none() | st.sampled_from(["1", "2", "3"]) | TEXTS.filter(bool),
    type=TEXTS,
    subject=st.none() | TEXTS,
    time=st.none() | st.sampled_from(["2026-11-18T09:30:00Z", "1970-01-01t00:00:00.1234567+01:30"]),
    content_type=TEXTS,
    attributes=st.dictionaries(TEXTS, TEXTS, max_size=3),
)


@pytest.mark.rows("S1", "S2", "S3", "A1")
@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.lists(EVENTS, max_size=4)), max_size=8))
def test_whatever_is_appended_is_kept_once_and_comes_back(
    requests: list[tuple[bool, list[NewEvent]]],
) -> None:
    known: dict[tuple[str, str], NewEvent] = {}
    wanted: dict[str, list[NewEvent]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/ledger.db")
        inboxes = [Inbox(store, "orders", partitions=3) for _ in range(2)]
        inboxes[0].create()
        for first, request in requests:
            ids = dict(known)
            differs = False
            for each in request:
                if each.id is not None:
                    differs |= ids.setdefault((each.source, each.id), each) != each
            [answer] = inboxes[first].append_groups([request])
            if differs:
                assert isinstance(answer, RepeatDiffers)
                continue
            assert not isinstance(answer, SemelError)
            for each, stored in zip(request, answer, strict=True):
                at = None if each.id is None else (each.source, each.id)
                assert stored.repeat == (at in known)
                if at is not None:
                    known[at] = each
                assert each.entity in (None, stored.entity)
                if not stored.repeat:
                    wanted[stored.entity].append(each)
                    assert stored.event == len(wanted[stored.entity])
        found: dict[str, list[NewEvent]] = defaultdict(list)
        for part in inboxes[0].layout():
            for row in inboxes[0].read(part.partition, 0, part.end).to_pylist():
                entity = row["entity"]
                found[entity].append(given_as(row, wanted[entity][len(found[entity])]))
                assert row["event"] == len(found[entity])
        assert found == wanted
        store.close()


def given_as(row: dict[str, Any], event: NewEvent) -> NewEvent:
    """The event of a row, with entity and time as a producer gave them."""
    if event.time is not None:
        text = event.time.upper().replace(".1234567", ".123456")
        assert row["time"] == datetime.fromisoformat(text)
    return NewEvent(
        row["value"],
        entity=event.entity,
        source=row["source"],
        id=row["id"],
        type=row["type"],
        subject=row["subject"],
        time=event.time,
        content_type=row["content_type"],
        attributes=dict(row["attributes"]),
    )


@pytest.mark.parametrize(
    ("event", "kind", "says"),
    [
        (NewEvent(b"x" * (EVENT_BYTES_MAX + 1)), EventTooLarge, r"has 1048577 bytes.*at most"),
        (NewEvent(b"", entity=""), EventRefused, "entity must not be empty; leave it out"),
        (NewEvent(b"", id=""), EventRefused, "id must not be empty; leave it out"),
        (NewEvent(b"", entity="\ud800"), EventRefused, r"entity is not valid Unicode"),
        (NewEvent(b"", source="\udfff"), EventRefused, "source is not valid Unicode"),
        (NewEvent(b"", id="x" * 1025), EventTooLarge, "id has 1025 characters.*at most 1024"),
        (NewEvent(b"", entity=7), EventRefused, "entity must be a text, got int"),  # type: ignore[arg-type]
        (NewEvent("x"), EventRefused, "value must be bytes, got str"),  # type: ignore[arg-type]
        (NewEvent(b"", time="yesterday"), EventRefused, "time must be RFC 3339.*'yesterday'"),
        (NewEvent(b"", time="2026-02-30T00:00:00Z"), EventRefused, "time must be RFC 3339"),
        (NewEvent(b"", time="2026-02-03T00:00:00"), EventRefused, "time must be RFC 3339"),
        (NewEvent(b"", time="9999-12-31T23:59:59-01:00"), EventRefused, "between the years 1 and"),
        (NewEvent(b"", time="0001-01-01T00:00:00+01:00"), EventRefused, "between the years 1 and"),
        (NewEvent(b"", type=None), EventRefused, "type must be a text, got NoneType"),  # type: ignore[arg-type]
        (NewEvent(b"", attributes={"a": "\ud800"}), EventRefused, "attribute is not valid Unicode"),
        (NewEvent(b"", attributes={"a": 1}), EventRefused, "attributes must be texts, got int"),  # type: ignore[dict-item]
        (NewEvent(b"", attributes={"a": "x" * 20_000}), EventTooLarge, "more than 16384"),
        (NewEvent(b"", attributes={str(n): "" for n in range(65)}), EventTooLarge, "has 65 attri"),
        ("x", EventRefused, r"must be a semel\.NewEvent, got str"),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused_alone(
    event: NewEvent, kind: type[EventRefused], says: str, tmp_path: Path
) -> None:
    good = NewEvent(b"x", entity="a")
    with Inbox(f"sqlite:///{tmp_path}/ledger.db", "orders") as inbox:
        with pytest.raises(kind, match=f"^event 1.*{says}"):
            inbox.append([good, event])
        answers = inbox.append_groups([[good], [good, event], [good]])
        assert isinstance(answers[1], kind)
        assert sum(inbox.ends().values()) == 2


def test_large_values_and_long_names_are_kept(tmp_path: Path) -> None:
    long = "é" * 1024
    values = [bytes([n]) * EVENT_BYTES_MAX for n in range(6)]
    with Inbox(f"sqlite:///{tmp_path}/ledger.db", "o/r%ders é", partitions=1) as inbox:
        late = "9999-12-31T23:59:59Z"
        new = [
            NewEvent(value, entity=long, source=long, id=f"{n}{long[1:]}", time=late)
            for n, value in enumerate(values)
        ]
        inbox.append(new)
        assert all(each.repeat for each in inbox.append(new))
        assert inbox.read(0, 0, 6)["value"].to_pylist() == values
        [time] = inbox.read(0, 5, 6)["time"].to_pylist()
        assert time == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
        with pytest.raises(EventTooLarge, match="the request has 50001 events"):
            inbox.append([new[0]] * 50_001)


def test_rows_are_written_quickly_and_as_their_codec_writes_them() -> None:
    for entity in ("a", 'a"\\é\x00', "日本"):
        row = ProducerRow("d" * 32, entity, 3, 4, 5)
        assert producer_text("d" * 32, entity, 3, partition=5, offset=4) == row.dump()
        assert counter_text(7) == CounterRow(7).dump()
    group = InboxGroupRow(0, "QUJD", 1, 2, 3, "t", 1)
    assert group_text("QUJD", 1, 2, 0, 3, "t") == group.dump()
