"""Requests that are refused: each gets a clear answer, and nothing of it is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.runtime import SystemClock
from support.command_line import refused
from support.ingress import (
    CLOUD_EVENT,
    CLOUD_EVENTS,
    JSON,
    NDJSON,
    Ingress,
    cloud_event,
    rows_of,
)

WITHOUT_ID = {name: value for name, value in cloud_event("x", 1).items() if name != "id"}
GOOD = json.dumps(cloud_event("good", 1))
BINARY = {"ce-specversion": "1.0", "ce-source": "/s", "ce-type": "t"}
DEEP = "[" * 100_000 + "]" * 100_000

REFUSED: list[tuple[str, int, Any, str, dict[str, Any]]] = [
    ("not JSON", 400, '{"a": 1,\n "b": oops}', JSON, {"line": 2, "column": 7, "value": "oops}"}),
    ("nothing", 400, "", JSON, {"line": 1, "value": "the end of the body"}),
    ("more than one value", 400, "1 2", JSON, {"column": 3}),
    ("not a number", 400, '{"a": NaN}', JSON, {}),
    ("not UTF-8", 400, b'{"a": "\xff"}', JSON, {"value": '\\xff"}'}),
    ("UTF-16", 400, '{"a": 1}'.encode("utf-16"), JSON, {}),
    ("too deep", 400, DEEP, JSON, {}),
    ("too deep in an event", 400, f'{{"data": {DEEP}}}', CLOUD_EVENT, {}),
    ("too many digits", 400, "9" * 5_000, JSON, {}),
    ("a line of NDJSON", 400, '{"a": 1}\n\n{"b": }', NDJSON, {"line": 3, "value": "}"}),
    ("no line of NDJSON", 422, "\n\n", NDJSON, {}),
    (
        "a batch that is no array",
        400,
        cloud_event("x", 1),
        CLOUD_EVENTS,
        {"value": '{"specversion"'},
    ),
    ("an empty batch", 422, [], CLOUD_EVENTS, {}),
    ("a batch that ends early", 400, f"[{GOOD}", CLOUD_EVENTS, {}),
    ("a batch with a comma too many", 400, f"[{GOOD},]", CLOUD_EVENTS, {}),
    ("a batch with more behind it", 400, f"[{GOOD}] 1", CLOUD_EVENTS, {"value": "1"}),
    ("an event with more behind it", 400, f"{GOOD} 1", CLOUD_EVENT, {"value": "1"}),
    ("an event that is no object", 400, "3", CLOUD_EVENT, {}),
    ("a member twice", 400, '{"id": "1", "id": "2"}', CLOUD_EVENT, {"field": "id"}),
    ("no id", 422, WITHOUT_ID, CLOUD_EVENT, {"pointer": "/id"}),
    ("a control character", 422, cloud_event("a\0b", 1), CLOUD_EVENT, {"pointer": "/id"}),
    ("a line end", 422, cloud_event("x", 1, "a\n"), CLOUD_EVENT, {"pointer": "/subject"}),
    ("C1 in an extension", 422, cloud_event("x", 1, ext="\x9f"), CLOUD_EVENT, {"pointer": "/ext"}),
    (
        "no id in the second of a batch",
        422,
        [cloud_event("good", 1), WITHOUT_ID],
        CLOUD_EVENTS,
        {"event": 1, "pointer": "/1/id"},
    ),
    (
        "another version",
        422,
        {**cloud_event("x", 1), "specversion": "0.3"},
        CLOUD_EVENT,
        {"pointer": "/specversion", "value": "0.3"},
    ),
    (
        "an id that is a number",
        422,
        {**cloud_event("x", 1), "id": 7},
        CLOUD_EVENT,
        {"pointer": "/id", "value": "7"},
    ),
    ("an attribute in capitals", 422, cloud_event("x", 1, traceId="7"), CLOUD_EVENT, {}),
    (
        "an attribute that is an object",
        422,
        cloud_event("x", 1, trace={}),
        CLOUD_EVENT,
        {"pointer": "/trace"},
    ),
    ("an attribute beyond 32 bits", 422, cloud_event("x", 1, n=2**31), CLOUD_EVENT, {}),
    (
        "data twice",
        422,
        cloud_event("x", 1, data_base64="aa=="),
        CLOUD_EVENT,
        {"pointer": "/data"},
    ),
    (
        "half of a surrogate pair",
        422,
        '{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"\\ud800"}',
        CLOUD_EVENT,
        {},
    ),
    ("a time that is none", 422, cloud_event("x", 1, time="yesterday"), CLOUD_EVENT, {}),
    ("a long subject", 413, cloud_event("x", 1, "s" * 2_000), CLOUD_EVENT, {}),
    ("no media type", 415, "{}", "", {"field": "content-type"}),
    ("another media type", 415, "a=1", "application/x-www-form-urlencoded", {}),
    ("another character set", 415, "{}", "application/json; charset=utf-16", {}),
    ("too many events", 413, "1\n" * 10_001, NDJSON, {}),
    ("too large", 413, '"' + "x" * 9_000_000 + '"', JSON, {}),
    ("too large an event", 413, '"' + "x" * 1_100_000 + '"', JSON, {"event": 0}),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "where"), [each[1:] for each in REFUSED], ids=[e[0] for e in REFUSED]
)
def test_a_request_that_is_wrong_is_refused_with_the_place(
    ingress: Ingress, status: int, body: Any, kind: str, where: dict[str, Any]
) -> None:
    problem = ingress.post(body, kind).problem(status)
    for name, value in where.items():
        if name == "value":
            assert problem[name].strip().startswith(value)
        else:
            assert problem[name] == value
    assert len(json.dumps(problem)) < 2_000
    assert "sys." not in problem["detail"], "a client has no Python"


def test_after_all_refusals_nothing_of_them_is_stored(ingress: Ingress) -> None:
    assert ingress.post("1", Semel_Entity="last").events == [("last", 1, False)]
    assert [row["entity"] for row in rows_of(ingress)] == ["last"]


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ({"Content-Encoding": "gzip"}, 415, "content-encoding"),
        ({"Semel-Entity": "%ff"}, 422, "semel-entity"),
        ({"Semel-Entity": "a%00"}, 422, "semel-entity"),
        ({"Host": "shop.example"}, 421, "host"),
        ({"Host": "127.0.0.1.shop.example:80"}, 421, "host"),
        ({"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s"}, 422, "ce-type"),
        ({**BINARY, "ce-id": "%C0%A0"}, 422, "ce-id"),
        ({**BINARY, "ce-id": "\xff"}, 422, "ce-id"),
        ({**BINARY, "ce-id": "a%00b"}, 422, "ce-id"),
        ({**BINARY, "ce-id": '"a'}, 422, "ce-id"),
        ({**BINARY, "ce-id": "1", "ce-subject": '""'}, 422, "ce-subject"),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_its_name(
    ingress: Ingress, headers: dict[str, str], status: int, name: str
) -> None:
    assert ingress.post("1", **headers).problem(status)["field"] == name


def test_a_header_that_is_there_twice_is_refused(ingress: Ingress) -> None:
    head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    twice = b"Semel-Entity: 1\r\nSemel-Entity: 2\r\nContent-Length: 1\r\nConnection: close\r\n\r\n1"
    received = ingress.send_raw(head + twice)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"field": "semel-entity"' in received


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/events", 405),
        ("PUT", "/v1/events", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v1/events/nobody/1", 404),
        ("GET", "/v1/events/nobody/0", 422),
        ("GET", "/v1/events/nobody/x", 422),
        ("POST", "/healthz", 405),
    ],
)
def test_a_path_that_is_not_there_is_a_problem(
    ingress: Ingress, method: str, path: str, status: int
) -> None:
    ingress.request(method, path).problem(status)


def test_an_entity_that_is_required_and_missing_is_refused(
    start: Callable[..., Ingress],
) -> None:
    ingress = start("--entity", "/customer/id")
    problem = ingress.post('{"customer": {"id": "c1"}}\n{"customer": 1}', NDJSON).problem(422)
    assert (problem["line"], problem["pointer"]) == (2, "/customer/id")
    assert rows_of(ingress) == []
    assert ingress.post('{"customer": {"id": "c1"}}').events == [("c1", 1, False)]


# -- tokens

FIRST, SECOND = "first-token-0123456789", "second-token-0123456789"


def test_a_token_is_required_and_the_file_is_read_again_when_it_changes(
    start: Callable[..., Ingress], tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of the shop\n{FIRST}\n\n")
    ingress = start("--token-file", str(file))
    assert ingress.post("1", Authorization=f"Bearer {FIRST}").events
    for wrong in ({}, {"Authorization": f"Bearer {SECOND}"}, {"Authorization": f"Basic {FIRST}"}):
        answer = ingress.post("1", **wrong)
        assert answer.problem(401)["field"] == "authorization"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert SECOND not in answer.body.decode()
    ingress.get("/metrics").problem(401)
    ingress.get("/v1/events/a/1").problem(401)
    assert ingress.get("/healthz").status == 200
    file.write_text(SECOND)
    until(lambda: ingress.post("1", Authorization=f"Bearer {SECOND}").status == 201)
    ingress.post("1", Authorization=f"Bearer {FIRST}").problem(401)
    file.write_text("")
    until(lambda: ingress.post("1", Authorization=f"Bearer {SECOND}").status == 401)
    assert ingress.stop() == 0
    assert not any(token in line for line in ingress.err for token in (FIRST, SECOND))


def until(holds: Callable[[], bool]) -> None:
    clock = SystemClock()
    ends = clock.monotonic() + 10
    while not holds():
        assert clock.monotonic() < ends
        clock.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "a token is required"),
        (("--token-file", "nowhere"), "cannot be read"),
        (("--entity", "customer"), "JSON pointer"),
        (("--entity", "/a~2"), "JSON pointer"),
        (("--max-bytes", "0"), "between 1 and"),
        (("--port", "70000"), "between 0 and 65535"),
        (("--timeout", "0"), "seconds"),
        (("--partitions", "0"), "partitions must be"),
        (("--host", "192.0.2.1", "--token-file", "{tokens}"), "cannot listen"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_opened(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(FIRST)
    ledger = f"sqlite:///{tmp_path / 'shop.db'}"
    named = [each.format(tokens=tokens) for each in options]
    assert message in refused(capsys, "ingest", "orders", "--ledger", ledger, *named)


@pytest.mark.parametrize("content", ["", "short", "has a blank inside of it"])
def test_a_token_file_without_a_good_token_is_refused_and_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(content)
    ledger = f"sqlite:///{tmp_path / 'shop.db'}"
    command = ("ingest", "orders", "--ledger", ledger, "--token-file", str(tokens))
    message = refused(capsys, *command)
    assert "token" in message
    assert not content or content not in message


def test_a_port_in_use_is_refused(
    capsys: pytest.CaptureFixture[str], start: Callable[..., Ingress]
) -> None:
    taken = start()
    command = ("ingest", "orders", "--ledger", taken.ledger, "--port", str(taken.port))
    assert "cannot listen" in refused(capsys, *command)
