"""Hostile clients get a clear answer or a closed connection, and others are served meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from semel.runtime import SystemClock
from support.ingress import Ingress, receive_all, rows_of

CLOCK = SystemClock()
HEAD = (
    b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Semel-Entity: hostile\r\n"
)


@pytest.fixture(autouse=True)
def _nothing_half_is_stored(ingress: Ingress) -> Iterator[None]:
    """After each test the ingress serves others, and has nothing of the hostile client."""
    yield
    assert ingress.post("1", Semel_Entity="others").events
    assert {row["entity"] for row in rows_of(ingress)} == {"others"}


@contextmanager
def served_meanwhile(ingress: Ingress) -> Iterator[None]:
    """Others are served while the body runs, each within a second."""
    done = threading.Event()
    slowest = [0.0]

    def others() -> None:
        while not done.is_set():
            began = CLOCK.monotonic()
            ingress.post("1", Semel_Entity="others")
            slowest[0] = max(slowest[0], CLOCK.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert 0 < slowest[0] < 5


def test_ten_thousand_headers_are_refused(ingress: Ingress) -> None:
    many = b"".join(b"X-%d: 1\r\n" % n for n in range(10_000))
    received = ingress.send_raw(HEAD + many + b"Content-Length: 1\r\n\r\n1")
    assert received.startswith(b"HTTP/1.1 431 ") or received == b""


def test_one_hundred_and_one_headers_are_refused_with_the_limit(ingress: Ingress) -> None:
    many = b"".join(b"X-%d: 1\r\n" % n for n in range(101))
    received = ingress.send_raw(HEAD + many + b"Content-Length: 1\r\n\r\n1")
    assert received.startswith(b"HTTP/1.1 431 ")
    assert b"more than 100 header fields" in received


def test_one_header_without_end_is_refused(ingress: Ingress) -> None:
    with ingress.connect() as link:
        link.sendall(HEAD + b"X: ")
        try:
            for _ in range(100):
                link.sendall(b"x" * 10_000)
        except ConnectionError:
            return
        received = receive_all(link)
    assert received.startswith(b"HTTP/1.1 431 ") or received == b""


@pytest.mark.parametrize("length", ["9000000", "99999999999999999999999"])
def test_a_large_length_is_refused_before_the_body_is_sent(ingress: Ingress, length: str) -> None:
    with ingress.connect() as link:
        link.sendall(HEAD + f"Content-Length: {length}\r\n\r\n".encode() + b"1" * 10)
        received = link.recv(65_536)
    assert received.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))


def test_a_body_in_chunks_without_end_is_refused(ingress: Ingress) -> None:
    with ingress.connect() as link:
        link.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"1" * 0x10000 + b"\r\n"
        for _ in range(8 * 2**20 // 0x10000 + 1):
            link.sendall(chunk)
        received = link.recv(65_536)
    assert received.startswith(b"HTTP/1.1 413 ")


SLOW = {
    "nothing": b"",
    "line ends": b"\r\n",
    "request line": b"POST /v1/ev",
    "header": HEAD + b"X-Slow: ",
    "body": HEAD + b"Content-Length: 100\r\n\r\n",
    "chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\n",
}
"""How requests begin that then go on with a byte now and then."""


def send_slowly(ingress: Ingress, start: bytes) -> tuple[bytes, float]:
    """Send a byte now and then; return what was received until the end, and how long it took."""
    drip = {b"": b"", b"\r\n": b"\r\n"}.get(start, b"1")
    began = CLOCK.monotonic()
    received = b""
    with ingress.connect() as link, suppress(ConnectionError):
        link.sendall(start)
        link.settimeout(0.3)
        while CLOCK.monotonic() - began < 15:
            try:
                part = link.recv(65_536)
            except TimeoutError:
                link.sendall(drip)
                continue
            if not part:
                break
            received += part
    return received, CLOCK.monotonic() - began


def test_clients_that_send_a_byte_now_and_then_are_ended_in_time(ingress: Ingress) -> None:
    with served_meanwhile(ingress), ThreadPoolExecutor(len(SLOW)) as clients:
        answers = list(clients.map(partial(send_slowly, ingress), SLOW.values()))
    for name, (received, seconds) in zip(SLOW, answers, strict=True):
        assert received.startswith(b"HTTP/1.1 408 "), name
        assert b"within 2 seconds" in received, name
        assert seconds < 10, name


@pytest.mark.parametrize(
    "sent",
    [
        HEAD[:30],
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\n" + b"1" * 50,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n",
    ],
)
@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_request_that_is_cut_off_is_not_stored(ingress: Ingress, sent: bytes, how: str) -> None:
    with ingress.connect() as link:
        link.sendall(sent)
        if how == "reset":
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00" * 1_000,
        b"\x16\x03\x01\x02\x00" + b"x" * 200,
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n1",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n1",
    ],
)
def test_what_is_not_http_is_refused(ingress: Ingress, sent: bytes) -> None:
    received = ingress.send_raw(sent)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in received
    assert b"not HTTP/1.1" in received


ONE = b"Connection: close\r\nContent-Length: 1\r\n\r\n1"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HEAD + b"Host: localhost\r\n" + ONE, 400),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n", 501),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"POST /v1/events/ HTTP/1.1\r\nHost: evil.example\r\n" + ONE, 404),
        (b"GET /healthz/ HTTP/1.1\r\nHost: evil.example\r\n" + ONE, 404),
    ],
)
def test_a_head_that_is_not_understood_is_refused(
    ingress: Ingress, sent: bytes, status: int
) -> None:
    received = ingress.send_raw(sent)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in received
    assert b"location:" not in received.lower()


def test_fields_behind_a_body_are_not_those_of_its_head(ingress: Ingress) -> None:
    head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n"
    named = head + b"Semel-Entity: others\r\n" + chunks
    received = ingress.send_raw(named + b"Semel-Entity: hostile\r\nHost: evil.example\r\n\r\n")
    assert b'"entity": "others"' in received


ARRAY = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nSemel-Entity: others\r\n"
CONTENT = b'["' + b"x" * 40 + b'"]'
FRAMED = {
    "a length": b"Content-Length: %d\r\n\r\n%s" % (len(CONTENT), CONTENT),
    "chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(CONTENT), CONTENT),
}


@pytest.mark.parametrize("framing", FRAMED)
@pytest.mark.parametrize("mode", ["plain", "binary"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_client_that_offers_another_protocol_is_answered_in_this_one(
    ingress: Ingress, framing: str, mode: str, cut: bool
) -> None:
    """Some clients offer HTTP/2 with their first request, as Java's does."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    id_ = f"{framing}-{mode}-{cut}".replace(" ", "-").encode()
    kinds = {
        "plain": b"Content-Type: application/json\r\n",
        "binary": b"Content-Type: a/b\r\nce-specversion: 1.0\r\nce-source: /s\r\nce-type: t\r\n"
        b"ce-id: " + id_ + b"\r\n",
    }
    sent = ARRAY + offer + kinds[mode] + FRAMED[framing]
    last = ARRAY + kinds["plain"] + ONE
    with ingress.connect() as link:
        if cut:  # the content comes later than the head
            head, end, content = sent.partition(b"\r\n\r\n")
            link.sendall(head + end)
            link.settimeout(0.2)
            with pytest.raises(TimeoutError):
                link.recv(1)
            link.settimeout(30)
            link.sendall(content + last)
        else:
            link.sendall(sent + last)
        received = receive_all(link)
    assert received.count(b"HTTP/1.1 201 ") == 2, received
    assert [row["value"] for row in rows_of(ingress)][-2:] == [CONTENT, b"1"]


AT_WORK = ARRAY + b"Content-Type: application/json\r\nPrefer: wait=1\r\nContent-Length: 1\r\n\r\n1"


@pytest.mark.parametrize(
    "behind",
    [
        b"NO HTTP\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnot a length\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(101)) + b"\r\n",
        HEAD + b"X: " + b"x" * 70_000,
    ],
    ids=["garbage", "chunk", "101 headers", "long header"],
)
def test_what_is_wrong_behind_a_request_is_not_the_answer_to_it(
    ingress: Ingress, behind: bytes
) -> None:
    received = ingress.send_raw(AT_WORK + behind)
    assert received.startswith(b"HTTP/1.1 201 ")
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "behind",
    [HEAD[:30], HEAD + b"Content-Length: 100\r\n\r\n" + b"1" * 50],
    ids=["head", "body"],
)
def test_half_a_request_behind_another_one_is_ended_in_time(
    ingress: Ingress, behind: bytes
) -> None:
    began = CLOCK.monotonic()
    received = ingress.send_raw(AT_WORK + behind)
    assert CLOCK.monotonic() - began < 10
    first, *more = received.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"201 ")
    assert all(each.startswith(b"408 ") for each in more)


def test_a_request_that_waits_behind_another_one_may_take_its_own_time(ingress: Ingress) -> None:
    slow = AT_WORK.replace(b"wait=1", b"wait=3")  # longer than a request may take to arrive
    rest = ARRAY + b"Content-Type: application/json\r\n" + ONE
    with ingress.connect() as link:
        link.sendall(slow + rest[:-1])
        received = b""
        while not received.endswith(b"]}"):
            received += link.recv(65_536)
        link.sendall(rest[-1:])
        received += receive_all(link)
    assert received.count(b"HTTP/1.1 201 ") == 2


def test_clients_that_leave_before_they_are_answered_are_no_errors(
    start: Callable[..., Ingress],
) -> None:
    ingress = start("--timeout", "2")
    for number in range(200):
        with ingress.connect() as link:
            link.sendall(AT_WORK + [b"", AT_WORK, HEAD, b"NO HTTP\r\n\r\n"][number % 4])
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    assert ingress.post("1").events
    assert ingress.stop() == 0
    assert ingress.err[1:] == []


def test_hundreds_of_idle_connections_do_not_keep_others_out(ingress: Ingress) -> None:
    idle = [ingress.connect() for _ in range(300)]
    try:
        with served_meanwhile(ingress):
            for link in idle:
                link.sendall(b"POST /v1/events HTTP/1.1\r\n")
    finally:
        for link in idle:
            link.close()
