"""A pool of connections in transaction mode, as PgBouncer is.

Each transaction may be run by another backend than the one before, and what was prepared or set
there is not here.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

import psycopg

_SSL, _GSS = 80877103, 80877104
_PARAMETERS = {
    "server_version": "18.0",
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
    "DateStyle": "ISO, MDY",
    "TimeZone": "UTC",
}


class Pool:
    """Two backends of one database, behind one port of loopback; they take turns."""

    def __init__(self, url: str) -> None:
        self._connections = [psycopg.connect(url, autocommit=True) for _ in range(2)]
        self._free = deque(
            socket.socket(fileno=os.dup(each.fileno())) for each in self._connections
        )
        for each in self._free:
            each.setblocking(True)
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for each in self._free:
            each.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            _welcome(client)
            while True:
                asked = _request(client)
                if asked is None:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._free)
                    backend = self._free.popleft()
                try:
                    while _answer(backend, client, asked) != b"I":  # inside a transaction
                        asked = _request(client) or b""
                finally:
                    with self._changed:
                        self._free.append(backend)
                        self._changed.notify()


def _welcome(client: socket.socket) -> None:
    while True:
        [length] = struct.unpack("!i", _exactly(client, 4))
        body = _exactly(client, length - 4)
        if struct.unpack("!i", body[:4])[0] not in (_SSL, _GSS):
            break
        client.sendall(b"N")
    said = _message(b"R", struct.pack("!i", 0))
    for name, value in _PARAMETERS.items():
        said += _message(b"S", f"{name}\0{value}\0".encode())
    own_number = 77
    client.sendall(said + _message(b"K", struct.pack("!ii", own_number, 1)) + _message(b"Z", b"I"))


def _request(client: socket.socket) -> bytes | None:
    """Everything up to where an answer is waited for; None when the client leaves."""
    asked = b""
    while True:
        kind, whole = _frame(client)
        if kind == b"X":
            return None
        asked += whole
        if kind in (b"Q", b"S"):
            return asked


def _answer(backend: socket.socket, client: socket.socket, asked: bytes) -> bytes:
    """Pass a request and its answer on; give the state of the transaction."""
    backend.sendall(asked)
    said = b""
    while True:
        kind, whole = _frame(backend)
        said += whole
        if kind == b"Z":
            client.sendall(said)
            return whole[-1:]


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _frame(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, 5)
    return head[:1], head + _exactly(source, struct.unpack("!i", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        some = source.recv(count - len(got))
        if not some:
            raise EOFError
        got += some
    return got
