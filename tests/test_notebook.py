"""What a notebook shows: tables in which every text is text."""

from __future__ import annotations

from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest

import semel
from semel.delivery import PipelineSpec
from semel.events import Given
from semel.ledger import LedgerClient, open_store
from semel.notebook import cell_text, table
from support.destinations import Post, lost
from support.pipeline import World

NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a & b < c",
    "'';!--\"<XSS>=&{()}",
    "\x00\x1b[31m\u202egnp.exe\u2028",
    "</td></table><h1>",
    "x" * 10_000,
]


class Seen(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def assert_plain(page: str) -> Seen:
    """It is a table and nothing else, and its colours are the reader's."""
    seen = Seen(page)
    assert set(seen.tags) <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "br"}
    assert seen.attributes <= {"style", "scope"}
    for each in ("url(", "expression", "#fff", "#000", "white", "black"):
        assert each not in page
    return seen


@pytest.mark.parametrize("text", NASTY)
def test_a_text_is_shown_as_text_wherever_it_stands(text: str) -> None:
    seen = assert_plain(table(text, [text], [[text]], [text]))
    assert seen.tags.count("table") == 1
    assert seen.tags.count("td") == 1
    shown = "".join(seen.texts)
    assert not {"\x00", "\x1b", "\u202e", "\u2028"} & set(shown)
    assert len(shown) < 4 * 2_100
    if text.isprintable() and len(text) < 2_000:
        assert shown.count(text) == 4


def test_numbers_are_grouped_and_nothing_is_a_dash() -> None:
    assert [cell_text(each) for each in (1_234_567, 1.5, None, True, 0, "")] == [
        "1,234,567",
        "1.5",
        "-",
        "True",
        "0",
        "",
    ]


def test_an_explanation_is_shown_with_every_sentence_of_its_text() -> None:
    def charge(event: semel.Event) -> None:
        """Nothing."""

    spec = PipelineSpec("<pay>", (semel.sink(charge),), Given(entity="c", event=("id",)))
    found = semel.explain(spec)
    shown = " ".join(assert_plain(found._repr_html_()).texts)
    assert "Pipeline '<pay>'" in shown
    for text in (*found.not_promised, found.sinks[0].after_a_crash, found.sinks[0].costs):
        assert text in shown
    assert found.identity is not None
    assert found.identity.order in shown


def test_a_ledger_is_shown_with_its_pipelines_and_what_is_parked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with closing(open_store(url)) as store:
        world = World(name="<b>pay</b>")
        world.add(Post(), window=1)
        world.client = LedgerClient(store, world.name)
        world.store = store  # type: ignore[assignment]
        world.start()
        world.out.plan(lost)
        world.minibatch(0, "a1 a2 b3")
    with semel.Ledger(url) as ledger:
        seen = assert_plain(ledger._repr_html_())
    cells = [each for each in seen.texts if each.strip()]
    row = ["<b>pay</b>", "1", "1.0", "complete", "out", "opaque", "1", "-", "1", "0", "1"]
    assert cells[-len(row) :] == row


def test_a_ledger_that_cannot_be_read_is_shown_as_that(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with closing(open_store(url)) as store:
        world = World()
        world.add(Post())
        world.client = LedgerClient(store, "pay")
        world.store = store  # type: ignore[assignment]
        world.start()
    with semel.Ledger(url) as ledger:
        ledger._repr_html_()
        for each in tmp_path.iterdir():
            each.unlink()
        seen = assert_plain(ledger._repr_html_())
    assert "it cannot be read" in seen.texts
