"""The Redis of tests and benchmarks ends with who started it; its library is not needed before."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semel.errors import MissingExtra
from semel.verify.servers.redis import RedisServer
from support.sinks.redis_pipeline import lists, target

TESTS = Path(__file__).parents[1]
STARTS = """
import os, signal
from semel.verify.servers.redis import RedisServer
server = RedisServer()
print(server.port, server._home, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_ends_and_leaves_nothing_when_its_owner_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS], cwd=TESTS, check=False, capture_output=True, text=True
    )
    port, home = done.stdout.split()
    ends = time.monotonic() + 20
    while Path(home).exists() or answers(int(port)):
        assert time.monotonic() < ends, "it is still there"
        time.sleep(0.05)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_the_sink_is_described_without_its_library_and_says_what_to_install(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lists(redis)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'semel\[redis\]'"):
        sink.open(target())
    said = "import semel.sinks.redis, sys; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", said], check=False).returncode == 0
