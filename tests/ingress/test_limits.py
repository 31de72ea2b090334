"""How much is held at once: for one client, and in all. Others are served, and room comes back."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semel.ingress.admission import BYTES_MAX, CLIENT_REQUESTS_MAX
from semel.ingress.settings import REQUEST_TIMES
from semel.runtime import SystemClock
from semel.streams import EVENT_BYTES_MAX
from support.ingress import Ingress

MINE, THEIRS = "first-token-0123456789", "second-token-0123456789"
REQUEST = REQUEST_TIMES * EVENT_BYTES_MAX
"""The most bytes of a request."""


@pytest.fixture
def links() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def half(ingress: Ingress, links: ExitStack, sent: int, token: str = MINE) -> socket.socket:
    """Begin a request whose body does not end."""
    link = links.enter_context(ingress.connect())
    link.sendall(
        f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {REQUEST}\r\n\r\n".encode()
        + b"1" * sent
    )
    return link


def until(holds: Callable[[], bool]) -> None:
    clock = SystemClock()
    ends = clock.monotonic() + 30
    while not holds():
        assert clock.monotonic() < ends
        clock.sleep(0.05)


def held_bytes(ingress: Ingress) -> float:
    answer = ingress.get("/metrics", Authorization=f"Bearer {THEIRS}")
    lines = answer.body.decode().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith("semel_ingest_held_bytes ")]
    return float(value)


@pytest.fixture
def ingress(start: Callable[..., Ingress], tmp_path: Path) -> Ingress:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{MINE}\n{THEIRS}\n")
    return start("--token-file", str(tokens))


def test_a_client_with_too_many_requests_is_refused_and_others_are_served(
    ingress: Ingress, links: ExitStack
) -> None:
    for _ in range(CLIENT_REQUESTS_MAX):
        half(ingress, links, 1)
    until(lambda: held_bytes(ingress) == CLIENT_REQUESTS_MAX)
    answer = ingress.post("1", Authorization=f"Bearer {MINE}")
    assert "1024 requests that are not answered" in answer.problem(429)["detail"]
    assert answer.headers["retry-after"] == "1"
    assert ingress.post("1", Authorization=f"Bearer {THEIRS}").events
    links.close()
    until(lambda: ingress.post("1", Authorization=f"Bearer {MINE}").status == 201)


def test_bodies_that_do_not_end_fill_no_more_than_their_room(
    ingress: Ingress, links: ExitStack
) -> None:
    whole = BYTES_MAX // REQUEST
    for _ in range(whole):
        half(ingress, links, REQUEST - 10)
    room = 10 * whole
    until(lambda: held_bytes(ingress) == BYTES_MAX - room)
    answer = ingress.post("1" * (room + 1), Authorization=f"Bearer {THEIRS}")
    assert "nothing of this one was stored" in answer.problem(503)["detail"]
    assert answer.headers["retry-after"] == "1"
    assert ingress.post("1" * room, Authorization=f"Bearer {THEIRS}").events
    links.close()
    until(lambda: held_bytes(ingress) == 0)
    assert ingress.post("1" * (room + 1), Authorization=f"Bearer {THEIRS}").events
