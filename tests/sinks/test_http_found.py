"""A call that outlives its chunk's deadline, shown against a real TLS server."""

from __future__ import annotations

import ssl
import subprocess
import time
from pathlib import Path

from semel.sinks.http import Http
from semel.sinks.sink import Session
from sinks.http_wires import TARGET, Conversation, Wire, chunk_of


def papers(folder: Path) -> ssl.SSLContext:
    """A certificate for 127.0.0.1, signed by itself."""
    words = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out ca.pem -days 2"
    named = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*words.split(), *named], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


def test_a_call_whose_connection_comes_late_still_ends_within_the_deadline(tmp_path: Path) -> None:
    context = papers(tmp_path)

    def slow(conversation: Conversation) -> None:
        time.sleep(2.5)  # of connect_s, which is 3
        secured = context.wrap_socket(conversation.connection, server_side=True)
        inside = Conversation(secured, [])
        if inside.request():
            time.sleep(1.5)  # of timeout_s, which is 2
            arrived.append(time.monotonic() - begun)
            inside.reply()
        secured.close()

    arrived: list[float] = []
    with Wire(slow) as wire:
        sink = Http(
            name="bank",
            url=wire.url.replace("http:", "https:") + "/charges",
            probe=wire.url.replace("http:", "https:") + "/charges/{semel.key}",
            ca=str(tmp_path / "ca.pem"),
            deadline_s=3.0,
            timeout_s=2.0,
        )
        session = sink.open(TARGET)
        assert isinstance(session, Session)
        begun = time.monotonic()
        session.deliver(chunk_of("a"))
        session.close()
    # Whoever takes over waits lease_s + deadline_s, and then believes that nothing is in flight.
    assert [at for at in arrived if at > sink.deadline_s] == []
