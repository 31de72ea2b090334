"""What tests of hostile requests share: the headers of every answer, and a form to decide."""

from __future__ import annotations

import html
import re

from semel.ledger import Ledger
from semel.protocol import ParkedState
from support.console.running_console import Console
from support.ingress import IngressAnswer

GUARDS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def key_of(console: Console, entity: str) -> str:
    found = re.search(rf'key=([^"]*)"><b>{entity}</b>', console.text("/parked"))
    assert found is not None
    page = console.text(f"/parked/event?key={html.unescape(found[1])}")
    return html.unescape(re.findall(r'name="key" value="([^"]*)"', page)[0])


def decision(console: Console, **others: str) -> dict[str, str]:
    key = key_of(console, "c7")
    token = console.form_token("/parked/event", {"key": key})
    form = {"form_token": token, "key": key, "decision": "discard", "reason": "x", "by": "y"}
    return {**form, **others}


def state_of(ledger: Ledger, entity: str = "c7") -> ParkedState:
    [row] = [row for _, row in ledger.parked("charges") if row.entity == entity]
    return row.state


def is_a_plain_page(answer: IngressAnswer) -> None:
    """An answer without a traceback or a script, with all headers."""
    assert GUARDS.items() <= answer.headers.items()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"Traceback (most recent" not in answer.body
    assert b"<script>" not in answer.body
    assert b"style=" not in answer.body
    assert len(answer.body) < 200_000
