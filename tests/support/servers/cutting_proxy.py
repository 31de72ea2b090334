"""A proxy that cuts connections at random: before a request arrives, or after it and before its
reply.
"""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Forwards connections to a port of this machine; `share` of the messages are cut."""

    def __init__(self, server_port: int, chance: random.Random, share: float) -> None:
        self.cuts = 0
        self._server_port = server_port
        self._chance = chance
        self._share = share
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no connection any more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while received := source.recv(65536):
                if self._is_cut():
                    break
                target.sendall(received)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _is_cut(self) -> bool:
        with self._lock:
            cut = self._chance.random() < self._share
            self.cuts += cut
        return cut
