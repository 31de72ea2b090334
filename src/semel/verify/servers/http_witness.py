"""A service to call over HTTP that counts what it was asked, in a process of its own.

Always true:
- it listens on loopback only, and ends with the process that started it, however that ends;
- an effect counts when its request has arrived, whether its caller hears of it or not; with
  `absorbs` a key has one effect;
- what it counted outlives its process where it has a journal: it can be killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from semel.events.encoding import ascii_json
from semel.runtime import SystemClock
from semel.verify.process_group import Closable

HOST = "127.0.0.1"

_SRC = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class HttpEffect:
    """One effect: the path it was asked at, its key, the body as text, and when it arrived."""

    path: str
    key: str | None
    text: str
    at: float

    @property
    def body(self) -> Any:
        """The body as JSON has it."""
        return json.loads(self.text)


class HttpWitness(Closable):
    """A witness in a process of its own: `with HttpWitness() as witness: witness.url`."""

    def __init__(
        self, *, absorbs: bool = True, delay_s: float = 0.0, journal: Path | None = None
    ) -> None:
        self._settings: dict[str, Any] = {"absorbs": absorbs, "delay_s": delay_s, "port": 0}
        self._settings["journal"] = None if journal is None else str(journal)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where it listens, now and after a restart."""
        return f"http://{HOST}:{self._settings['port']}"

    def start(self) -> None:
        """Start its process, on the port that it had."""
        paths = [str(_SRC), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(  # noqa: S603 - our own words
            [sys.executable, "-m", "semel.verify.servers.http_witness", ascii_json(self._settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.stop()
            raise RuntimeError("the witness did not start")
        self._settings["port"] = int(port)

    def stop(self) -> None:
        """Kill its process; connections break wherever they are."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """Kill its process, for good."""
        self.stop()

    def effects(self) -> list[HttpEffect]:
        """Give every effect, in the order of arrival."""
        return [HttpEffect(*each) for each in self._ask("/~effects")]

    def figures(self) -> dict[str, int]:
        """Give `requests`, `repeats` (absorbed), `overlaps` (an entity twice in flight), ..."""
        return dict(self._ask("/~figures"))

    def heads(self) -> list[str]:
        """Give the heads of the requests as they came."""
        return list(self._ask("/~heads"))

    def plan(self, **fault: Any) -> None:
        """Let requests meet a fault: status=, effect=, close=, seconds=, headers=, text=; it waits
        for `after` requests that hold the text `match`, and happens `times` times.
        """
        self._ask("/~plan", fault)

    def forget(self) -> None:
        """Start again, as if nothing had been asked."""
        self._ask("/~forget")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = HTTPConnection(HOST, self._settings["port"], timeout=30)
        try:
            connection.request("POST", path, ascii_json(body or {}))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


# -- the process itself


@dataclass
class Books:
    """What the witness remembers."""

    absorbs: bool
    delay_s: float
    journal: int | None
    effects: list[tuple[str, str | None, str, float]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    faults: deque[dict[str, Any]] = field(default_factory=deque)
    heads: deque[str] = field(default_factory=lambda: deque(maxlen=1_000))
    in_flight: set[str] = field(default_factory=set)
    figures: dict[str, int] = field(
        default_factory=lambda: {"requests": 0, "repeats": 0, "overlaps": 0, "connections": 0}
    )

    def load(self, lines: list[str]) -> None:
        """Read a journal back."""
        for line in lines:
            self._keep(*json.loads(line))

    def effect(self, path: str, key: str | None, text: str) -> None:
        """Let it happen, unless its key is known and repeats are absorbed."""
        if self.absorbs and key is not None and key in self.keys:
            self.figures["repeats"] += 1
            return
        at = SystemClock.wall()
        self._keep(path, key, text, at)
        if self.journal is not None:
            os.write(self.journal, (ascii_json([path, key, text, at]) + "\n").encode())

    def _keep(self, path: str, key: str | None, text: str, at: float) -> None:
        self.effects.append((path, key, text, at))
        self.paths.add(path)
        if key is not None:
            self.keys.add(key)

    def fault(self, head: str, text: str) -> dict[str, Any] | None:
        """Give the fault that this request meets."""
        for fault in self.faults:
            match = fault.get("match", "")
            if match not in text and match not in head:
                continue
            if fault.get("after", 0) > 0:
                fault["after"] -= 1
                continue
            fault["times"] = fault.get("times", 1) - 1
            if not fault["times"]:
                self.faults.remove(fault)
            return fault
        return None

    def arrived(self, path: str) -> bool:
        """Whether a path was asked for with an effect, or ends with a key that was."""
        return path in self.paths or unquote(path.rpartition("/")[2]) in self.keys

    def own(self, path: str, text: str) -> Any:
        """Answer a question of the test's own."""
        if path == "/~plan":
            self.faults.append(json.loads(text))
        if path == "/~forget":
            self.__init__(self.absorbs, self.delay_s, self.journal)  # type: ignore[misc]
        return {
            "/~plan": None,
            "/~forget": None,
            "/~effects": self.effects,
            "/~figures": self.figures,
            "/~heads": list(self.heads),
        }[path]


class _Door(asyncio.Protocol):
    """One connection: requests are answered one after the other."""

    def __init__(self, books: Books, later: Any) -> None:
        self._books, self._later = books, later
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._books.figures["connections"] += 1
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            stop = end + 4 + int(_header(head, "content-length") or 0)
            if len(self._buffer) < stop:
                return
            text = self._buffer[end + 4 : stop].decode(errors="replace")
            del self._buffer[:stop]
            method, path, _ = head.split(" ", 2)
            if path.startswith("/~"):
                self._reply(200, ascii_json(self._books.own(path, text)))
            elif method == "GET":
                self._get(path, head)
            else:
                self._serve(path, head, text)

    def _get(self, path: str, head: str) -> None:
        fault = self._books.fault(head, "")
        status = 200 if self._books.arrived(path) else 404
        self._reply(status if fault is None else fault["status"], "{}")

    def _serve(self, path: str, head: str, text: str) -> None:
        books = self._books
        books.figures["requests"] += 1
        books.heads.append(head)
        fault = books.fault(head, text) if books.faults else None
        key = _key(_header(head, "idempotency-key"))
        if fault is None or fault.get("effect", False):
            books.effect(path, key, text)
        if fault is not None and fault.get("close"):
            self._transport.close()
            return
        entity = _entity(text)
        if entity is not None and entity in books.in_flight:
            books.figures["overlaps"] += 1
        delay_s = books.delay_s if fault is None else fault.get("seconds", 0.0)
        if not delay_s:
            self._answer(fault, None)
            return
        if entity is not None:
            books.in_flight.add(entity)
        self._later(delay_s, self._answer, fault, entity)

    def _answer(self, fault: dict[str, Any] | None, entity: str | None) -> None:
        if entity is not None:
            self._books.in_flight.discard(entity)
        if fault is None:
            self._reply(200, "{}")
        else:
            self._reply(fault.get("status", 200), fault.get("text", "{}"), fault.get("headers"))

    def _reply(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        more = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        body = b"" if status == 204 else text.encode()
        head = f"HTTP/1.1 {status} Answered\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(head.encode() + body)


def _header(head: str, name: str) -> str | None:
    at = head.lower().find(f"\r\n{name}:")
    if at < 0:
        return None
    return head[at + len(name) + 3 :].partition("\r\n")[0].strip()


def _key(header: str | None) -> str | None:
    """Read a structured-field string."""
    if header is None:
        return None
    return header[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def _entity(text: str) -> str | None:
    with suppress(ValueError, TypeError, KeyError):
        return str(json.loads(text)["customer"])
    return None


async def _serve_until_left(settings: dict[str, Any]) -> None:
    """Answer requests until the pipe to our parent closes."""
    loop = asyncio.get_running_loop()
    left = asyncio.Event()
    journal = None if settings["journal"] is None else Path(settings["journal"])
    books = Books(settings["absorbs"], settings["delay_s"], None)
    if journal is not None:
        books.journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        books.load(journal.read_text().splitlines())

    def listen() -> None:
        if not os.read(0, 1024):
            left.set()

    loop.add_reader(0, listen)
    listening = socket.create_server((HOST, settings["port"]), backlog=4_096)
    server = await loop.create_server(lambda: _Door(books, loop.call_later), sock=listening)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await left.wait()
    os._exit(0)  # connections that still wait for an answer are not waited for


def main() -> None:
    """Serve until the process that started us goes."""
    import uvloop

    with suppress(KeyboardInterrupt):
        uvloop.run(_serve_until_left(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
