"""A client that loads an ingress: `... benchmarks.ingress_load PORT KIND CONNECTIONS SECONDS`.

It is a process of its own, and cheap: each connection sends a request, reads the answer and sends
the next one. It prints what was acknowledged as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field
from os import getpid
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, time_ns
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable

ENTITIES = 5_000
KINDS = {"single": 1, "batch": 100, "ndjson": 100}
"""The kinds of requests, and how many events each has."""

_DATA = '{{"amount":12.5,"currency":"EUR","customer":"{0}","number":{1}}}'
_EVENT = (
    '{{"specversion":"1.0","id":"{1}","source":"/bench","type":"order","subject":"{0}","data":'
    + _DATA
    + "}}"
)


def request(kind: str, number: int) -> bytes:
    """Return the request with this number; each event of it is new."""
    first = number * KINDS[kind]
    numbers = [(each % ENTITIES, each) for each in range(first, first + KINDS[kind])]
    if kind == "ndjson":
        media, body = "application/x-ndjson", "\n".join(_DATA.format(*each) for each in numbers)
    else:
        media, body = "application/cloudevents+json", ",".join(_EVENT.format(*n) for n in numbers)
        if kind == "batch":
            media, body = "application/cloudevents-batch+json", f"[{body}]"
    head = f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass
class LoadRun:
    """All connections of one run."""

    kind: str
    seconds: float
    began: float = field(default_factory=perf_counter)
    number: int = field(default_factory=lambda: time_ns() // 1_000 + getpid() % 1_000 * 10**13)
    waited_s: list[float] = field(default_factory=list)
    open: int = 0

    def next(self) -> bytes | None:
        """Return the next request; None at the end."""
        if perf_counter() - self.began > self.seconds:
            return None
        self.number += 1
        return request(self.kind, self.number)


class LoadConnection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, load: LoadRun, ended: Callable[[], None]) -> None:
        self._load = load
        self._ended = ended
        self._received = b""
        self._sent = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Send the first request."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Send the next request once the answer is here as a whole."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if len(body) < int(length):
            return
        if not head.startswith(b"HTTP/1.1 201 "):
            sys.exit(f"refused: {self._received[:1000]!r}")
        self._received = b""
        self._load.waited_s.append(perf_counter() - self._sent)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        """Count the end."""
        del error
        self._ended()

    def _send(self) -> None:
        content = self._load.next()
        if content is None:
            self._transport.close()
            return
        self._sent = perf_counter()
        self._transport.write(content)


async def run(port: int, kind: str, connections: int, seconds: float) -> dict[str, float]:
    """Load an ingress for some seconds; return rates and times."""
    loop = asyncio.get_running_loop()
    load, done = LoadRun(kind, seconds), asyncio.Event()
    left = [connections]

    def ended() -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    for _ in range(connections):
        await loop.create_connection(lambda: LoadConnection(load, ended), "127.0.0.1", port)
    await done.wait()
    took = perf_counter() - load.began
    waited = sorted(load.waited_s)
    used = getrusage(RUSAGE_SELF)
    return {
        "requests/s": len(waited) / took,
        "events/s": len(waited) * KINDS[kind] / took,
        "p50 ms": waited[len(waited) // 2] * 1000,
        "p99 ms": waited[int(len(waited) * 0.99)] * 1000,
        "client CPU s": used.ru_utime + used.ru_stime,
    }


if __name__ == "__main__":
    _, at, what, many, long = sys.argv
    sys.stdout.write(json.dumps(uvloop.run(run(int(at), what, int(many), float(long)))) + "\n")
