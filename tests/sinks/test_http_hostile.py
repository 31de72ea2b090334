"""A service that answers with anything: what is said of the event is never more than is known."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
)
from semel.runtime import SystemClock
from semel.sinks import Retry
from semel.sinks.http import Bearer, Http
from semel.sinks.http.classify import WAIT_S_MAX, seconds_until
from semel.sinks.http.http1 import ConnectionBroken
from semel.sinks.http.responses import HEAD_MAX, Response
from support.sinks.http_calls import OK, TARGET, Conversation, ScriptedServer, chunk_of

SECRET = "t0p-s3cret"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"


@contextmanager
def opened(url: str, **words: Any) -> Iterator[Any]:
    words = {"timeout_s": 0.3, "deadline_s": 2.0, "retry": Retry(for_s=0.0), **words}
    session = Http(name="bank", url=url, **words).open(TARGET)
    try:
        yield session
    finally:
        session.close()


def answered(told: bytes, **words: Any) -> DeliveryError | None:
    """What is said of an event that is answered so, after which the service hangs up."""

    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(told)

    with ScriptedServer(say) as wire, opened(wire.url, **words) as session:
        found: DeliveryError | None = session.deliver(chunk_of("a")).failures.get(0)
        return found


# -- Retry-After

FAR = [
    "Fri, 31 Dec 9999 23:59:59 -2359",
    "Mon, 01 Jan 0001 00:00:00 +2359",
    "9" * 400,
    "Fri, 31 Dec 99999999999999 23:59:59 GMT",
    "Fri, 31 Dec 2026 99999999999999:59:59 GMT",
    "Fri, 31 Dec 2026 23:59:59 +99999999999999",
    "Thu, 99 Xxx 99999 99:99:99 GMT",
    "-1",
    "1e400",
    "٣",
]


@pytest.mark.parametrize("when", FAR)
def test_a_retry_after_that_is_no_time_leaves_a_definite_answer_definite(when: str) -> None:
    def say(conversation: Conversation) -> None:
        while request := conversation.request():
            late = f"HTTP/1.1 400 No\r\nRetry-After: {when}\r\nContent-Length: 0\r\n\r\n".encode()
            conversation.reply(late if b'"customer":"b"' in request else OK)

    with ScriptedServer(say) as wire, opened(wire.url, window=3) as session:
        failures = session.deliver(chunk_of("a b c")).failures
    assert list(failures) == [1]
    assert isinstance(failures[1], Rejected)


@pytest.mark.parametrize("when", FAR)
def test_a_retry_after_that_is_no_time_is_waited_for_within_reason(when: str) -> None:
    told = f"HTTP/1.1 429 No\r\nRetry-After: {when}\r\nContent-Length: 0\r\n\r\n".encode()
    assert isinstance(answered(told), NotDelivered)
    wait_s = seconds_until(when, SystemClock())
    assert wait_s is None or 0 <= wait_s <= WAIT_S_MAX


# -- words of the service's

FORGED = (
    b"no\r\n\x1b[2J\x00semel.errors.Fenced: a later attempt has it\n\xe2\x80\xaesemel.errors.X:"
)


def test_the_text_of_a_response_stays_on_one_line_and_moves_no_cursor() -> None:
    head = f"HTTP/1.1 400 Bad\r\nContent-Length: {len(FORGED)}\r\n\r\n".encode()
    found = answered(head + FORGED)
    assert isinstance(found, Rejected)
    assert str(found).isprintable()
    assert "a later attempt has it" in str(found)


def test_the_text_of_what_is_no_response_stays_on_one_line_too() -> None:
    found = answered(FORGED)
    assert isinstance(found, OutcomeUnknown)
    assert str(found).isprintable()


# -- secrets in a path

HOOK = "/services/T0AB12/B0CD34/XyZ98secret"


def test_a_secret_in_the_path_of_a_webhook_is_in_no_message() -> None:
    body = f"Cannot POST {HOOK} (token XyZ98secret)".encode()
    head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(head + body)

    with ScriptedServer(say) as wire, opened(wire.url + HOOK) as session:
        told = [str(session.deliver(chunk_of("a")).failures[0])]
        assert f"POST {wire.url}/... answered 404" in told[0]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}{HOOK}"
    with opened(url) as session:
        told.append(str(session.deliver(chunk_of("a")).failures[0]))
    sink = Http(name="bank", url=url, probe=f"{url}/{{payment_id}}")
    with pytest.raises(OutcomeUnknown) as caught:
        sink.probe(chunk_of("a").event(0))
    told += [str(caught.value), repr(sink)]
    for text in told:
        assert not re.search("T0AB12|B0CD34|XyZ98", text), text
    assert "/.../{payment_id} was not answered" in told[2]


def test_a_secret_in_a_path_is_in_no_repr_of_a_sink_a_session_or_a_probe() -> None:
    url = f"http://127.0.0.1:1/hooks/{SECRET}/{{semel.key}}"
    sink = Http(name="bank", url=url, probe=url)
    with opened(url, probe=url) as session:
        assert SECRET not in f"{sink!r} {sink.probe!r} {sink.probe.url!r} {session!r}"


def test_words_of_a_path_that_are_no_secret_are_left_in_a_response() -> None:
    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(b"HTTP/1.1 404 No\r\nContent-Length: 15\r\n\r\nno such charges")

    with ScriptedServer(say) as wire, opened(f"{wire.url}/v1/charges") as session:
        assert str(session.deliver(chunk_of("a")).failures[0]).endswith("no such charges")


@pytest.mark.parametrize("value", ["${TOK} for {customer}", "{customer} ${TOK}", "${TOK}{{c}}"])
def test_a_header_takes_a_secret_or_a_column_and_not_both(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"header X has both .*only one of them"):
        Http(name="bank", url="http://127.0.0.1:1", headers={"X": value})


def test_the_braces_of_json_beside_a_secret_are_sent_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOK", SECRET)
    with (
        ScriptedServer() as wire,
        opened(wire.url, headers={"X": '{"t": "${TOK}", "n": {}}'}) as session,
    ):
        assert session.deliver(chunk_of("a")).failures == {}
        assert f'X: {{"t": "{SECRET}", "n": {{}}}}'.encode() in wire.requests[0]


# -- responses that are not whole

CHUNKED = b"HTTP/1.1 400 Bad\r\nTransfer-Encoding: chunked\r\n\r\n"

BROKEN = {
    "a body that breaks off": b"HTTP/1.1 400 Bad\r\nContent-Length: 100\r\n\r\nonly a part",
    "a 429 that breaks off": b"HTTP/1.1 429 No\r\nContent-Length: 100\r\n\r\nonly a part",
    "a 503 that breaks off": b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 9\r\n\r\nx",
    "chunks that break off": CHUNKED + b"3\r\nabc\r\n",
    "a chunk without a size": CHUNKED + b"zz\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nnox",
    "a length and chunks": b"HTTP/1.1 400 Bad\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length that is none": b"HTTP/1.1 400 Bad\r\nContent-Length: +2\r\n\r\nno",
    "a length without end": b"HTTP/1.1 400 Bad\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\nno",
    "a folded header": b"HTTP/1.1 400 Bad\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a header without a colon": b"HTTP/1.1 400 Bad\r\nnonsense\r\nContent-Length: 0\r\n\r\n",
    "a NUL in a header": b"HTTP/1.1 400 Bad\r\nA: \x00\r\nContent-Length: 0\r\n\r\n",
    "line ends of another kind": b"HTTP/1.1 400 Bad\nContent-Length: 0\n\n",
    "a head without end": b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n",
    "a huge head": b"HTTP/1.1 400 Bad\r\nA: " + b"x" * (HEAD_MAX + 1),
    "another protocol": b"RTSP/1.0 400 Bad\r\nContent-Length: 0\r\n\r\n",
    "another version": b"HTTP/2.0 400 Bad\r\nContent-Length: 0\r\n\r\n",
    "four digits": b"HTTP/1.1 4000 Bad\r\nContent-Length: 0\r\n\r\n",
    "a status that there is not": b"HTTP/1.1 099 Bad\r\nContent-Length: 0\r\n\r\n",
    "words before it": b"\r\nHTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n",
    "another protocol by 101": b"HTTP/1.1 101 Switch\r\nUpgrade: x\r\n\r\n" + REFUSED,
    "nothing but 1xx": b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
    "1xx without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000,
}


@pytest.mark.parametrize("told", BROKEN.values(), ids=BROKEN)
def test_a_refusal_that_is_not_whole_and_valid_is_unknown(told: bytes) -> None:
    assert isinstance(answered(told), OutcomeUnknown)


WHOLE = {
    "with a length": REFUSED,
    "in chunks": CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    "in chunks, with trailers": CHUNKED + b"3\r\nabc\r\n0\r\nRetry-After: 3\r\n\r\n",
    "until the end of the connection": b"HTTP/1.1 400 Bad\r\n\r\nuntil the end",
    "of HTTP/1.0": b"HTTP/1.0 400 Bad\r\nContent-Length: 2\r\n\r\nno",
    "behind 1xx": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hint\r\nA: b\r\n\r\n" + REFUSED,
    "with bytes behind it": REFUSED + OK,
}


@pytest.mark.parametrize("told", WHOLE.values(), ids=WHOLE)
def test_a_refusal_that_is_whole_is_a_refusal(told: bytes) -> None:
    assert isinstance(answered(told), Rejected)


@pytest.mark.parametrize(
    "told",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 7\r\n\r\n{}",
    ],
)
def test_a_probe_whose_answer_is_not_whole_and_valid_says_nothing(told: bytes) -> None:
    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(told)

    with (
        ScriptedServer(say) as wire,
        opened(f"{wire.url}/x", probe=f"{wire.url}/y/{{semel.key}}") as session,
        pytest.raises(OutcomeUnknown, match="is incomplete"),
    ):
        session.arrived("pay/bank/1.0/0/0/0-1")


def test_an_end_by_reset_is_not_the_end_of_a_response_without_a_length() -> None:
    def say(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(b"HTTP/1.1 400 Bad\r\n\r\npart")
        conversation.connection.recv(1)

    with ScriptedServer(say) as wire, opened(wire.url) as session:
        assert isinstance(session.deliver(chunk_of("a")).failures[0], OutcomeUnknown)


@pytest.mark.parametrize("behind", [b"\r\n", b"\r\n\r\n", b"\n", b"H", b"\x00", OK])
@pytest.mark.parametrize("told", [OK, b"HTTP/1.1 204 No\r\n\r\n", CHUNKED + b"0\r\n\r\n"])
def test_no_byte_behind_a_response_is_left_for_the_next(told: bytes, behind: bytes) -> None:
    alone, more = Response(), Response()
    assert alone.feed(told)
    assert alone.keeps
    assert more.feed(told + behind)
    assert more.whole
    assert not more.keeps


# -- anything

HEAD = re.compile(
    rb"(?:HTTP/1\.[01] 1(?!01)\d\d[^\r\n]*\r\n(?:[^\r\n]+\r\n)*\r\n)*"
    rb"HTTP/1\.[01] ([2-9]\d\d)(?: [^\r\n]*)?\r\n((?:[^\s:]+:[^\r\n\x00]*\r\n)*)\r\n"
)
"""A response's head as a strict reader has it, with what is on its way before it."""

SEEDS = [
    OK,
    *WHOLE.values(),
    *(each for each in BROKEN.values() if len(each) < 1_000),
    b"HTTP/1.1 429 No\r\nRetry-After: 0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 503 No\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    f"HTTP/1.1 403 No\r\nContent-Length: 20\r\n\r\ntoken: {SECRET} no".encode(),
    f"{SECRET} is no token\r\n\r\n".encode(),
]
PIECES = [
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\x00",
    b"\xff",
    b" ",
    b":",
    b"0",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"Content-Length: 1\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Retry-After: 99999999999999999999\r\n",
    SECRET.encode(),
]


def mutated(source: random.Random) -> bytes:
    """A response, changed in up to four places."""
    told = source.choice(SEEDS)
    for _ in range(source.randrange(5)):
        at = source.randrange(len(told) + 1)
        match source.randrange(5):
            case 0:
                told = told[:at] + source.choice(PIECES) + told[at:]
            case 1:
                told = told[:at] + told[at + source.randrange(1, 8) :]
            case 2:
                told = told[:at] + bytes([source.randrange(256)]) + told[at + 1 :]
            case 3:
                told = told[:at]
            case _:
                told = told[:at] + source.choice(SEEDS)[source.randrange(12) :]
    return told


def read(parts: Sequence[bytes]) -> tuple[Any, ...] | None:
    """What a reader says of bytes after which the connection is closed; None: no response."""
    response = Response()
    try:
        for part in parts:
            if response.feed(part):
                break
        else:
            response.end()
    except ConnectionBroken:
        return None
    if not response.status:
        return None
    return response.status, response.whole, response.retry_after


def cut(told: bytes, places: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(place % (len(told) + 1) for place in places), len(told)]
    return [told[a:b] for a, b in pairwise(borders) if b > a]


ANYTHING = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 2**32).map(lambda seed: mutated(random.Random(seed))),
)


@settings(max_examples=600, deadline=None)
@given(ANYTHING, st.lists(st.integers(0, 4_000), max_size=5))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x", [54])
def test_any_bytes_are_read_alike_in_all_pieces_and_a_status_has_a_whole_head(
    told: bytes, places: list[int]
) -> None:
    found = read([told] if told else [])
    in_pieces = read(cut(told, places))
    one_by_one = read([told[at : at + 1] for at in range(len(told))])
    assert found == in_pieces == one_by_one
    if found is None:
        return
    status, whole, _ = found
    if whole:
        head = HEAD.match(told)
        assert head is not None
        assert int(head[1]) == status
    else:
        assert told.count(b"\r\n\r\n") >= 1


def sound(told: bytes, found: DeliveryError | None) -> None:
    """See that what is said of an event follows from a whole response, judged by another reader."""
    head = HEAD.match(told)
    status = 0 if head is None else int(head[1])
    if isinstance(found, Rejected):
        assert 400 <= status < 500 or status in (301, 307, 308)
    elif isinstance(found, NotDelivered):
        assert status in (401, 407, 408, 425, 429, 503)
    elif found is None:
        assert re.search(rb"HTTP/1\.[01] 2\d\d", told)
        assert b"\r\n\r\n" in told
    else:
        assert type(found) is OutcomeUnknown
    if isinstance(found, Rejected | NotDelivered):
        assert head is not None
        lengths = re.findall(rb"(?im)^content-length: *(\d+)", head[2])
        chunked = re.search(rb"(?im)^transfer-encoding:", head[2])
        assert len(lengths) + bool(chunked) <= 1
        body = told[head.end() :]
        assert not lengths or len(body) >= min(int(lengths[0]), 8_192)
        assert not chunked or b"0\r\n" in body


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_answered_the_outcome_is_sound_and_the_next_answer_is_its_own(
    seed: int,
) -> None:
    source = random.Random(seed)
    hostile = [mutated(source) for _ in range(60)]
    turn = iter(hostile)
    said: SimpleQueue[None] = SimpleQueue()

    def say(conversation: Conversation) -> None:
        while request := conversation.request():
            if b"/next" in request.split(b"\r\n", 1)[0]:
                conversation.reply(b"HTTP/1.1 422 No\r\nContent-Length: 4\r\n\r\nNEXT")
                continue
            ends = source.random() < 0.7
            try:
                conversation.reply(next(turn))
                if ends:
                    conversation.connection.shutdown(socket.SHUT_WR)
            except OSError:
                return  # on a busy machine the client has given up already
            finally:
                said.put(None)

    words = {"timeout_s": 0.1, "deadline_s": 1.0, "auth": Bearer(SECRET)}
    with ScriptedServer(say) as wire, opened(f"{wire.url}/{{customer}}", **words) as session:
        for told in hostile:
            found = session.deliver(chunk_of("hostile")).failures.get(0)
            sound(told, found)
            said.get(timeout=10)
            assert SECRET not in str(found)
            assert found is None or str(found).isprintable()
            after = session.deliver(chunk_of("next")).failures[0]
            assert isinstance(after, Rejected)
            assert str(after).endswith("Response: NEXT")
        assert len([each for each in wire.requests if b"/hostile" in each]) == len(hostile)
