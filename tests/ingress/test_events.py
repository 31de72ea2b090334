"""What a POST stores and answers, against a real `semel ingest`."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from support.ingress import (
    CLOUD_EVENT,
    CLOUD_EVENTS,
    JSON,
    NDJSON,
    Ingress,
    cloud_event,
    rows_of,
)


def row_of(ingress: Ingress, entity: str, event: int = 1) -> dict[str, Any]:
    [found] = [row for row in rows_of(ingress) if (row["entity"], row["event"]) == (entity, event)]
    return found


@pytest.mark.rows("S1")
def test_a_structured_cloud_event_is_stored_with_its_attributes_and_its_data_as_sent(
    ingress: Ingress,
) -> None:
    body = (
        '{"specversion": "1.0", "id": "s-1", "source": "/shop", "type": "order", "subject": "st",'
        ' "time": "2026-11-18T09:30:00.123456Z", "traceparent": "00-ab", "sampled": true,'
        ' "level": 3, "gone": null,'
        ' "data" : {"amount": 1.10, "big": 123456789012345678901234567890.5, "a": [1, 2 ]} }'
    )
    assert ingress.post(body, CLOUD_EVENT).events == [("st", 1, False)]
    row = row_of(ingress, "st")
    assert row["value"] == (
        b'{"amount": 1.10, "big": 123456789012345678901234567890.5, "a": [1, 2 ]}'
    )
    assert (row["source"], row["id"], row["type"], row["subject"]) == (
        "/shop",
        "s-1",
        "order",
        "st",
    )
    assert row["time"] == datetime(2026, 11, 18, 9, 30, 0, 123456, tzinfo=UTC)
    assert row["content_type"] == JSON
    assert dict(row["attributes"]) == {"traceparent": "00-ab", "sampled": "true", "level": "3"}


def test_a_binary_cloud_event_has_its_attributes_in_headers(ingress: Ingress) -> None:
    answer = ingress.post(
        b"<order/>",
        "application/xml",
        ce_specversion="1.0",
        ce_id="b-1",
        ce_source="/shop",
        ce_type="order",
        ce_subject="Z%C3%BCrich",
        ce_traceid="7",
        ce_quoted='"a \\"b\\" \\\\%41"',
    )
    assert answer.events == [("Zürich", 1, False)]
    row = row_of(ingress, "Zürich")
    assert (row["value"], row["content_type"]) == (b"<order/>", "application/xml")
    assert dict(row["attributes"]) == {"traceid": "7", "quoted": 'a "b" \\A'}


def test_data_that_is_not_json_is_a_text_or_base64(ingress: Ingress) -> None:
    batch = [
        cloud_event("d-1", "<a/>", "data", datacontenttype="text/xml"),
        {
            **cloud_event("d-2", None, "data"),
            "data_base64": base64.b64encode(b"\x00\xff").decode(),
            "datacontenttype": "application/octet-stream",
        },
        {name: value for name, value in cloud_event("d-3", 0, "data").items() if name != "data"},
    ]
    del batch[1]["data"]
    assert ingress.post(batch, CLOUD_EVENTS).events == [("data", n, False) for n in (1, 2, 3)]
    values = [row_of(ingress, "data", n)["value"] for n in (1, 2, 3)]
    assert values == [b"<a/>", b"\x00\xff", b""]


@pytest.mark.rows("S1", "S2")
def test_a_batch_is_answered_in_the_order_given(ingress: Ingress) -> None:
    batch = [cloud_event(f"o-{n}", {"n": n}, f"o{n % 3}") for n in range(7)]
    assert ingress.post(batch, CLOUD_EVENTS).events == [
        (f"o{n % 3}", n // 3 + 1, False) for n in range(7)
    ]


def test_plain_json_is_one_event_even_if_it_is_an_array(ingress: Ingress) -> None:
    answer = ingress.post(' [1, {"a": "\\u0062"}]\n', JSON, Semel_Entity="plain")
    assert answer.events == [("plain", 1, False)]
    assert row_of(ingress, "plain")["value"] == b' [1, {"a": "\\u0062"}]\n'


def test_ndjson_is_one_event_on_each_line(ingress: Ingress) -> None:
    answer = ingress.post('{"n":1}\r\n\n {"n":2}\n"three"', NDJSON, Semel_Entity="lines")
    assert answer.events == [("lines", n, False) for n in (1, 2, 3)]
    values = [row_of(ingress, "lines", n)["value"] for n in (1, 2, 3)]
    assert values == [b'{"n":1}', b'{"n":2}', b'"three"']


@pytest.mark.rows("S1")
def test_an_event_without_an_entity_gets_one_of_its_own(ingress: Ingress) -> None:
    (first, one, _), (second, other, _) = ingress.post("1\n1", NDJSON).events
    assert first != second
    assert (one, other) == (1, 1)


@pytest.mark.rows("S2")
def test_a_retry_gets_the_same_ids_marked_as_a_repeat(ingress: Ingress) -> None:
    batch = [cloud_event(f"r-{n}", {"n": n}, "retried") for n in range(3)]
    assert ingress.post(batch, CLOUD_EVENTS).events == [("retried", n, False) for n in (1, 2, 3)]
    more = [*batch[1:], cloud_event("r-3", {"n": 3}, "retried")]
    assert ingress.post(more, CLOUD_EVENTS).events == [
        ("retried", 2, True),
        ("retried", 3, True),
        ("retried", 4, False),
    ]


def test_a_retry_of_an_event_with_an_assigned_entity_gets_it_again(ingress: Ingress) -> None:
    [(entity, event, repeat)] = ingress.post(cloud_event("anon", 1), CLOUD_EVENT).events
    assert not repeat
    assert ingress.post(cloud_event("anon", 1), CLOUD_EVENT).events == [(entity, event, True)]


def test_an_idempotency_key_makes_a_retry_of_json_and_ndjson_a_repeat(ingress: Ingress) -> None:
    for repeat in (False, True):
        one = ingress.post({"a": 1}, Semel_Entity="key", Idempotency_Key="k-1")
        assert one.events == [("key", 1, repeat)]
        two = ingress.post("1\n1", NDJSON, Semel_Entity="key", Idempotency_Key="k-2")
        assert two.events == [("key", 2, repeat), ("key", 3, repeat)]


def test_the_same_id_with_other_content_is_refused_and_nothing_of_its_request_is_stored(
    ingress: Ingress,
) -> None:
    assert ingress.post(cloud_event("c-1", 1, "conflict"), CLOUD_EVENT).events
    batch = [cloud_event("c-2", 2, "conflict"), cloud_event("c-1", 3, "conflict")]
    problem = ingress.post(batch, CLOUD_EVENTS).problem(409)
    assert "c-1" in problem["detail"]
    again = ingress.post(cloud_event("c-2", 2, "conflict"), CLOUD_EVENT)
    assert again.events == [("conflict", 2, False)]


@pytest.mark.parametrize(
    ("place", "headers", "event", "entity"),
    [
        ("auto", {"Semel-Entity": "h"}, cloud_event("1", {}, "s"), "h"),
        ("auto", {}, cloud_event("2", {}, "s"), "s"),
        ("header", {"Semel-Entity": "h"}, cloud_event("3", {}, "s"), "h"),
        ("header", {}, cloud_event("4", {}, "s"), None),
        ("subject", {"Semel-Entity": "h"}, cloud_event("5", {}, "s"), "s"),
        ("subject", {"Semel-Entity": "h"}, cloud_event("6", {}), None),
        ("/customer/id", {"Semel-Entity": "h"}, cloud_event("7", {"customer": {"id": 42}}), "42"),
        ("/a~1b/1", {}, cloud_event("8", {"a/b": ["x", "y"]}), "y"),
        ("/customer/id", {}, cloud_event("9", {"customer": {}}, "s"), None),
        ("/customer/id", {}, cloud_event("10", {"customer": {"id": 1.5}}, "s"), None),
        ("/customer/id", {}, cloud_event("11", "x", "s", datacontenttype="text/plain"), None),
    ],
)
def test_the_entity_comes_from_the_place_that_was_chosen(
    place: str, headers: dict[str, str], event: dict[str, Any], entity: str | None
) -> None:
    """Without a server: the place is a value of its own."""
    from semel.ingress.requests import EntityPlace, read_events
    from semel.web import HttpProblem

    given = {name.lower().encode(): value.encode() for name, value in headers.items()}
    given[b"content-type"] = CLOUD_EVENT.encode()
    body = json.dumps(event).encode()
    if entity is None:
        with pytest.raises(HttpProblem, match="422"):
            read_events(given, body, EntityPlace(place))
    else:
        [read] = read_events(given, body, EntityPlace(place))
        assert read.entity == entity


def test_the_figures_count_what_was_answered(ingress: Ingress) -> None:
    def figures() -> dict[str, float]:
        lines = ingress.get("/metrics").body.decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    before = figures()
    assert ingress.post("1\n2\n3", NDJSON, Idempotency_Key="figures").events
    assert ingress.post("1\n2\n3", NDJSON, Idempotency_Key="figures").events
    ingress.post("x").problem(400)
    after = figures()
    grew = {name: after[name] - before.get(name, 0) for name in after}
    assert grew["semel_ingest_events_total"] == 6
    assert grew["semel_ingest_repeats_total"] == 3
    assert grew['semel_ingest_requests_total{status="201"}'] == 2
    assert grew['semel_ingest_requests_total{status="400"}'] == 1
    assert grew["semel_ingest_commit_seconds_count"] == 2
    assert after["semel_ingest_held_bytes"] == after["semel_ingest_queue_requests"] == 0


def test_the_description_is_served_and_valid(ingress: Ingress) -> None:
    from openapi_spec_validator import validate

    description = ingress.get("/openapi.json").json
    validate(description)
    assert set(description["paths"]) == {
        "/v1/events",
        "/v1/events/{entity}/{event}",
        "/healthz",
        "/metrics",
        "/openapi.json",
    }
    assert ingress.get("/healthz").json == {"status": "ok", "stream": "orders"}
