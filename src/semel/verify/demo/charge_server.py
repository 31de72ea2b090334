"""The charge server: a destination in a separate process that counts every charge.

Always true:
- it listens on loopback only, and ends with the process that started it, however that ends;
- a charge counts when it happens, even if its caller gets no reply;
- it also injects faults: those planned with `plan` happen to requests, and a word that was armed
  is returned exactly as often as it was armed for.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from semel.errors import Diverged, Fenced, NotDelivered, OutcomeUnknown, Rejected
from semel.verify.demo.charge_log import ChargeLog, Trouble, dump, refusal
from semel.verify.process_group import Closable

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.events import EventID
    from semel.verify.demo.charge_log import Answer

HOST = "127.0.0.1"
TIMEOUT_S = 30.0

_SRC = Path(__file__).parents[3]


# -- records


@dataclass(frozen=True, slots=True)
class Charge:
    """One charge that happened. `number` counts charges in the order of arrival, from 1."""

    number: int
    at: float
    pipeline: str | None
    sink: str | None
    partition: str | None
    minibatch: tuple[int, int] | None
    attempt: tuple[int, int] | None
    pid: int | None
    entity: str
    event: EventID
    osn: int | None
    amount: int | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to charge: its number of events, and how many of them were charged."""

    path: str
    at: float
    events: int
    effects: int
    sink: str | None
    partition: str | None
    attempt: tuple[int, int] | None
    pid: int | None
    status: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A word that was returned, and the process that asked for it."""

    name: str
    word: str
    pid: int | None
    at: float


class ChargeClient:
    """One connection to a charge server, for one thread; opened at its first request."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        place = urlsplit(url)
        self._connection = HTTPConnection(str(place.hostname), place.port, timeout=timeout_s)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Make one request and return its answer; it is never repeated here.

        Raises `NotDelivered` if the server is down, `Rejected`, `Fenced`, `Diverged`, and
        `OutcomeUnknown` in all other cases.
        """
        try:
            if self._connection.sock is None:
                self._connection.connect()
        except OSError as error:
            raise NotDelivered(f"the charge server {self.url} is down: {error}") from error
        try:
            self._connection.request("POST", path, dump(body or {}))
            reply = self._connection.getresponse()
            status, text = HTTPStatus(reply.status), reply.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise OutcomeUnknown(f"no answer to {path}: {error!r}") from error
        return _value_or_raise(status, json.loads(text), path)

    def token(self, name: str) -> str | None:
        """Return the word that is armed for `name`, if any."""
        word = self.ask("/token", {"name": name, "pid": os.getpid()})
        return cast("str | None", word)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        self._connection.close()


_clients = threading.local()


def charge_client(url: str) -> ChargeClient:
    """Return this thread's client for `url`: one connection for the life of the thread."""
    known: dict[tuple[int, str], ChargeClient] = _clients.__dict__.setdefault("known", {})
    mine = known.get((os.getpid(), url))
    if mine is None:
        mine = known[os.getpid(), url] = ChargeClient(url)
    return mine


class ChargeServer(Closable):
    """A charge server in a separate process: `with ChargeServer() as server: server.url`."""

    def __init__(self) -> None:
        paths = [str(_SRC), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semel.verify.demo.charge_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # it must not get our Ctrl-C
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.close()
            raise RuntimeError("the charge server did not start")
        self.url = f"http://{HOST}:{int(port)}"
        self._client = ChargeClient(self.url)
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def close(self) -> None:
        """End the process; its log is lost."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if hasattr(self, "_client"):
            self._client.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # -- records

    def charges(self, sink: str | None = None) -> list[Charge]:
        """Return every charge in the order of arrival; of one sink, if it is named."""
        found = [_row(Charge, row) for row in self._ask("/charges")]
        return [charge for charge in found if sink in (None, charge.sink)]

    def calls(self) -> list[Call]:
        """Return every request to charge, including repeats and refused ones."""
        return [_row(Call, row) for row in self._ask("/calls")]

    def taken(self, name: str | None = None) -> list[Taken]:
        """Return the words that were returned, and to which process."""
        found = [_row(Taken, row) for row in self._ask("/tokens")["taken"]]
        return [each for each in found if name in (None, each.name)]

    def asked(self) -> dict[str, int]:
        """Return how often each token was asked for, armed or not."""
        return dict(self._ask("/tokens")["asked"])

    # -- faults

    def plan(self, trouble: Trouble | str, **when: Any) -> None:
        """Plan a trouble for requests: event=, entity=, sink=, seconds=, times=, after=."""
        self._ask("/plan", {"trouble": str(Trouble(trouble)), **when})

    def arm(self, name: str, word: str = "kill", *, times: int = 1, after: int = 0) -> None:
        """Return `word` to the next requests for `name`, after `after` that get none."""
        self._ask("/arm", {"name": name, "word": word, "times": times, "after": after})

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        with self._lock:
            return self._client.ask(path, body)


def _row(kind: Callable[..., Any], row: dict[str, Any]) -> Any:
    """Make a record from a JSON object, with tuples for lists."""
    return kind(
        **{name: tuple(item) if isinstance(item, list) else item for name, item in row.items()}
    )


def _value_or_raise(status: HTTPStatus, value: Any, path: str) -> Any:
    """Return the value of an answer, or raise the error that its status stands for."""
    match status:
        case HTTPStatus.OK:
            return value
        case HTTPStatus.SERVICE_UNAVAILABLE:
            raise NotDelivered(f"{path}: {value}")
        case HTTPStatus.UNPROCESSABLE_ENTITY:
            raise Rejected(f"{path}: {value}")
        case HTTPStatus.CONFLICT:
            raise Fenced(f"{path}: {value}")
        case HTTPStatus.PRECONDITION_FAILED:
            raise Diverged(f"{path}: {value}")
        case _:
            raise OutcomeUnknown(f"{path}: {status} {value}")


# -- the process itself


class _ChargeConnection(asyncio.Protocol):
    """One connection: requests are answered one after the other."""

    def __init__(self, charge_log: ChargeLog) -> None:
        self._log = charge_log
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end])
            stop = end + 4 + _length(head)
            if len(self._buffer) < stop:
                return
            text = bytes(self._buffer[end + 4 : stop])
            del self._buffer[:stop]
            path = head.split(b" ", 2)[1].decode()
            body = json.loads(text) if text else {}
            if path.startswith("/token/"):
                path, body = "/token", {"name": path.removeprefix("/token/")}
            self._serve(path, body)

    def _serve(self, path: str, body: dict[str, Any]) -> None:
        fault = self._log.trouble(path, body)
        if fault is None:
            self._reply(self._log.answer(path, body))
            return
        later = asyncio.get_running_loop().call_later
        match fault.trouble:
            case Trouble.AWAY:
                self._reply((HTTPStatus.SERVICE_UNAVAILABLE, "away"))
            case Trouble.REJECT:
                self._reply(refusal(fault, body))
            case Trouble.ERROR:
                self._log.answer(path, body)
                self._reply((HTTPStatus.INTERNAL_SERVER_ERROR, "an error"))
            case Trouble.LOST:
                self._log.answer(path, body)
                self._transport.close()
            case Trouble.DROPPED:
                self._transport.close()
            case Trouble.SLOW:
                later(fault.seconds, self._reply, self._log.answer(path, body))
            case Trouble.LATE:
                later(fault.seconds, lambda: self._reply(self._log.answer(path, body)))

    def _reply(self, answer: Answer) -> None:
        status, value = answer
        text = dump(value)
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(text)}\r\n\r\n"
        if not self._transport.is_closing():
            self._transport.write(head.encode() + text)


def _length(head: bytes) -> int:
    """Return the length of the body of a request."""
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def _serve_until_left() -> None:
    """Answer requests until the pipe to the parent closes."""
    loop = asyncio.get_running_loop()
    charge_log, left = ChargeLog(), asyncio.Event()

    def listen() -> None:
        if not os.read(0, 1024):
            left.set()

    loop.add_reader(0, listen)
    listening = socket.create_server((HOST, 0), backlog=128)
    server = await loop.create_server(lambda: _ChargeConnection(charge_log), sock=listening)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await left.wait()
    os._exit(0)  # connections that still wait for an answer are not waited for


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_left())
