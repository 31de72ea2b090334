"""The console in a real Chromium: live figures, decisions by keyboard, phone and desktop, dark and
light, no serious finding of axe-core, no request to another machine.

`SEMEL_SCREENSHOTS=docs/img` writes the screenshots of docs/console.md there.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from semel.ledger import Ledger, open_store
from semel.ledger.store.commit import Store
from semel.protocol import ParkedState
from support.console.generated_ledger import GeneratedPipeline
from support.console.hostile_requests import decision, state_of
from support.console.running_console import Console

DESKTOP, PHONE = (1280, 800), (390, 844)
PATIENCE_MS = 20_000

pytestmark = pytest.mark.xdist_group("chromium")


def chromium() -> str:
    """The Chromium of this machine; `make chromium` installs it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    raise AssertionError("there is no Chromium on this machine; run `make chromium`")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # as root, in a small container
        launched = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield launched
        launched.close()


class Beating:
    """A run elsewhere: its heartbeat moves twice a second, and its figures with it."""

    def __init__(self, pipelines: list[GeneratedPipeline]) -> None:
        self._pipelines = pipelines
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        beat = 1
        while not self._stopped.wait(0.5):
            beat += 1
            for each in self._pipelines:
                each.now = time.time()
                each.put([each.owner(beat=beat)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/ledger.db")
    yield opened
    opened.close()


@pytest.fixture
def charges(store: Store) -> GeneratedPipeline:
    sinks = {"bank": "opaque", "books": "transactional"}
    made = GeneratedPipeline(store, sinks=sinks, now=time.time())
    made.register()
    made.put(made.pacing())
    made.put(made.parked("c1042", 881, ago_s=5_400))
    trace = 'Traceback (most recent call last):\n  File "pay.py", line 9, in charge'
    made.put(made.parked("c7", 1200, trace=trace))
    refused = ParkedState.REJECTED
    made.put(made.parked("c99", 31, refused, why="HTTP 422: the card is not valid", ago_s=260))
    made.put(made.parked("c3", 5, ParkedState.DELIVERED, by="ann", reason="seen", ago_s=9_000))
    return made


@pytest.fixture
def console(tmp_path: Path, store: Store, charges: GeneratedPipeline) -> Iterator[Console]:
    """Four pipelines, two of them running."""
    now = charges.now
    GeneratedPipeline(store, "receipts", {"mail": "probing"}, now=now - 3_000).register(ended=True)
    nightly = GeneratedPipeline(store, "archive@2026-11-18", {"files": "repeatable"}, now=now - 9e3)
    nightly.register(complete=True, ended=True)
    scores = GeneratedPipeline(store, "fraud-scores", {"redis": "transactional"}, now=now, seed=3)
    scores.register(complete=True)
    with Console(f"sqlite:///{tmp_path}/ledger.db") as running, Beating([charges, scores]):
        yield running


@pytest.fixture
def visit(browser: Browser, console: Console) -> Iterator[Callable[..., Page]]:
    """Open pages; at the end no script has failed, and no request has left the machine."""
    contexts: list[BrowserContext] = []
    requests: list[str] = []
    failures: list[str] = []

    def note_error(said: ConsoleMessage) -> None:
        if said.type == "error":
            failures.append(said.text)

    def open_page(path: str, size: tuple[int, int] = DESKTOP, scheme: Any = "light") -> Page:
        viewport: Any = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("console", note_error)
        page.goto(console.url + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert requests
    assert not [each for each in requests if not each.startswith(console.url + "/")]
    assert not failures


def is_live(page: Page) -> None:
    expect(page.locator("#live-text")).to_have_text(re.compile("^live "), timeout=PATIENCE_MS)


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait until something holds: the policy of the pages forbids to wait inside them."""
    for _ in range(PATIENCE_MS // 100):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it did not happen")


def test_live_figures_move_while_a_page_is_open(
    visit: Callable[..., Page], charges: GeneratedPipeline
) -> None:
    page = visit("/")
    is_live(page)
    card = page.locator(".card", has_text="charges")
    expect(card.locator(".state")).to_have_text("running", timeout=PATIENCE_MS)
    expect(card).to_contain_text("2 events are in doubt")
    charges.put(charges.parked("c8", 9))
    expect(card).to_contain_text("3 events are in doubt", timeout=PATIENCE_MS)
    page.goto(page.url + "pipeline?name=charges")
    is_live(page)
    before = page.locator("#charts").inner_html()
    until(page, lambda: page.locator("#charts").inner_html() != before)


def test_a_selection_and_the_focus_stay_while_figures_move(
    visit: Callable[..., Page], charges: GeneratedPipeline
) -> None:
    page = visit("/pipeline?name=charges")
    is_live(page)
    link = page.locator("#sinks a").first
    link.focus()
    charges.put(charges.parked("c8", 9))
    expect(page.locator("#advice")).to_contain_text("3 events are in doubt", timeout=PATIENCE_MS)
    assert page.evaluate("document.activeElement.closest('#sinks') !== null")
    page.evaluate("getSelection().selectAllChildren(document.getElementById('advice'))")
    charges.put(charges.parked("c9", 9))
    expect(page.locator("#figures .bad dd").first).to_have_text("4", timeout=PATIENCE_MS)
    assert "3 events are in doubt" in page.locator("#advice").inner_text()
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator("#advice")).to_contain_text("4 events are in doubt", timeout=PATIENCE_MS)


def test_a_person_decides_with_the_keyboard_alone(
    visit: Callable[..., Page], charges: GeneratedPipeline
) -> None:
    page = visit("/parked?pipeline=charges")

    def tab_to(text: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            shown = page.evaluate(
                "document.activeElement.innerText || document.activeElement.name || ''"
            )
            if text in shown:
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline == "solid", text
                return
        raise AssertionError(f"the keyboard does not reach {text!r}")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    tab_to("c7 / 1200")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=What is true?")
    tab_to("decision")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.querySelector('[name=decision]:checked').value") == "resend"
    tab_to("reason")
    page.keyboard.type("the statement does not have it")
    tab_to("Record the decision")
    page.keyboard.press("Enter")
    expect(page.locator("[role=status].verdict")).to_contain_text("Recorded: resend")
    expect(page.locator(".lead .state")).to_have_text("resend")
    row = next(row for _, row in Ledger(charges.store).parked("charges") if row.entity == "c7")
    assert (row.state, row.reason) == (ParkedState.RESEND, "the statement does not have it")
    page.click("text=that wait for a person")
    expect(page.locator(".events")).not_to_contain_text("c7 /")


def test_without_a_reason_the_browser_sends_nothing(visit: Callable[..., Page]) -> None:
    page = visit("/parked")
    page.click(".event a")
    page.check("[name=decision][value=discard]")
    page.click("text=Record the decision")
    assert page.evaluate("document.activeElement.name") == "reason"
    assert page.locator(".verdict").count() == 0


def test_a_command_is_copied(visit: Callable[..., Page]) -> None:
    page = visit("/")
    is_live(page)
    page.locator("button.copy").first.click()
    expect(page.locator("#says")).to_have_text("Copied", timeout=PATIENCE_MS)
    assert page.evaluate("navigator.clipboard.readText()") == "semel parked ls charges"


def test_when_the_console_stops_the_page_says_that_it_is_not_live(
    visit: Callable[..., Page], console: Console
) -> None:
    page = visit("/find?entity=c7&event=1200&pipeline=charges")
    expect(page.locator("table")).to_contain_text("in doubt")
    assert page.locator("#live").is_hidden()
    slow = visit("/pipeline?name=fraud-scores")
    is_live(slow)
    slow.route("**/live**", lambda route: route.abort())
    slow.evaluate("dispatchEvent(new Event('pagehide'))")  # its stream ends, as when a server does
    expect(slow.locator("#live-text")).to_contain_text("not live: as of", timeout=PATIENCE_MS)


def test_a_key_stays_beside_its_words_on_a_phone(visit: Callable[..., Page]) -> None:
    page = visit("/pipeline?name=charges", PHONE)
    apart = page.evaluate(
        "[...document.querySelectorAll('.key')].map(key => {"
        " const words = document.createRange(); words.selectNodeContents(key.parentNode.lastChild);"
        " const line = words.getClientRects()[0], box = key.getBoundingClientRect();"
        " return line.left - box.right > 12 || Math.abs(line.top - box.top) > 12; })"
    )
    assert len(apart) == 3
    assert not any(apart)


def test_the_commands_work_after_the_one_that_names_the_ledger(
    visit: Callable[..., Page], console: Console
) -> None:
    page = visit("/")
    is_live(page)
    page.locator("footer button.copy").click()
    expect(page.locator("#says")).to_have_text("Copied", timeout=PATIENCE_MS)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"export SEMEL_LEDGER={console.ledger}"


SHOWN = "sqlite:///charges.db"
"""The ledger as the screenshots show it: not the folder of a test."""

DRAWN = (
    "console-pipelines-desktop-light.png",
    "console-pipeline-desktop-dark.png",
    "console-event-phone-light.png",
    "console-pipelines-phone-dark.png",
)
"""The screenshots of docs/console.md."""

PATHS = {
    "pipelines": "/",
    "pipeline": "/pipeline?name=charges",
    "parked": "/parked?states=all",
    "event": "/parked?pipeline=charges&entity=c7",
    "find": "/find?entity=c1042&event=881&pipeline=charges",
    "problem": "/pipeline?name=no-such-pipeline",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_page_fits_and_axe_finds_nothing_serious(
    browser: Browser, console: Console, size: tuple[int, int], scheme: Any
) -> None:
    viewport: Any = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    grounds = set()
    for name, path in PATHS.items():
        page.goto(console.url + path)
        if name == "event":
            page.click(".event a")
            page.wait_for_selector("text=What is true?")
        if name in ("pipelines", "pipeline"):
            is_live(page)
            page.wait_for_selector(".state-running")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels wider than the screen"
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        found = Axe().run(page).response["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert not serious, [(name, each["id"], each["nodes"][:3]) for each in serious]
        if folder := os.environ.get("SEMEL_SCREENSHOTS"):
            device = "phone" if size == PHONE else "desktop"
            target = Path(folder) / f"console-{name}-{device}-{scheme}.png"
            if target.name in DRAWN:
                page.evaluate(
                    "document.querySelectorAll('footer code').forEach(each => {"
                    f" each.textContent = each.textContent.replace('{console.ledger}', '{SHOWN}');"
                    " })"
                )
                if name == "event":
                    page.fill("[name=by]", "ann@desk")
                page.screenshot(path=target)
    context.close()
    assert len(grounds) == 1
    assert grounds == {"rgb(246, 247, 249)" if scheme == "light" else "rgb(16, 21, 28)"}


def test_axe_finds_a_planted_mistake(visit: Callable[..., Page], browser: Browser) -> None:
    page = browser.new_page()
    page.set_content("<img src=x><p style='color:#ccc;background:#fff'>pale</p><input>")
    found = {each["id"] for each in Axe().run(page).response["violations"]}
    page.close()
    assert {"image-alt", "color-contrast", "label"} <= found
    visit("/")


def test_nothing_moves_where_the_reader_wants_that(browser: Browser, console: Console) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(console.url + "/")
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter(each => "
        "getComputedStyle(each).animationName !== 'none' || "
        "parseFloat(getComputedStyle(each).transitionDuration) > 0).length"
    )
    context.close()
    assert moving == 0


def test_the_policy_of_the_pages_blocks_a_script_that_was_put_in(
    browser: Browser, console: Console
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(console.url + "/")
    page.evaluate(
        "() => { const each = document.createElement('script');"
        " each.textContent = 'window.bad = 1'; document.body.append(each); }"
    )
    assert page.evaluate("window.bad") is None
    context.close()


EVIL = """<!doctype html><title>evil</title><body><script>
const at = "CONSOLE", found = window.found = {};
for (const [name, path] of [["page", "/parked"], ["icon", "/static/icon.svg"]]) {
  const image = new Image();
  image.onload = () => { found[name] = "loaded"; };
  image.onerror = () => { found[name] = "refused"; };
  image.src = at + path;
}
fetch(at + "/parked", {credentials: "include"}).then(
  () => { found.fetch = "read"; }, () => { found.fetch = "refused"; });
const live = new EventSource(at + "/live", {withCredentials: true});
live.onmessage = live.onopen = () => { found.live = "read"; };
live.onerror = () => { found.live = "refused"; };
const frame = document.createElement("iframe");
frame.onload = () => { found.frame = "there"; };
frame.src = at + "/parked";
document.body.append(frame);
</script><form method="post" action="CONSOLE/parked/event">
<input name="key" value="KEY"><input name="decision" value="discard"><input name="reason" value="x">
<input name="by" value="evil"><input name="form_token" value="TOKEN">
<button>win a prize</button></form>
<a href="CONSOLE/parked">a link</a>"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_site_reads_and_changes_nothing(
    host: str, browser: Browser, console: Console, charges: GeneratedPipeline
) -> None:
    """Even with a token of a form that is right: another port is the same site, another name is
    not.
    """
    form = decision(console)
    page_text = EVIL.replace("CONSOLE", console.url)
    page_text = page_text.replace("KEY", html.escape(form["key"]))
    page_text = page_text.replace("TOKEN", form["form_token"])
    asked: list[tuple[str, int]] = []
    with site_of(page_text) as port:
        page = browser.new_page()
        page.on("response", lambda answer: asked.append((answer.url, answer.status)))
        page.goto(f"http://{host}:{port}/")
        until(page, lambda: len(page.evaluate("window.found")) == 5)
        found = page.evaluate("window.found")
        frame = found.pop("frame")
        assert set(found.values()) == {"refused"}, found
        assert frame == "there", "an error of the browser, and not the page"
        statuses = {status for url, status in asked if url.startswith(console.url)}
        assert statuses == {403}, asked
        page.click("button")
        expect(page.locator("main")).to_contain_text("the request comes from another site")
        assert state_of(Ledger(charges.store)) is ParkedState.HELD
        page.goto(f"http://{host}:{port}/")
        page.click("a")
        expect(page.locator("main")).to_contain_text("c7")
        page.close()


@contextmanager
def site_of(text: str) -> Iterator[int]:
    """Another site on this machine, with one page; yield its port."""

    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_page_is_read_without_scripts(browser: Browser, console: Console) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(console.url + "/pipeline?name=charges")
    expect(page.locator("main")).to_contain_text("2 events are in doubt")
    expect(page.locator("time").first).to_contain_text("Z")
    context.close()
