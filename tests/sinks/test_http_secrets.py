"""Secrets that a service echoes, however it writes them, are in no message of semel's."""

from __future__ import annotations

import base64
import html
import json
from typing import Any
from urllib.parse import quote

import pytest

from semel.errors import OutcomeUnknown
from semel.sinks import Retry
from semel.sinks.http import Basic, Bearer, Http
from support.sinks.http_calls import TARGET, Conversation, ScriptedServer, chunk_of

SECRET = 'p4ss/w+rd&"<\\'
PAIR = base64.b64encode(f"us?r:{SECRET}".encode()).decode()


def told(said: bytes, length: int | None = None, **settings: Any) -> str:
    """What is said of an event that a service refuses with these words, and then hangs up."""

    def refuse(conversation: Conversation) -> None:
        conversation.request()
        counted = len(said) if length is None else length
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {counted}\r\n\r\n"
        conversation.reply(head.encode() + said)

    with ScriptedServer(refuse) as wire:
        sink = Http(name="bank", url=wire.url, retry=Retry(for_s=0.0), **settings)
        opened: Any = sink.open(TARGET)
        try:
            [why] = opened.deliver(chunk_of("a")).failures.values()
        finally:
            opened.close()
    return str(why)


@pytest.mark.parametrize("given", ["Token ${BANK_TOKEN}", "Token t0p-s3cret"])
def test_a_secret_behind_a_word_in_a_header_is_masked_alone_too(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_TOKEN", "t0p-s3cret")
    why = told(b"no such token: t0p-s3cret.", headers={"Authorization": given})
    assert why.endswith("Response: no such token: ***.")


@pytest.mark.parametrize(
    "echo",
    [
        json.dumps(SECRET),
        json.dumps(SECRET).replace("/", "\\/"),
        quote(SECRET),
        quote(SECRET, safe=""),
        html.escape(SECRET),
        PAIR,
        PAIR.replace("/", "\\/"),
        quote(PAIR, safe=""),
    ],
)
def test_a_secret_is_masked_however_it_is_written(echo: str) -> None:
    why = told(f"<{echo}>".encode(), auth=Basic("us?r", SECRET))
    for part in ("p4ss", "rd", PAIR[8:16]):
        assert part not in why.partition("Response:")[2]
    assert "***" in why


def test_a_secret_that_is_cut_off_with_its_answer_is_masked_too() -> None:
    why = told(b"no such token: t0p-s3c", length=500, auth=Bearer("t0p-s3cret"))
    assert why.endswith("Response: no such token: ***")


def test_a_secret_in_what_is_no_answer_to_a_question_is_masked_too() -> None:
    def nonsense(conversation: Conversation) -> None:
        conversation.request()
        conversation.reply(b"t0p-s3cret is no token\r\n\r\n")

    with ScriptedServer(nonsense) as wire:
        url = f"{wire.url}/{{payment_id}}"
        sink = Http(name="bank", url=url, probe=url, auth=Bearer("t0p-s3cret"))
        with pytest.raises(OutcomeUnknown, match="is no token") as caught:
            sink.probe(chunk_of("a").event(0))
    assert "s3cret" not in str(caught.value)
