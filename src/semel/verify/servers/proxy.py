"""A network that can be cut and slowed: a proxy between clients and one server of loopback.

Always true:
- while the network is cut nothing listens: a client is refused, and has sent nothing;
- `rule` sees what clients send, before it is passed on.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

Rule = Callable[[bytes], str]
"""What happens to bytes for the server: pass, cut, lose (the reply to them) or hold."""

_HOST = "127.0.0.1"


class TcpProxy:
    """Listens at `port` and passes everything on to `target`, as `rule` says."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self.rule: Rule = lambda _: "pass"
        self.delay_s = 0.0
        self.released = threading.Event()
        self.held = threading.Event()
        self._clock = SystemClock()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((_HOST, port))
        self.port = int(self._listener.getsockname()[1])
        self._listen()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        for each in (self._listener, *list(self._sockets)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def restore(self) -> None:
        """Listen again."""
        self._listener = _listener(self._clock, self.port)
        self._listen()

    def close(self) -> None:
        """End every connection."""
        self.released.set()
        self.cut()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection((_HOST, self._target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        lost = threading.Event()
        down = threading.Thread(target=self._down, args=(client, server, lost), daemon=True)
        self._sockets |= {client, server}
        down.start()
        self._up(client, server, lost)
        down.join()
        self._sockets -= {client, server}
        client.close()
        server.close()

    def _up(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with _both(client, server):
            while said := client.recv(65_536):
                match self.rule(said):
                    case "cut":
                        return
                    case "lose":
                        lost.set()
                    case "hold":
                        self.held.set()
                        self.released.wait()
                if self.delay_s:
                    self._clock.sleep(self.delay_s)
                server.sendall(said)

    def _down(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with _both(client, server):
            while said := server.recv(65_536):
                if lost.is_set():
                    return
                client.sendall(said)


def _listener(clock: SystemClock, port: int) -> socket.socket:
    """Listen at a port that we had; an outgoing connection may have it for a moment."""
    for _ in range(100):
        with suppress(OSError):
            return socket.create_server((_HOST, port))
        clock.sleep(0.1)
    return socket.create_server((_HOST, port))


@contextmanager
def _both(client: socket.socket, server: socket.socket) -> Iterator[None]:
    """End both sides when one ends."""
    try:
        with suppress(OSError):
            yield
    finally:
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
