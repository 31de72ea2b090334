"""A real `semel console` in its own process, and a client that sends exactly what a test says."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlencode

from support.ingress import PATIENCE_S, IngressAnswer, environment

_COMMAND = "import sys; from semel.cli.main import main; sys.argv[0] = 'semel'; main()"
_BEGUN = re.compile(r"semel console: http://(.*):(\d+)$")
_FORM_TOKEN = re.compile(r'name="form_token" value="([^"]*)"')


@dataclass
class Console:
    """One `semel console` at a free port."""

    ledger: str
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)
    err: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", _COMMAND, "console", "--ledger", self.ledger]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *self.options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.err.append(line)
            if found := _BEGUN.match(line.strip()):
                self.port = int(found[2])
                return self
        raise AssertionError(f"it did not start: {''.join(self.err)}")

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._ended()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; return its exit status."""
        self.process.send_signal(how)
        return self._ended()

    def _ended(self) -> int:
        assert self.process.stderr is not None
        if not self.process.stderr.closed:
            self.err += self.process.stderr.readlines()
            self.process.stderr.close()
        return self.process.wait(PATIENCE_S)

    # -- requests

    def request(
        self,
        method: str,
        path: str,
        body: str | bytes | None = None,
        headers: dict[str, str] | None = None,
        source: str = "127.0.0.1",
    ) -> IngressAnswer:
        """Send one request from an address of this machine, and read its whole answer."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE_S, source_address=(source, 0)
        )
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return IngressAnswer(response.status, named, response.read())
        finally:
            connection.close()

    def get(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> IngressAnswer:
        target = f"{path}?{urlencode(query)}" if query else path
        return self.request("GET", target, headers=_named(headers))

    def text(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> str:
        """The page at a path; it must be there."""
        answer = self.get(path, query, **headers)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.body.decode()

    def form_token(self, path: str, query: dict[str, Any] | None = None, **headers: str) -> str:
        """The token of a form on a page."""
        found = _FORM_TOKEN.search(self.get(path, query, **headers).body.decode())
        assert found is not None, path
        return found[1]

    def post(
        self, path: str, form: dict[str, str], source: str = "127.0.0.1", **headers: str
    ) -> IngressAnswer:
        """Send a form as a browser on a page of this console does."""
        named = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": self.url,
            **_named(headers),
        }
        sent = {name: value for name, value in named.items() if value}
        return self.request("POST", path, urlencode(form), sent, source)

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[http.client.HTTPResponse]:
        """An open stream of server-sent events."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path, headers=_named(headers))
            yield connection.getresponse()
        finally:
            connection.close()


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def next_event(stream: http.client.HTTPResponse, name: str) -> str:
    """The data of the next event of a stream with this name; empty at the end of the stream."""
    while line := stream.readline():
        if line.strip() == f"event: {name}".encode():
            return stream.readline().decode().removeprefix("data: ").strip()
    return ""
