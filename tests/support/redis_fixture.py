"""A real Redis for tests, and a line to it that can be cut at a chosen moment."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from semel.verify.servers.redis import RedisServer


@pytest.fixture(scope="session")
def redis_of_the_run() -> Iterator[RedisServer]:
    """One Redis for all tests of a process."""
    server = RedisServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def redis(redis_of_the_run: RedisServer) -> RedisServer:
    """A running Redis without a key in it."""
    redis_of_the_run.empty()
    return redis_of_the_run


class ConnectionCut:
    """Stands between a client and Redis, and cuts the line at the next script that matches.

    `before` cuts before the script reaches Redis, `after` when Redis has answered and no client has
    heard it.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.moment = ""
        self.skip = 0
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def next(self, moment: str, skip: int = 0) -> None:
        """Cut the next script, after so many that pass."""
        self.moment, self.skip = moment, skip

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._to)) as server,
        ):
            threading.Thread(target=_pump, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 20):
                moment = self._moment(data)
                if moment == "after":
                    self._swallow(data)
                if moment:
                    break
                server.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def _moment(self, data: bytes) -> str:
        if not self.moment or b"EVALSHA" not in data:
            return ""
        if self.skip:
            self.skip -= 1
            return ""
        moment, self.moment = self.moment, ""
        self.cuts += 1
        return moment

    def _swallow(self, data: bytes) -> None:
        """Let Redis do it on a line of its own, and keep the answer."""
        with socket.create_connection(("127.0.0.1", self._to)) as aside:
            secret = RedisServer.password.encode()
            aside.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret))
            assert aside.recv(100) == b"+OK\r\n"
            aside.sendall(data)
            assert aside.recv(1 << 16)


def _pump(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(1 << 20):
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cut(redis: RedisServer) -> Iterator[ConnectionCut]:
    """A line to Redis that can be cut."""
    made = ConnectionCut(redis.port)
    yield made
    made.close()
