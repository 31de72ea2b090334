"""A service over HTTP: what each answer means, what is sent at once, and what never leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    MissingExtra,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
)
from semel.guarantees.explain import explain
from semel.protocol import Capability, OnDoubt
from semel.runtime import SystemClock
from semel.sinks import Retry
from semel.sinks.http import Basic, Bearer, Certificate, Http
from semel.sinks.http.templates import KEY_LENGTH_MAX, UrlTemplate, key_header, key_text
from semel.verify.servers.http_witness import HttpWitness
from support.sinks.http_calls import TARGET, ScriptedServer, chunk_of, serve

HASTY: dict[str, Any] = {"timeout_s": 1.0, "deadline_s": 3.0, "retry": Retry(0.01, 0.05, 0.3)}


@pytest.fixture(scope="module")
def service() -> Iterator[HttpWitness]:
    with HttpWitness() as witness:
        yield witness


@pytest.fixture(scope="module")
def forgetful() -> Iterator[HttpWitness]:
    with HttpWitness(absorbs=False) as witness:
        yield witness


@pytest.fixture
def fresh(forgetful: HttpWitness) -> HttpWitness:
    """A service that absorbs nothing and was asked nothing yet."""
    forgetful.forget()
    return forgetful


@contextmanager
def session(url: str, **settings: Any) -> Iterator[Any]:
    opened = Http(name="bank", url=url, **{**HASTY, **settings}).open(TARGET)
    try:
        yield opened
    finally:
        opened.close()


def failures(url: str, customers: Any = "a", **settings: Any) -> dict[int, DeliveryError]:
    columns = settings.pop("columns", {})
    with session(url, **settings) as opened:
        return dict(opened.deliver(chunk_of(customers, **columns)).failures)


# -- what it can do


@pytest.mark.rows("S17", "S21", "A13", "A14")
@pytest.mark.parametrize(
    ("settings", "capability", "chunk_rows"),
    [
        ({}, "opaque", 1),
        ({"window": 200}, "opaque", 200),
        ({"probe": "http://h/x/{payment_id}", "window": 50}, "opaque", 50),
        ({"probe": "http://h/x/{semel.key}"}, "probing", 1),
        ({"idempotency": True}, "repeatable", 20_000),
        ({"remembers_s": 60.0}, "repeatable", 20_000),
        ({"idempotency": True, "chunk_rows": 500}, "repeatable", 500),
    ],
)
def test_what_it_promises_follows_from_what_the_service_can_do(
    settings: dict[str, Any], capability: str, chunk_rows: int
) -> None:
    sink = Http(name="bank", url="http://h/x", **settings)
    for each in (sink, pickle.loads(pickle.dumps(sink)), replace(sink, deadline_s=60.0)):
        assert each.capability == capability
        assert each.chunk_rows == chunk_rows
        assert each.describe() == {"capability": capability}
    assert sink == pickle.loads(pickle.dumps(sink))
    asks = capability == "opaque" and "probe" in settings
    assert (sink.on_doubt is OnDoubt.PROBE) == asks
    assert (sink.remembers_s > 0) == (sink.capability is Capability.REPEATABLE)
    assert capability.upper() in str(explain(sink))


def test_a_day_is_how_long_a_key_is_remembered_unless_told() -> None:
    assert Http(name="b", url="http://h", idempotency=True).remembers_s == 86_400.0
    assert Http(name="b", url="http://h", remembers_s=60.0).remembers_s == 60.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "ftp://h/x"}, "must begin with https"),
        ({"url": "https:///x"}, "must begin with https"),
        ({"url": "https://{host}/x"}, "the host must be the same"),
        ({"url": "https://u:secret@h/x"}, "auth=Basic"),
        ({"url": "https://u:secret/2@h/x"}, "port is not a number"),
        ({"url": "https://u:secret?2@h/x"}, "port is not a number"),
        ({"url": "https://h/x#{a}"}, "fragment"),
        ({"url": "https://h:port/x"}, "(?i)port"),
        ({"url": "https://h/{a!r}"}, "nothing else"),
        ({"url": "https://h/{}"}, "nothing else"),
        ({"url": "https://h/{a"}, "for a brace"),
        ({"url": "https://h/a b"}, "without spaces"),
        ({"method": "GET"}, "POST, PUT, PATCH, DELETE"),
        ({"headers": {"a b": "x"}}, "not the name of a header"),
        ({"headers": {"Host": "x"}}, "set by semel"),
        ({"headers": {"idempotency-key": "x"}}, "set by semel"),
        ({"headers": {"Content-Type": "x"}}, "content_type="),
        ({"headers": {"X-A": "x", "x-a": "y"}}, "twice"),
        ({"headers": {"X": "a\r\nB: c"}}, "one line"),
        ({"body": {"a": object()}}, "JSON template"),
        ({"body": {"a": 1}, "body_column": "x"}, "choose one"),
        ({"content_type": "a\r\nB: c"}, "one line"),
        ({"window": 0}, "at least 1"),
        ({"concurrency": 1.5}, "at least 1"),
        ({"timeout_s": 25.0}, "too long for deadline_s"),
        ({"rate_limit": 0}, "rate_limit must be greater than 0, got 0"),
        ({"remembers_s": -1.0}, "number of seconds"),
        ({"idempotency": True, "probe": "http://h/{a}"}, "choose one"),
        ({"probe": "http://h/{semel.key}", "window": 3}, "one call after the other"),
        ({"on_doubt": OnDoubt.PROBE}, "needs probe"),
        ({"auth": "token"}, "auth must be Bearer"),
        ({"auth": (Bearer("t"), Basic("u", "p"))}, "choose one"),
        ({"auth": Bearer("t"), "headers": {"authorization": "x"}}, "choose one"),
        (
            {"auth": (Bearer("t"), Certificate("c")), "headers": {"Authorization": "x"}},
            "both set Authorization",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_told_at_once(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        Http(**{"name": "bank", "url": "https://h/x", **settings})
    assert "secret" not in str(raised.value)


def test_its_library_is_imported_when_a_session_is_opened() -> None:
    both = "{'uvloop', 'httptools'}"
    code = f"import sys, semel.sinks.http; print({both} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert told.stdout.strip() == b"set()"


@pytest.mark.parametrize("missing", ["uvloop", "httptools"])
def test_a_library_that_is_not_installed_is_named_with_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "semel.sinks.http.responses", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=rf"{missing} is not .*pip install 'semel\[http\]'"):
        Http(name="bank", url="https://h/x").open(TARGET)


# -- what each answer means

OPAQUE = {
    200: None,
    202: None,
    204: None,
    301: Rejected,
    302: OutcomeUnknown,
    303: OutcomeUnknown,
    307: Rejected,
    308: Rejected,
    400: Rejected,
    401: NotDelivered,
    403: Rejected,
    404: Rejected,
    408: NotDelivered,
    409: Rejected,
    413: Rejected,
    422: Rejected,
    425: NotDelivered,
    429: NotDelivered,
    500: OutcomeUnknown,
    501: OutcomeUnknown,
    502: OutcomeUnknown,
    503: OutcomeUnknown,
    504: OutcomeUnknown,
    599: OutcomeUnknown,
}


@pytest.mark.rows("S17", "N3")
def test_every_status_is_one_of_four_things(service: HttpWitness) -> None:
    with session(service.url, breaker=1_000) as opened:
        for status, expected in OPAQUE.items():
            service.plan(status=status, text=f"because {status}", times=1_000, match=f"s{status}")
            asked = service.figures()["requests"]
            why = opened.deliver(chunk_of(f"s{status} s{status}")).failures
            if expected is None:
                assert why == {}, status
                continue
            assert type(why[0]) is expected, status
            assert str(status) in str(why[0])
            assert f"because {status}" in str(why[0])
            assert type(why[1]) is NotDelivered, "the next of its entity is not tried"
            tries = service.figures()["requests"] - asked
            assert (tries > 1) == (expected is NotDelivered), "an unknown outcome is not repeated"


KEYED = {409: OutcomeUnknown, 422: Rejected, 500: OutcomeUnknown, 502: OutcomeUnknown}


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_with_a_key_it_is_called_again_until_it_answers(service: HttpWitness, status: int) -> None:
    name = f"again{status}"
    service.plan(status=status, effect=True, times=2, match=name)
    assert failures(service.url, name, idempotency=True) == {}
    assert [each.body["customer"] for each in service.effects()].count(name) == 1


@pytest.mark.parametrize(("status", "expected"), KEYED.items())
def test_with_a_key_too_patience_ends(
    service: HttpWitness, status: int, expected: type[Exception]
) -> None:
    service.plan(status=status, times=1_000, match=f"never{status}")
    [why] = failures(service.url, f"never{status}", idempotency=True, breaker=9_999).values()
    assert type(why) is expected
    if status == 422:
        assert "used before with another body" in str(why)


def test_what_was_unknown_once_is_not_called_not_delivered_later(fresh: HttpWitness) -> None:
    fresh.plan(status=500, effect=True)
    fresh.plan(status=429, times=1_000)
    [why] = failures(fresh.url, idempotency=True, breaker=9_999).values()
    assert isinstance(why, OutcomeUnknown)


def test_a_redirect_is_not_followed_to_another_host_nor_anywhere(service: HttpWitness) -> None:
    with HttpWitness() as other:
        for status in (301, 302, 307, 308):
            service.plan(status=status, headers={"Location": f"{other.url}/x"}, match="moved")
            [why] = failures(service.url, "moved").values()
            assert "redirects are not followed" in str(why)
        assert other.figures()["requests"] == 0


def test_a_response_is_kept_in_the_reason_up_to_2_kb(service: HttpWitness) -> None:
    service.plan(status=400, text="é" * 100_000, match="long")
    [why] = failures(service.url, "long").values()
    assert 2_000 < len(str(why)) < 2_300


def test_the_same_table_has_words_for_a_dead_letter(service: HttpWitness) -> None:
    service.plan(status=422, text='{"error": "no such account"}', match="letter")
    [why] = failures(f"{service.url}/charges/{{customer}}?key=s3cr3t", "letter").values()
    assert f"POST {service.url}/.../{{customer}} answered 422" in str(why)
    assert "no such account" in str(why)
    assert "s3cr3t" not in str(why)


# -- when to come again


def test_retry_after_is_honoured_by_every_call_of_the_session(fresh: HttpWitness) -> None:
    fresh.plan(status=429, headers={"Retry-After": "1"}, match='"a"')
    began = time.monotonic()
    assert failures(fresh.url, "a", deadline_s=60.0, retry=Retry(0.01, 0.01, 60.0)) == {}
    assert 0.9 < time.monotonic() - began < 30.0
    assert fresh.figures()["requests"] == 2


def test_a_retry_after_beyond_the_deadline_is_told_and_not_waited_for(fresh: HttpWitness) -> None:
    fresh.plan(status=503, headers={"Retry-After": "86400"}, times=9)
    began = time.monotonic()
    [why] = failures(fresh.url, retry=Retry(0.01, 0.01, 70.0)).values()
    assert isinstance(why, NotDelivered)
    assert why.retry_after_s == 70.0
    assert time.monotonic() - began < 50.0


@pytest.mark.parametrize("told", ["Thu, 01 Jan 1970 00:00:00 GMT", "soon", "-1", "٣"])
def test_a_retry_after_that_says_nothing_leaves_it_to_the_backoff(
    fresh: HttpWitness, told: str
) -> None:
    fresh.plan(status=429, headers={"Retry-After": told})
    assert failures(fresh.url) == {}


@pytest.mark.parametrize("told", ["0", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_unavailable_is_not_delivered_where_it_asks_for_the_request_again(
    fresh: HttpWitness, told: str
) -> None:
    fresh.plan(status=503, headers={"Retry-After": told})
    assert failures(fresh.url) == {}
    assert fresh.figures()["requests"] == 2


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "soon"}], ids=["nothing", "no time"])
def test_unavailable_is_unknown_where_a_gateway_may_have_said_it(
    fresh: HttpWitness, headers: dict[str, str]
) -> None:
    fresh.plan(status=503, headers=headers, effect=True)  # the service had taken it
    [why] = failures(fresh.url).values()
    assert type(why) is OutcomeUnknown
    assert (fresh.figures()["requests"], len(fresh.effects())) == (1, 1)


def test_a_rate_limit_is_kept(fresh: HttpWitness) -> None:
    began = time.monotonic()
    assert failures(fresh.url, [f"c{n}" for n in range(30)], rate_limit=30.0) == {}
    assert time.monotonic() - began > 0.9


def test_the_circuit_breaker_leaves_the_rest_alone(fresh: HttpWitness) -> None:
    fresh.plan(status=500, times=1_000)
    why = failures(fresh.url, [f"c{n}" for n in range(500)], breaker=5, concurrency=4)
    asked = fresh.figures()["requests"]
    assert 5 <= asked <= 9
    kinds = [type(each) for each in why.values()]
    assert kinds.count(OutcomeUnknown) == asked
    assert kinds.count(NotDelivered) == 500 - asked
    assert any("circuit breaker" in str(each) for each in why.values())


def test_a_breaker_that_opened_closes_with_the_next_chunk(fresh: HttpWitness) -> None:
    fresh.plan(status=503, headers={"Retry-After": "0"}, times=3)
    with session(fresh.url, breaker=3, retry=Retry(0.01, 0.01, 1.0)) as opened:
        assert set(opened.deliver(chunk_of("a")).failures) == {0}
        assert opened.deliver(chunk_of("a")).failures == {}


@pytest.mark.parametrize("when", ["between two calls", "while it connects"])
def test_a_machine_that_was_suspended_starts_no_call_after_the_deadline(
    when: str, fresh: HttpWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took over has waited, and believes that nothing of this chunk is still to come."""
    right, slept = SystemClock.monotonic, [0.0]
    monkeypatch.setattr(SystemClock, "monotonic", staticmethod(lambda: right() + slept[0]))
    with session(fresh.url, window=3, concurrency=1) as opened:
        calls = opened.calls
        name = "_call" if when == "between two calls" else "_connected"
        where = calls if name == "_call" else calls._connections
        goes_on = getattr(where, name)

        async def sleeping(*given: Any) -> Any:
            result = await goes_on(*given)
            slept[0] += 3_600.0
            return result

        monkeypatch.setattr(where, name, sleeping)
        why = opened.deliver(chunk_of("a b c")).failures
    tried = 1 if name == "_call" else 0
    assert len(fresh.effects()) == tried
    assert sorted(why) == [0, 1, 2][tried:]
    assert all(isinstance(each, NotDelivered) for each in why.values())


def test_a_chunk_ends_within_its_deadline_and_the_rest_was_not_tried(fresh: HttpWitness) -> None:
    fresh.plan(seconds=0.4, times=1_000, effect=True, status=200)
    began = time.monotonic()
    why = failures(fresh.url, "a a a a a a a a a a", timeout_s=0.8, deadline_s=1.6)
    assert time.monotonic() - began < 1.9
    assert {type(each) for each in why.values()} == {NotDelivered}
    assert len(fresh.effects()) == 10 - len(why) < 10


# -- order


@pytest.mark.rows("N3")
@pytest.mark.parametrize("idempotency", [True, False])
def test_an_entity_is_in_order_and_never_twice_in_flight(idempotency: bool) -> None:
    customers = [f"c{n % 40}" for n in range(800)]
    with HttpWitness(delay_s=0.01) as witness:
        witness.plan(status=429, times=30, after=100)
        assert failures(witness.url, customers, idempotency=idempotency, concurrency=30) == {}
        seen = [each.body for each in witness.effects()]
        assert witness.figures()["overlaps"] == 0
        assert witness.figures()["connections"] <= 30 + 4, "ours, and the test's questions"
    for customer in set(customers):
        mine = [each["payment_id"] for each in seen if each["customer"] == customer]
        assert mine == sorted(mine)
        assert len(mine) == 20


def test_many_entities_are_called_at_once() -> None:
    with HttpWitness(delay_s=0.2) as witness:
        patient = {"concurrency": 200, "timeout_s": 10.0, "deadline_s": 30.0}
        for customers, ordered in (([f"c{n}" for n in range(200)], True), (["c"] * 200, False)):
            began = time.monotonic()
            with session(witness.url, **patient) as opened:
                assert opened.deliver(chunk_of(customers, ordered=ordered)).failures == {}
            assert time.monotonic() - began < 30.0, "40 s one after the other"


def test_after_a_failure_the_later_events_of_its_entity_are_not_tried(fresh: HttpWitness) -> None:
    fresh.plan(status=400, match='"payment_id":2,')
    columns = {"note": ["x"] * 6}
    why = failures(fresh.url, "a b a a b a", columns=columns)
    assert {at: type(each) for at, each in why.items()} == {
        2: Rejected,
        3: NotDelivered,
        5: NotDelivered,
    }
    assert sorted(each.body["payment_id"] for each in fresh.effects()) == [0, 1, 4]


def test_a_loop_that_runs_already_as_in_a_notebook_is_not_in_the_way(fresh: HttpWitness) -> None:
    async def cell() -> dict[int, DeliveryError]:
        return failures(fresh.url, "a b a")

    assert asyncio.run(cell()) == {}
    assert len(fresh.effects()) == 3


def test_an_interrupted_chunk_does_not_go_on_when_its_session_is_closed() -> None:
    # What runs in the background is deaf to interrupts from its start on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGINT, before)
        witness = stack.enter_context(HttpWitness(delay_s=0.2))
        opened = Http(name="b", url=witness.url, concurrency=4).open(TARGET)
        interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            opened.deliver(chunk_of([f"c{n}" for n in range(200)]))
        asked = witness.figures()["requests"]
        opened.close()
        time.sleep(0.3)
        assert 0 < asked < 100
        assert witness.figures()["requests"] == asked


# -- what is sent


def test_the_body_is_the_json_of_all_columns_unless_told(fresh: HttpWitness) -> None:
    columns = {"note": ['"; drop {table}\r\n\x00 é 日本']}
    assert failures(fresh.url, columns=columns) == {}
    [effect] = fresh.effects()
    assert effect.body == {"customer": "a", "payment_id": 0, "note": columns["note"][0]}
    assert "content-type: application/json" in fresh.heads()[0].lower()


def test_a_json_template_keeps_types_and_cannot_be_broken_out_of(fresh: HttpWitness) -> None:
    shape = {
        "to": "{customer}",
        "cents": "{payment_id}",
        "text": "for {customer} {{no. {payment_id}}}",
        "list": [1, None, True, "{note}"],
        "id": "{semel.key}",
    }
    columns = {"note": ['","admin":true,"x":"']}
    assert failures(fresh.url, body=shape, columns=columns) == {}
    assert fresh.effects()[0].body == {
        "to": "a",
        "cents": 0,
        "text": "for a {no. 0}",
        "list": [1, None, True, columns["note"][0]],
        "id": "pay/bank/a/0",
    }


@pytest.mark.parametrize("value", [b"\x00\xff<xml/>", "<xml>é</xml>"])
def test_a_column_can_be_the_body_as_it_is(value: Any) -> None:
    with ScriptedServer(serve) as wire:
        columns = {"payload": [value]}
        told = {"body_column": "payload", "content_type": "text/xml", "columns": columns}
        assert failures(wire.url, **told) == {}
        body = value if isinstance(value, bytes) else value.encode()
        assert wire.requests[0].endswith(b"\r\n\r\n" + body)
        assert b"Content-Type: text/xml" in wire.requests[0]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("../admin?x=1#y", None),
        ("..", None),
        (".", None),
        ("%2e%2e", "/c/%252e%252e/end?q=%252e%252e&r=1"),
        ("a/../b", None),
        ("a\\..\\b", None),
        ("", None),
        ("a/b", "/c/a%2Fb/end?q=a%2Fb&r=1"),
        ("a&r=2", "/c/a%26r%3D2/end?q=a%26r%3D2&r=1"),
        ("a b+c", "/c/a%20b%2Bc/end?q=a%20b%2Bc&r=1"),
        ("@evil.example/", "/c/%40evil.example%2F/end?q=%40evil.example%2F&r=1"),
        ("a\r\nHost: evil\x00", "/c/a%0D%0AHost%3A%20evil%00/end?q=a%0D%0AHost%3A%20evil%00&r=1"),
        ("é日", "/c/%C3%A9%E6%97%A5/end?q=%C3%A9%E6%97%A5&r=1"),
        ("...", "/c/.../end?q=...&r=1"),
    ],
)
def test_a_value_never_leaves_its_place_in_a_url(value: str, path: str | None) -> None:
    with ScriptedServer(serve) as wire:
        why = failures(f"{wire.url}/c/{{note}}/end?q={{note}}&r=1", columns={"note": [value]})
        if path is None:
            assert isinstance(why[0], Rejected)
            assert wire.requests == []
        else:
            assert why == {}
            assert wire.requests[0].split(b"\r\n")[0] == f"POST {path} HTTP/1.1".encode()


def test_parts_of_a_segment_do_not_add_up_to_another_place() -> None:
    url = UrlTemplate.of("http://h/x/{a}{b}/y", "url")
    assert url.fill({"a": "1", "b": 2}) == "/x/12/y"
    for a, b in ((".", "."), ("", "."), ("./", ".")):
        with pytest.raises(Rejected):
            url.fill({"a": a, "b": b})


@pytest.mark.parametrize("value", ["a\r\nX-Admin: yes", "a\nb", "a\x00", "a\x7f", "é", None, [1]])
def test_a_header_value_that_would_not_stay_on_its_line_is_a_dead_letter(value: Any) -> None:
    with ScriptedServer(serve) as wire:
        why = failures(wire.url, headers={"X-Note": "n {note}"}, columns={"note": [value]})
        assert isinstance(why[0], Rejected)
        assert "X-Note" in str(why[0])
        assert wire.requests == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (b"\xff\x00", "_wA="),
        ("a:b", "a:b"),
    ],
)
def test_plain_values_have_one_form_in_headers(value: Any, text: str) -> None:
    with ScriptedServer(serve) as wire:
        assert failures(wire.url, headers={"X-Note": "{note}"}, columns={"note": [value]}) == {}
        assert f"\r\nX-Note: {text}\r\n".encode() in wire.requests[0]


def test_a_column_that_is_not_there_puts_nothing_in_doubt(fresh: HttpWitness) -> None:
    [why] = failures(f"{fresh.url}/{{nobody}}").values()
    assert isinstance(why, NotDelivered)
    assert "'nobody', which does not exist; there are 'customer', 'payment_id'" in str(why)


def test_what_json_cannot_say_is_a_dead_letter(fresh: HttpWitness) -> None:
    columns = {"amount": [1.0, float("nan"), float("inf")]}
    why = failures(fresh.url, "a b c", columns=columns)
    assert {at: type(each) for at, each in why.items()} == {1: Rejected, 2: Rejected}
    assert len(fresh.effects()) == 1


def test_a_header_of_ones_own_replaces_the_usual_one() -> None:
    with ScriptedServer(serve) as wire:
        assert failures(wire.url, headers={"user-agent": "ours", "X-Who": "{customer}"}) == {}
        lines = wire.requests[0].split(b"\r\n")
        assert [each for each in lines if each.lower().startswith(b"user-agent")] == [
            b"user-agent: ours"
        ]
        assert b"X-Who: a" in lines
        assert b"Content-Type: application/json" in lines


# -- the key


@pytest.mark.parametrize(
    ("key", "header"),
    [
        ("p/s/a/7", '"p/s/a/7"'),
        ('p/s/a"b\\c/7', '"p/s/a\\"b\\\\c/7"'),
        ("p/s/é/=日", '"p/s/%C3%A9/=%E6%97%A5"'),
        ("p/s/\u2028/1", '"p/s/%E2%80%A8/1"'),
    ],
)
def test_a_key_is_written_as_the_draft_has_it(key: str, header: str) -> None:
    assert key_header(key) == header


def test_two_keys_never_become_one_and_a_long_one_is_hashed() -> None:
    keys = ["p/s/Ã\u0083", "p/s/Ã%83", "p/s/Ã%25C3", "p/s/é", "p/s/%C3%A9", "x" * 300, "x" * 301]
    written = [key_text(each.replace("%", "%25")) for each in keys]
    assert len(set(written)) == len(keys)
    assert all(len(each) <= KEY_LENGTH_MAX for each in written)


def test_the_key_is_the_events_own_on_every_try(fresh: HttpWitness) -> None:
    fresh.plan(status=500, times=2)
    assert failures(fresh.url, ['a"é'], idempotency=True) == {}
    told = {line for head in fresh.heads() for line in head.split("\r\n") if "Idempotency" in line}
    assert told == {'Idempotency-Key: "pay/bank/a\\"%C3%A9/0"'}
    assert len(fresh.heads()) == 3


# -- asking


@pytest.mark.rows("A13", "A14")
def test_a_probing_session_asks_for_the_key_that_it_sent(fresh: HttpWitness) -> None:
    with session(f"{fresh.url}/x", probe=f"{fresh.url}/requests/{{semel.key}}") as opened:
        chunk = chunk_of("a")
        assert not opened.arrived(chunk.key)
        assert opened.deliver(chunk).failures == {}
        assert opened.arrived(chunk.key)
        fresh.plan(status=500, match="GET")
        with pytest.raises(OutcomeUnknown, match="only 200 and 404 are an answer"):
            opened.arrived(chunk.key)
        with pytest.raises(Rejected):
            opened.deliver(chunk_of("a b"))
        fresh.plan(status=502)
        with pytest.raises(OutcomeUnknown):
            opened.deliver(chunk_of("c"))


@pytest.mark.rows("A14", "S21")
def test_a_probe_by_columns_asks_about_single_events(fresh: HttpWitness) -> None:
    url = f"{fresh.url}/charges/{{customer}}/{{payment_id}}"
    sink = Http(name="bank", url=url, probe=url, window=10, **HASTY)
    sink = pickle.loads(pickle.dumps(sink))
    chunk = chunk_of("a b")
    assert sink.probe(chunk.event(0)) is False
    opened = sink.open(TARGET)
    assert opened.deliver(chunk).failures == {}
    opened.close()
    assert sink.probe(chunk.event(0)) is True
    fresh.plan(status=503, match="GET")
    with pytest.raises(OutcomeUnknown):
        sink.probe(chunk.event(1))


# -- secrets


def test_secrets_are_read_on_the_executor_and_shown_nowhere(
    fresh: HttpWitness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_TOKEN", "t0p-s3cret")
    monkeypatch.setenv("BANK_KEY", "k3y-s3cret")
    sink = Http(
        name="bank",
        url=f"{fresh.url}/x?api_key=qu3ry-s3cret",
        auth=Bearer("${BANK_TOKEN}"),
        headers={"X-Api-Key": "${BANK_KEY}", "X-Plain": "pl4in-s3cret"},
        **HASTY,
    )
    echo = "t0p-s3cret k3y-s3cret pl4in-s3cret qu3ry-s3cret"
    fresh.plan(status=400, text=echo)
    opened = sink.open(TARGET)
    why = opened.deliver(chunk_of("a")).failures[0]
    opened.close()
    head = fresh.heads()[0]
    assert "Authorization: Bearer t0p-s3cret" in head
    assert "X-Api-Key: k3y-s3cret" in head
    shown = [why, sink, opened, sink.describe(), explain(sink), sink.service, *sink.auth_given]
    for each in (*map(str, shown), *map(repr, shown)):
        assert "s3cret" not in each
    assert "BANK_TOKEN" not in repr(sink)
    assert b"t0p-s3cret" not in pickle.dumps(sink)
    monkeypatch.delenv("BANK_TOKEN")
    with pytest.raises(ConfigurationError, match="BANK_TOKEN"):
        sink.open(TARGET)


def test_basic_credentials_and_their_encoded_form_are_masked(fresh: HttpWitness) -> None:
    fresh.plan(status=403, text="dXNlcjpwYTU1dzByZA== pa55w0rd")
    [why] = failures(fresh.url, auth=Basic("user", "pa55w0rd")).values()
    assert "Authorization: Basic dXNlcjpwYTU1dzByZA==" in fresh.heads()[0]
    assert "Response: *** ***" in str(why)
    assert "pa55w0rd" not in repr(Http(name="b", url="http://h", auth=Basic("user", "pa55w0rd")))


def test_a_user_with_a_colon_would_be_another_user() -> None:
    with pytest.raises(ConfigurationError, match="colon"):
        Http(name="b", url="http://h", auth=Basic("a:b", "pa55w0rd")).open(TARGET)


def test_a_host_that_cannot_be_reached_is_told_without_the_query() -> None:
    [why] = failures("http://127.0.0.1:1/x?api_key=qu3ry-s3cret").values()
    assert "127.0.0.1:1/... could not be reached" in str(why)
    assert "s3cret" not in str(why)


def test_a_certificate_file_that_is_not_there_is_told() -> None:
    sink = Http(name="b", url="https://h", auth=Certificate("/nowhere.pem", password="s3cret"))
    with pytest.raises(ConfigurationError, match="certificate file"):
        sink.open(TARGET)
    with pytest.raises(ConfigurationError, match="certificate file"):
        Http(name="b", url="https://h", ca="/nowhere.pem").open(TARGET)


def test_values_of_every_type_become_json(fresh: HttpWitness) -> None:
    import datetime as dt
    from decimal import Decimal

    columns = {
        "d": [Decimal("1.10")],
        "t": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)]),
        "b": [b"\x00\xff"],
        "n": pa.array([None], pa.int64()),
        "s": [{"x": [1, 2]}],
    }
    assert failures(fresh.url, columns=columns) == {}
    body = fresh.effects()[0].body
    assert body["d"] == "1.10"
    assert body["t"].startswith("2026-01-02T03:04:05")
    assert body["b"] == "AP8="
    assert (body["n"], body["s"]) == (None, {"x": [1, 2]})
    assert json.dumps(body)
