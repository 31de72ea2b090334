"""Chunks to call with, and a raw TCP server that hangs up or falls silent by a script."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from semel.events import Attempt, Chunk, Minibatch
from semel.events.ids.id_columns import Labels
from semel.events.rows import Rows
from semel.sinks import Target

TARGET = Target("pay", "bank", Minibatch(1, 0), "0", Attempt(1, 1))

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def chunk_of(
    customers: str | Sequence[Any], *, ordered: bool = True, start: int = 0, **columns: Any
) -> Chunk:
    """Make a chunk of `a b a`: an event for each, numbered from `start`."""
    names = customers.split() if isinstance(customers, str) else list(customers)
    count = len(names)
    batch = pa.RecordBatch.from_pydict(
        {
            "customer": pa.array(names),
            "payment_id": pa.array(range(start, start + count), pa.int64()),
            **columns,
        }
    )
    labels = Labels.of(batch.column(0), "customer")
    rows = Rows(
        batch, np.arange(count), labels, labels if ordered else None, (batch.column("payment_id"),)
    )
    return Chunk(rows, 0, count, key="pay/bank/1.0/0/0/0-1", osn_base=1, prefix="pay/bank/")


class Conversation:
    """One connection, as a test's script sees it."""

    def __init__(self, connection: socket.socket, requests: list[bytes]) -> None:
        self.connection, self._requests = connection, requests
        self._buffer = b""

    def request(self) -> bytes:
        """Read one whole request; empty when the client hung up."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return b""
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        while len(rest) < length:
            self._buffer = b""
            if not self._more():
                return b""
            rest += self._buffer
        self._buffer = rest[length:]
        whole = head + b"\r\n\r\n" + rest[:length]
        self._requests.append(whole)
        return whole

    def reply(self, text: bytes = OK) -> None:
        self.connection.sendall(text)

    def reset(self) -> None:
        """Hang up with a reset: what was not read is not acknowledged."""
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def _more(self) -> bool:
        part = self.connection.recv(65_536)
        self._buffer += part
        return bool(part)


Script = Callable[[Conversation], None]


def serve(conversation: Conversation) -> None:
    """Answer every request with 200."""
    while conversation.request():
        conversation.reply()


class ScriptedServer:
    """A TCP server whose n-th connection follows the n-th script; the last one stays."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts, self._tls = list(scripts) or [serve], tls
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listening.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._talk, args=(script, connection))
            self._threads.append(thread)
            thread.start()

    def _talk(self, script: Script, connection: socket.socket) -> None:
        with suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            script(Conversation(connection, self.requests))
            connection.close()
