"""With a token file a visitor has to log in, and a session is worth no more than its token."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.ledger import Ledger
from semel.protocol import ParkedState
from support.command_line import refused
from support.console.generated_ledger import GeneratedPipeline
from support.console.hostile_requests import is_a_plain_page, state_of
from support.console.running_console import Console, next_event
from support.ingress import IngressAnswer

Out = pytest.CaptureFixture[str]

TOKEN = "a-token-of-the-console-0123456789"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def guarded(url: str, charges: GeneratedPipeline, token_file: Path) -> Iterator[Console]:
    with Console(url, ("--token-file", str(token_file))) as running:
        yield running


def log_in(console: Console, token: str = TOKEN, **others: str) -> IngressAnswer:
    form = {"form_token": console.form_token("/"), "token": token, "next": "/parked"}
    return console.post("/login", {**form, **others})


def test_without_a_token_there_is_a_form_to_log_in_and_nothing_else(guarded: Console) -> None:
    for path in ("/", "/pipeline?name=charges", "/parked", "/find?entity=c7"):
        answer = guarded.get(path)
        assert answer.status == 401
        is_a_plain_page(answer)
        assert b"Log in" in answer.body
        assert b"charges</a>" not in answer.body
        assert b"c1042" not in answer.body
    assert guarded.get("/live").status == 401
    for path in ("/parked/event", "/logout"):
        assert guarded.post(path, {"decision": "discard"}).status == 401
    for header in ("Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"):
        assert guarded.get("/", Authorization=header).status == 401


def test_a_token_in_the_header_is_enough(guarded: Console, ledger: Ledger) -> None:
    bearer = f"Bearer {TOKEN}"
    assert "charges" in guarded.text("/", Authorization=bearer)
    page = guarded.text("/parked", Authorization=bearer)
    [key] = re.findall(r'key=([^"]*)"><b>c7</b>', page)
    page = guarded.text(f"/parked/event?key={key}", Authorization=bearer)
    form = {
        "key": html.unescape(re.findall(r'name="key" value="([^"]*)"', page)[0]),
        "decision": "discard",
        "reason": "x",
        "by": "a script",
    }
    assert guarded.post("/parked/event", form, Origin="", Authorization=bearer).status == 200
    assert state_of(ledger) is ParkedState.DISCARDED


def test_logging_in_sets_a_cookie_that_no_script_and_no_other_site_gets(guarded: Console) -> None:
    answer = log_in(guarded)
    assert (answer.status, answer.headers["location"]) == (303, "/parked")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    session = cookie.partition(";")[0]
    page = guarded.text("/", Cookie=session)
    assert "charges" in page
    assert TOKEN not in page
    token = guarded.form_token("/", Cookie=session)
    assert guarded.post("/logout", {"form_token": "0"}, Cookie=session).status == 403
    assert guarded.post("/logout", {"form_token": token}, Cookie=session).status == 303
    assert guarded.get("/", Cookie=session).status == 401


def test_a_form_of_one_visitor_is_not_one_of_another(guarded: Console, ledger: Ledger) -> None:
    one, other = (log_in(guarded).headers["set-cookie"].partition(";")[0] for _ in range(2))
    key = html.unescape(
        re.findall(r'key=([^"]*)"><b>c7</b>', guarded.text("/parked", Cookie=one))[0]
    )
    token = guarded.form_token(f"/parked/event?key={key}", Cookie=other)
    form = {"form_token": token, "key": key, "decision": "discard", "reason": "x", "by": "y"}
    assert guarded.post("/parked/event", form, Cookie=one).status == 403
    assert guarded.post("/parked/event", form).status == 401
    assert state_of(ledger) is ParkedState.HELD


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil", "parked"]
)
def test_logging_in_leads_to_no_other_site(guarded: Console, target: str) -> None:
    assert log_in(guarded, next=target).headers["location"] == "/"


def test_a_session_ends_with_its_token(guarded: Console, token_file: Path) -> None:
    session = log_in(guarded).headers["set-cookie"].partition(";")[0]
    assert guarded.get("/", Cookie=session).status == 200
    with guarded.stream("/live", Cookie=session) as stream:
        assert next_event(stream, "polled")
        token_file.write_text("another-token-of-the-console-42\n")
        while next_event(stream, "polled"):
            pass  # it ends
    time.sleep(1.2)  # the file is looked at once a second
    assert guarded.get("/", Cookie=session).status == 401


def test_wrong_tokens_are_limited(guarded: Console) -> None:
    answers = [log_in(guarded, token=f"wrong {at}").status for at in range(21)]
    assert answers == [401] * 20 + [429]
    assert log_in(guarded).status == 429
    form = {"form_token": guarded.form_token("/"), "token": TOKEN, "next": "/"}
    elsewhere = guarded.post("/login", form, source="127.0.0.2")
    assert elsewhere.status == 303, "who comes from another address is not kept out"


def test_two_consoles_on_one_host_do_not_end_the_sessions_of_each_other(
    guarded: Console, url: str, token_file: Path
) -> None:
    """A browser keeps one cookie of a name for all ports of a host."""
    with Console(url, ("--token-file", str(token_file))) as other:
        jar = dict(
            log_in(each).headers["set-cookie"].partition(";")[0].split("=", 1)
            for each in (guarded, other)
        )
        cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
        for each in (guarded, other):
            assert each.get("/", Cookie=cookies).status == 200


def test_a_link_from_another_site_finds_the_session(guarded: Console) -> None:
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    linked["Sec-Fetch-Dest"] = "document"
    answer = guarded.request("GET", "/parked", headers=linked)
    assert answer.status == 401
    assert b'http-equiv="refresh" content="0"' in answer.body


def test_another_host_needs_tokens(url: str, charges: GeneratedPipeline, capsys: Out) -> None:
    said = refused(capsys, "console", "--ledger", url, "--host", "0.0.0.0")
    assert "--token-file" in said
    assert "there is no ledger at" in refused(
        capsys, "console", "--ledger", f"{url}.not-there", "--port", "0"
    )
    assert "--port must be between" in refused(
        capsys, "console", "--ledger", url, "--port", "99999"
    )
