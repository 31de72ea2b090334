"""What is known, and what is not, when a connection to a service breaks at each point."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import NotDelivered, OutcomeUnknown, Rejected
from semel.sinks import Receipt, Retry, Session
from semel.sinks.http import Http
from semel.sinks.http import http1 as lines
from semel.sinks.http.http1 import ConnectionBroken
from semel.sinks.http.responses import Response
from support.sinks.http_calls import (
    OK,
    TARGET,
    Conversation,
    Script,
    ScriptedServer,
    chunk_of,
    serve,
)

HASTY: dict[str, Any] = {
    "timeout_s": 0.6,
    "connect_s": 0.25,
    "deadline_s": 2.0,
    "retry": Retry(0.01, 0.02, 0.05),
}


@contextmanager
def session(url: str, **settings: Any) -> Iterator[Any]:
    opened = Http(name="bank", url=url, **{**HASTY, **settings}).open(TARGET)
    try:
        yield opened
    finally:
        opened.close()


def outcome(receipt: Receipt, place: int = 0) -> Exception | None:
    return receipt.failures.get(place)


def hang_up_at_once(conversation: Conversation) -> None:
    conversation.connection.close()


def reset_at_once(conversation: Conversation) -> None:
    conversation.reset()


def hang_up_within_the_request(conversation: Conversation) -> None:
    conversation.connection.recv(10)
    conversation.reset()


def hang_up_after_the_request(conversation: Conversation) -> None:
    conversation.request()


def hang_up_within_the_answer(conversation: Conversation) -> None:
    conversation.request()
    conversation.reply(b"HTTP/1.1 20")


def fall_silent(conversation: Conversation) -> None:
    conversation.request()
    conversation.connection.recv(1)  # until the client has enough


def fall_silent_within_the_answer(conversation: Conversation) -> None:
    conversation.request()
    conversation.reply(b"HTTP/1.1 200 OK\r\nContent-Le")
    conversation.connection.recv(1)


def talk_nonsense(conversation: Conversation) -> None:
    conversation.request()
    conversation.reply(b"220 mail.example ESMTP\r\n\r\n")


AFTER = [
    hang_up_within_the_request,
    hang_up_after_the_request,
    hang_up_within_the_answer,
    fall_silent,
    fall_silent_within_the_answer,
    talk_nonsense,
]


@pytest.mark.rows("S17", "N3")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("script", AFTER)
def test_what_breaks_after_the_request_began_is_unknown_and_never_sent_again(
    script: Script, method: str
) -> None:
    with ScriptedServer(script, serve) as wire, session(wire.url, method=method) as opened:
        receipt = opened.deliver(chunk_of("a"))
        assert isinstance(outcome(receipt), OutcomeUnknown)
        assert wire.connections == 1
        assert len(wire.requests) <= 1


@pytest.mark.parametrize("script", [hang_up_at_once, reset_at_once])
def test_a_connection_closed_as_we_write_is_never_taken_for_not_delivered(script: Script) -> None:
    with ScriptedServer(script, serve) as wire, session(wire.url) as opened:
        receipt = opened.deliver(chunk_of("a"))
        # Either the loop saw the end before the first byte, and another connection was made; or the
        # request began, and then the outcome is unknown.
        assert (outcome(receipt) is None and len(wire.requests) == 1) or (
            isinstance(outcome(receipt), OutcomeUnknown) and wire.requests == []
        )


def test_nobody_listens_so_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with session(f"http://127.0.0.1:{port}") as opened:
        receipt = opened.deliver(chunk_of("a b"))
        assert all(isinstance(outcome(receipt, at), NotDelivered) for at in (0, 1))
        assert "nothing was sent" in str(outcome(receipt))


def test_a_host_without_an_address_was_sent_nothing() -> None:
    with session("http://nowhere.invalid/x", connect_s=0.3, timeout_s=1.0) as opened:
        assert isinstance(outcome(opened.deliver(chunk_of("a"))), NotDelivered)


def test_a_connection_that_is_not_accepted_in_time_was_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        crowd = [socket.socket() for _ in range(4)]
        for each in crowd:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        with session(f"http://127.0.0.1:{port}", retry=Retry(0.01, 0.01, 0.01)) as opened:
            assert isinstance(outcome(opened.deliver(chunk_of("a"))), NotDelivered)
        for each in crowd:
            each.close()


def test_a_tls_handshake_that_hangs_or_fails_was_sent_nothing() -> None:
    def silent(conversation: Conversation) -> None:
        conversation.connection.recv(1_000)
        time.sleep(0.5)

    for script in (silent, hang_up_at_once, talk_nonsense):
        with ScriptedServer(script) as wire:
            url = wire.url.replace("http:", "https:")
            with session(url, retry=Retry(0.01, 0.01, 0.01)) as opened:
                assert isinstance(outcome(opened.deliver(chunk_of("a"))), NotDelivered)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_kept_connection_that_the_server_closed_meanwhile_is_not_used(method: str) -> None:
    def once(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply()

    with ScriptedServer(once, serve) as wire, session(wire.url, method=method) as opened:
        assert opened.deliver(chunk_of("a")).failures == {}
        time.sleep(0.1)
        assert opened.deliver(chunk_of("a", start=1)).failures == {}
        assert (wire.connections, len(wire.requests)) == (2, 2)


@pytest.mark.rows("N3")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_kept_connection_closed_just_as_we_write_is_unknown_and_not_repeated(
    method: str,
) -> None:
    """Aiohttp repeats PUT and DELETE by itself on a connection that it had kept."""

    def closes_on_the_second(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply()
        conversation.request()
        conversation.reset()

    with (
        ScriptedServer(closes_on_the_second, serve) as wire,
        session(wire.url, method=method) as opened,
    ):
        receipt = opened.deliver(chunk_of("a a a"))
        assert isinstance(outcome(receipt, 1), OutcomeUnknown)
        assert isinstance(outcome(receipt, 2), NotDelivered)
        assert (wire.connections, len(wire.requests)) == (1, 2)


def test_what_is_absorbed_is_repeated_with_the_same_key_on_another_connection() -> None:
    with (
        ScriptedServer(hang_up_after_the_request, serve) as wire,
        session(wire.url, idempotency=True) as opened,
    ):
        assert opened.deliver(chunk_of("a")).failures == {}
        keys = [line for each in wire.requests for line in each.split(b"\r\n") if b"Idemp" in line]
        assert keys == [b'Idempotency-Key: "pay/bank/a/0"'] * 2


@pytest.mark.parametrize(
    "told",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly a part",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    ],
)
def test_a_status_of_success_is_the_answer_whatever_follows(told: bytes) -> None:
    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(told)

    with ScriptedServer(say) as wire, session(wire.url) as opened:
        assert opened.deliver(chunk_of("a")).failures == {}


def test_a_response_without_end_is_not_read_to_its_end() -> None:
    def endless(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            conversation.reply(b"1000\r\n" + b"x" * 0x1000 + b"\r\n")

    with ScriptedServer(endless) as wire, session(wire.url) as opened:
        why = outcome(opened.deliver(chunk_of("a")))
        assert isinstance(why, Rejected)
        assert len(str(why)) < 2_300


def test_a_proxy_of_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with ScriptedServer(serve) as wire, session(wire.url) as opened:
        assert opened.deliver(chunk_of("a")).failures == {}


def test_cookies_of_one_event_are_not_sent_with_another() -> None:
    def set_cookie(conversation: Conversation) -> None:
        while conversation.request():
            conversation.reply(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: who=a\r\n\r\n", 1))

    with ScriptedServer(set_cookie) as wire, session(wire.url) as opened:
        assert opened.deliver(chunk_of("a a")).failures == {}
        assert not any(b"Cookie" in each for each in wire.requests)


# -- reading responses

CHUNKED = b"HTTP/1.1 400 No\r\ntransfer-encoding: Chunked\r\n\r\n"
WAIT = b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n"

RESPONSES: list[tuple[bytes, int, bytes, bool]] = [
    (OK, 200, b"{}", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 200, b"", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", 200, b"x", False),
    (CHUNKED + b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 400, b"abcde", True),
    (WAIT + b"HTTP/1.1 422 No\r\nContent-Length: 2\r\n\r\nno", 422, b"no", True),
]


@pytest.mark.parametrize(("told", "status", "text", "keeps"), RESPONSES)
def test_a_response_is_read_the_same_in_whatever_pieces_it_comes(
    told: bytes, status: int, text: bytes, keeps: bool
) -> None:
    pieces = [
        [told],
        [told[at : at + 1] for at in range(len(told))],
        *([told[:at], told[at:]] for at in range(1, len(told))),
    ]
    for parts in pieces:
        response = Response()
        ended = [response.feed(part) for part in parts]
        assert ended == [*[False] * (len(parts) - 1), True]
        assert (response.status, response.text, response.keeps) == (status, text, keeps)


@pytest.mark.parametrize(
    "told",
    [
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
    ],
)
def test_a_connection_whose_response_has_no_certain_end_is_not_used_again(told: bytes) -> None:
    def say(conversation: Conversation) -> None:
        while conversation.request():
            conversation.reply(told)

    with ScriptedServer(say) as wire, session(wire.url) as opened:
        for number in range(3):
            assert opened.deliver(chunk_of("a", start=number)).failures == {}
        assert wire.connections == 3


def test_words_that_nobody_asked_for_are_no_answer_to_the_next_request() -> None:
    def talkative(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply()
        time.sleep(0.05)
        conversation.reply(OK)  # an answer to nothing
        conversation.request()
        conversation.reply(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    with ScriptedServer(talkative, serve) as wire, session(wire.url) as opened:
        assert opened.deliver(chunk_of("a")).failures == {}
        time.sleep(0.2)
        assert opened.deliver(chunk_of("a", start=1)).failures == {}
        assert (wire.connections, len(wire.requests)) == (2, 2)


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", OK[:30]]))
def test_no_bytes_make_the_reader_fail_otherwise(noise: bytes, before: bytes) -> None:
    response = Response()
    with suppress(ConnectionBroken):
        for part in (before, noise, noise):
            if response.feed(part):
                break


def test_a_large_body_arrives_whole_and_an_early_answer_is_an_answer() -> None:
    def early(conversation: Conversation) -> None:
        conversation.connection.recv(100)
        conversation.reply(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        time.sleep(0.3)

    large = chunk_of("a", note=["x" * 5_000_000])
    patient = {"timeout_s": 5.0, "deadline_s": 20.0}
    with ScriptedServer(serve, early) as wire, session(wire.url, **patient) as opened:
        assert opened.deliver(large).failures == {}
        assert len(wire.requests[0]) > 5_000_000
    with ScriptedServer(early) as wire, session(wire.url, **patient) as opened:
        assert isinstance(outcome(opened.deliver(large)), Rejected)


def test_a_connection_that_waited_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "KEEPALIVE_S", 0.05)
    with ScriptedServer(serve) as wire, session(wire.url) as opened:
        for number, connections in ((0, 1), (1, 2)):
            assert opened.deliver(chunk_of("a a", start=2 * number)).failures == {}
            assert wire.connections == connections
            time.sleep(0.1)


def papers(folder: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1, signed by itself."""
    words = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out ca.pem -days 2"
    named = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words.split(), *named], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


def test_a_call_whose_connection_comes_late_still_ends_within_the_deadline(tmp_path: Path) -> None:
    context = papers(tmp_path)

    def slow(conversation: Conversation) -> None:
        time.sleep(2.5)  # of connect_s, which is 3
        secured = context.wrap_socket(conversation.connection, server_side=True)
        inside = Conversation(secured, [])
        if inside.request():
            time.sleep(1.5)  # of timeout_s, which is 2
            arrived.append(time.monotonic() - begun)
            inside.reply()
        secured.close()

    arrived: list[float] = []
    with ScriptedServer(slow) as wire:
        sink = Http(
            name="bank",
            url=wire.url.replace("http:", "https:") + "/charges",
            probe=wire.url.replace("http:", "https:") + "/charges/{semel.key}",
            ca=str(tmp_path / "ca.pem"),
            deadline_s=3.0,
            timeout_s=2.0,
        )
        session = sink.open(TARGET)
        assert isinstance(session, Session)
        begun = time.monotonic()
        with pytest.raises(NotDelivered, match="nothing was sent"):
            session.deliver(chunk_of("a"))
        session.close()
    # Whoever takes over waits lease_s + deadline_s, and then believes that nothing is in flight.
    assert arrived == []
