"""Requests that no page of the console sends get a correct, bounded answer, and change nothing.

All of these tests share one console: what they send must leave no trace.
"""

from __future__ import annotations

import html
import re
import socket
import time
from collections.abc import Iterator

import pytest

from semel.ledger import Ledger, open_store
from semel.protocol import ParkedState
from support.console.generated_ledger import GeneratedPipeline
from support.console.hostile_requests import decision, is_a_plain_page, state_of
from support.console.running_console import Console
from support.ingress import receive_all

HOSTILE = "\"><img src=x onerror=alert(1)><script>alert('&amp;')</script>{{7*7}}\u202e%2F"
PAGES = ("/", "/pipeline?name=charges", "/parked", "/find", "/no-such-page", "/pipeline")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('console')}/ledger.db"


@pytest.fixture(scope="module")
def charges(url: str) -> Iterator[GeneratedPipeline]:
    store = open_store(url)
    made = GeneratedPipeline(store, now=time.time())
    made.register()
    made.put(made.parked("c7", 1200))
    yield made
    store.close()


@pytest.fixture(scope="module")
def console(url: str, charges: GeneratedPipeline) -> Iterator[Console]:
    with Console(url) as running:
        yield running


@pytest.fixture(scope="module")
def ledger(charges: GeneratedPipeline) -> Ledger:
    return Ledger(charges.store)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_the_headers_and_nothing_inline(console: Console, path: str) -> None:
    answer = console.get(path)
    is_a_plain_page(answer)
    page = answer.body.decode()
    assert re.findall(r"<script[^>]*>", page) == ['<script src="/static/console.js" type="module">']
    assert not re.findall(r"\son\w+=", page)
    assert not re.findall(r"https?://", page)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_a_form_from_elsewhere_changes_nothing(
    console: Console, ledger: Ledger, headers: dict[str, str], status: int
) -> None:
    answer = console.post("/parked/event", decision(console), **headers)
    assert answer.status == status
    is_a_plain_page(answer)
    assert state_of(ledger) is ParkedState.HELD


@pytest.mark.parametrize("forged", ["", "0" * 64, "ü"])
def test_a_forged_form_changes_nothing(console: Console, ledger: Ledger, forged: str) -> None:
    answer = console.post("/parked/event", decision(console, form_token=forged))
    assert answer.status == 403
    assert "not one of this console" in answer.body.decode()
    assert state_of(ledger) is ParkedState.HELD


def test_a_get_request_decides_nothing(console: Console, ledger: Ledger) -> None:
    assert console.get("/parked/event", decision(console)).status == 200
    assert console.request("PUT", "/parked/event").status == 405
    assert state_of(ledger) is ParkedState.HELD


@pytest.mark.parametrize("path", [*PAGES, "/live", "/static/console.js", "/healthz"])
def test_a_name_of_another_site_is_refused(console: Console, path: str) -> None:
    for host in ("evil.example", "evil.example:8098", "127.0.0.1.evil.example", ""):
        answer = console.request("GET", path, headers={"Host": host})
        assert answer.status in ((404, 421) if path == "/no-such-page" else (421,)), host
    assert console.request("GET", "/", headers={"Host": "localhost:1"}).status == 200


def test_live_figures_are_not_for_pages_of_other_sites(console: Console) -> None:
    assert console.get("/live", Origin="https://evil.example").status == 403


@pytest.mark.parametrize("path", [*PAGES, "/live", "/static/icon.svg", "/healthz"])
def test_a_page_of_another_site_can_link_here_and_load_nothing(console: Console, path: str) -> None:
    """Loaded as an image, the time of an answer would say whether an event is there."""
    for site in ("cross-site", "same-site"):
        for mode, to in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
            named = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": to}
            answer = console.request("GET", path, headers=named)
            assert answer.status in ((403, 404) if path == "/no-such-page" else (403,)), named
            is_a_plain_page(answer)
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    linked["Sec-Fetch-Dest"] = "document"
    assert console.request("GET", "/parked", headers=linked).status == 200
    assert console.get("/parked", Sec_Fetch_Site="none").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/",
        "/templates/base.html",
    ],
)
def test_no_other_file_is_served(console: Console, path: str) -> None:
    assert console.get(path).status == 404


def test_ids_full_of_html_are_shown_as_text(console: Console, charges: GeneratedPipeline) -> None:
    bad = GeneratedPipeline(charges.store, HOSTILE, {HOSTILE: "opaque"}, now=charges.now)
    bad.register()
    bad.put(bad.pacing())
    bad.put(
        bad.parked(
            HOSTILE,
            HOSTILE,
            why=HOSTILE,
            value={HOSTILE: HOSTILE},
            trace=HOSTILE,
            by=HOSTILE,
            reason=HOSTILE,
        )
    )
    page = console.text("/parked", {"pipeline": HOSTILE})
    [link] = re.findall(r'href="(/parked/event[^"]*)"', page)
    pages = [
        console.text("/"),
        console.text("/pipeline", {"name": HOSTILE}),
        page,
        console.text(html.unescape(link)),
        console.text("/find", {"entity": HOSTILE, "event": HOSTILE, "pipeline": HOSTILE}),
    ]
    for each in pages:
        assert "<img" not in each
        assert "<script>" not in each
        assert "onerror=alert(1)&gt;" in each
        assert "{{7*7}}" in html.unescape(each)
    key = html.unescape(re.findall(r'name="key" value="([^"]*)"', pages[3])[0])
    form = {
        "form_token": console.form_token("/parked/event", {"key": key}),
        "key": key,
        "decision": "discard",
        "reason": HOSTILE,
        "by": HOSTILE,
    }
    answer = console.post("/parked/event", form)
    assert answer.status == 200
    is_a_plain_page(answer)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?after=%00", 400),
        ("/?after=" + "x" * 5_000, 400),
        ("/pipeline?name=" + "x" * 5_000, 400),
        ("/parked?" + "&".join(f"a{at}=1" for at in range(100)), 400),
        ("/parked/event?key=%00", 400),
        ("/parked/event?key=", 404),
        ("/parked/event?key=a/b", 404),
        ("/parked/event?key=%ff%fe", 404),
        ("/pipeline?name=%ed%a0%80", 404),
        ("/parked?limit=1000000&events_max=1000000", 200),
        ("/parked?after=%ff", 200),
        ("/?after=zzz", 200),
        ("/find?entity=a&event=" + "9" * 4_000 + "&pipeline=charges", 200),
        ("/live?pipeline=" + "x" * 5_000, 400),
    ],
)
def test_strange_requests_get_an_answer_in_words(console: Console, path: str, status: int) -> None:
    answer = console.get(path)
    assert answer.status == status, answer.body
    is_a_plain_page(answer)


def test_a_form_that_is_too_large_is_refused(console: Console) -> None:
    answer = console.post("/parked/event", {"reason": "x" * 70_000})
    assert answer.status == 413
    answer = console.post("/parked/event", {"reason": "x" * 60_000})
    assert answer.status == 400


def test_streams_are_bounded(console: Console) -> None:
    links: list[socket.socket] = []
    try:
        request = f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{console.port}\r\n\r\n".encode()
        for _ in range(64):
            link = socket.create_connection(("127.0.0.1", console.port), 30)
            link.sendall(request)
            assert link.recv(15) == b"HTTP/1.1 200 OK"
            links.append(link)
        answer = console.get("/live")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "5"
        assert console.get("/").status == 200
    finally:
        for link in links:
            link.close()


def test_a_head_of_any_size_is_bounded(console: Console) -> None:
    with socket.create_connection(("127.0.0.1", console.port), 30) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
        assert receive_all(link).startswith(b"HTTP/1.1 431")
