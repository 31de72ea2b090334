"""A proxy for tunnels by CONNECT, in a process of its own: `connect_proxy.py PORT MODE AUTH`.

Whatever host is asked for, the tunnel leads to PORT of this machine: names that only a proxy knows
can be tried. It prints its own port, and then a line for each CONNECT. MODE is how it fails.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

SAYS = {
    "refuse": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
    "fail": b"HTTP/1.1 502 Bad Gateway\r\n\r\n",
    "garbage": b"SSH-2.0-nothing\r\n\r\n",
    "talk": b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "half": b"HTTP/1.1 200 OK\r\n",
    "close": b"",
    "nowhere": b"HTTP/1.1 200 Connection established\r\n\r\n",
}
WANTS = b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"


def say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()


async def serve(port: int, mode: str, wanted: str) -> None:
    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            say(head[0])
            if mode == "silent":
                await reader.read()
            elif wanted and f"Proxy-Authorization: Basic {wanted}" not in head:
                writer.write(WANTS)
            elif mode in SAYS:
                writer.write(SAYS[mode])
            else:
                there = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"HTTP/1.1 200 Connection established\r\nVia: here\r\n\r\n")
                await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))
        writer.close()

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    say(server.sockets[0].getsockname()[1])
    await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone
    server.close()


class ConnectProxy:
    """The process: `with ConnectProxy(port) as proxy: proxy.place`."""

    def __init__(self, port: int, mode: str = "-", wanted: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(port), mode, wanted],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.place = f"127.0.0.1:{self._process.stdout.readline().strip()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.asked()

    def asked(self) -> list[str]:
        """End it, and give what it was asked for."""
        if self._process.stdin is None or self._process.stdin.closed:
            return []
        assert self._process.stdout is not None
        self._process.kill()
        lines = self._process.stdout.read().splitlines()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        return lines


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
