"""A real `semel ingest` in its own process, and a client that sends exactly what it is given."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from semel.ingress.openapi import DESCRIPTION
from semel.streams import Inbox

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0
CLOUD_EVENT = "application/cloudevents+json"
CLOUD_EVENTS = "application/cloudevents-batch+json"
JSON = "application/json"
NDJSON = "application/x-ndjson"

_COMMAND = "import sys; from semel.cli.main import main; sys.argv[0] = 'semel'; main()"
_BEGUN = re.compile(r"semel ingest: stream (.*) at http://(.*):(\d+)/v1/events")


def environment() -> dict[str, str]:
    """The environment of a `semel` of this checkout."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


@dataclass
class IngressAnswer:
    """A response: its status, headers and JSON."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str, int, bool]]:
        assert self.status == 201, self.body
        return [(each["entity"], each["event"], each["repeat"]) for each in self.json["events"]]

    def problem(self, status: int) -> dict[str, Any]:
        """The problem document of a refusal with this status."""
        assert self.status == status, (self.status, self.body)
        assert self.headers["content-type"] == "application/problem+json"
        document: dict[str, Any] = self.json
        assert document["status"] == status
        assert document["title"]
        assert document["detail"]
        return document


@dataclass
class Ingress:
    """One `semel ingest`; `port` 0 lets it choose a free one."""

    ledger: str
    stream: str = "orders"
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)
    err: list[str] = field(default_factory=list)

    def start(self) -> Self:
        command = [sys.executable, "-c", _COMMAND, "ingest", self.stream, "--ledger", self.ledger]
        command += ["--port", str(self.port), *self.options]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.err.append(line)
            if found := _BEGUN.match(line):
                self.port = int(found[3])
                return self
        raise AssertionError(f"it did not start: {''.join(self.err)}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End it with SIGKILL."""
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

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: dict[str, str] | None = None,
    ) -> IngressAnswer:
        """Send one request; its status must be one that the description has."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            answer = IngressAnswer(response.status, named, response.read())
        finally:
            connection.close()
        require_described(method, path, answer.status)
        return answer

    def post(self, body: Any, kind: str = JSON, **headers: str) -> IngressAnswer:
        """Send events; what is not text or bytes is sent as JSON."""
        content = body if isinstance(body, bytes | str) else json.dumps(body)
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", "/v1/events", content, {"Content-Type": kind, **named})

    def get(self, path: str, **headers: str) -> IngressAnswer:
        return self.request("GET", path, headers=headers)

    def send_raw(self, *parts: bytes) -> bytes:
        """Send bytes as they are; return everything that comes until the connection closes."""
        with self.connect() as link:
            for part in parts:
                link.sendall(part)
            return receive_all(link)


def receive_all(link: socket.socket) -> bytes:
    """Everything that comes until the other side closes."""
    received = b""
    try:
        while part := link.recv(65_536):
            received += part
    except ConnectionError:
        pass
    return received


def require_described(method: str, path: str, status: int) -> None:
    """Check that /openapi.json has the path, the method and the status."""
    for template, methods in DESCRIPTION["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path.partition("?")[0]):
            described = methods.get(method.lower())
            assert described is not None or status == 405, f"{method} {path} is not described"
            assert described is None or str(status) in described["responses"], (path, status)
            return
    assert status == 404, f"{path} is not described"


def cloud_event(id_: str, data: Any, subject: str | None = None, **more: Any) -> dict[str, Any]:
    """A CloudEvent."""
    event = {"specversion": "1.0", "id": id_, "source": "/shop", "type": "order", "data": data}
    if subject is not None:
        event["subject"] = subject
    return {**event, **more}


def rows_of(ingress: Ingress) -> list[dict[str, Any]]:
    """Every event of the inbox, by partition and offset."""
    with Inbox(ingress.ledger, ingress.stream) as inbox:
        return [
            row
            for each in inbox.layout()
            for row in inbox.read(each.partition, each.begin, each.end).to_pylist()
        ]
