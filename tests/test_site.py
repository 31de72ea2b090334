"""The documentation site is whole, and a browser that shows it asks no other machine.

`SEMEL_SITE` names a site that is built already; without it one is built here, strictly.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import docs_site
import semel
from semel import sinks

ROOT = Path(__file__).parent.parent
FILLED = "docs/reference/api.md"
"""The page that mkdocstrings fills: it has more than its source."""

pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built site."""
    if built := os.environ.get("SEMEL_SITE"):
        return ROOT / built
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def built_page(site: Path, page: str) -> Path:
    """The file of a page of the site."""
    name = re.sub(r"README$", "index", page.removesuffix(".md"))
    return site / f"{name}.html"


# -- nothing is loaded from elsewhere

LOADED = {"src", "srcset", "href", "data", "poster", "action", "xlink:href", "background"}
LINKS = {"a", "area"}  # a person follows them
_ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_IN_CSS = re.compile(r"(?:url\(\s*|@import\s+)[\"']?((?:https?:)?//[^\"')\s]*)", re.IGNORECASE)
_IN_SCRIPT = re.compile(r"[\"'`](https?://[^\"'`\s]*)")

DORMANT = {
    "https://${e}/api/v4/projects/${encodeURIComponent(t)}": 'data-md-component="source"',
    "https://api.github.com/repos/${e}/${t}": 'data-md-component="source"',
    "https://api.github.com/users/${e}": 'data-md-component="source"',
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js": 'class="mermaid"',
    "https://unpkg.com/resize-observer-polyfill": None,  # of browsers without ResizeObserver
}
"""Addresses in the theme's own script, and what would have to stand in a page to wake each."""


class Loads(HTMLParser):
    """What a page loads from another machine."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.policies: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        values = {name: value or "" for name, value in attrs}
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(values["content"])
        if tag in LINKS or values.get("rel") == "canonical":
            return
        for name, value in values.items():
            foreign = name in LOADED and any(map(_ELSEWHERE.match, re.split(r"[\s,]+", value)))
            if foreign or (name == "style" and _IN_CSS.search(value)):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += _IN_CSS.findall(data)


def loads(path: Path) -> list[str]:
    """What a file of the site loads from another machine, but for what is dormant."""
    text = path.read_text("utf-8")
    if path.suffix == ".css":
        return _IN_CSS.findall(text)
    if path.suffix == ".js":
        if path.parent.name == "search":  # the texts of the pages
            return []
        return [each for each in _IN_SCRIPT.findall(text) if each not in DORMANT]
    page = Loads()
    page.feed(text)
    awake = [each for each, sign in DORMANT.items() if sign and sign in text]
    return page.found + awake


def test_no_page_loads_anything_from_another_machine(site: Path) -> None:
    files = [each for each in site.rglob("*") if each.suffix in (".html", ".css", ".js", ".svg")]
    assert {".html", ".css", ".js", ".svg"} == {each.suffix for each in files}
    found = {str(each.relative_to(site)): loads(each) for each in files}
    assert {name: each for name, each in found.items() if each} == {}


def test_every_page_forbids_the_browser_to_load_from_another_machine(site: Path) -> None:
    for each in site.rglob("*.html"):
        page = Loads()
        page.feed(each.read_text("utf-8"))
        assert page.policies == ["default-src 'self' file: data: 'unsafe-inline'"], each


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/css">'),
        ("a.html", '<img srcset="a.png 1x, https://cdn.example/b.png 2x">'),
        ("a.html", '<p style="background: url(http://cdn.example/x.png)">'),
        ("a.html", "<style>@import 'https://fonts.example/css';</style>"),
        ("a.html", '<pre class="mermaid">graph TD</pre>'),
        ("a.svg", '<svg><image xlink:href="http://cdn.example/x.png"/></svg>'),
        ("a.css", "@font-face { src: url('https://fonts.example/a.woff2') }"),
        ("a.js", 'fetch("https://stats.example/hit")'),
    ],
)
def test_what_is_loaded_from_another_machine_is_found(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert loads(tmp_path / name)


def test_what_loads_nothing_is_left_alone(tmp_path: Path) -> None:
    text = (
        '<a href="https://spark.example">Spark</a><img src="img/house.svg"><code>src="//x"</code>'
    )
    (tmp_path / "a.html").write_text(text)
    assert loads(tmp_path / "a.html") == []


# -- it is whole


def test_the_search_index_has_every_page(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    indexed = {each["location"].partition("#")[0] for each in index["docs"]}
    pages = {each.relative_to(site).as_posix() for each in site.rglob("*.html")}
    assert pages - {"404.html"} == {each or "index.html" for each in indexed}
    assert "var __index" in (site / "search/search_index.js").read_text()[:20], "from the disk"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "reference/api.html").read_text()
    names = [f"semel.{each}" for each in semel.__all__]
    names += [f"semel.sinks.{each}" for each in sinks.__all__ if each not in semel.__all__]
    assert [each for each in names if f'id="{each}"' not in text] == []


COUNTED = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "table", "tr", "pre", "img", "blockquote")


class Tags(HTMLParser):
    """How many of each kind of element a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in COUNTED:
            self.count[tag] += 1


def tags(html: str) -> Counter[str]:
    page = Tags()
    page.feed(html)
    return page.count


def written_pages() -> Iterator[tuple[str, str]]:
    for path, page in docs_site.site_paths().items():
        if path.endswith(".md") and path != FILLED:
            yield path, page


@pytest.mark.parametrize(("path", "page"), list(written_pages()))
def test_a_page_has_the_lists_and_tables_that_github_shows(
    site: Path, path: str, page: str
) -> None:
    expected = tags(MarkdownIt("commonmark").enable("table").render((ROOT / path).read_text()))
    article = re.search(
        r"<article[^>]*>(.*)</article>", built_page(site, page).read_text(), re.DOTALL
    )
    assert article is not None
    assert tags(article[1]) == expected


# -- pages that are written for GitHub


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("- a\n  b\n", "- a\n    b\n"),
        ("1. a\n\n   | x |\n   |---|\n2. b\n", "1. a\n\n    | x |\n    |---|\n\n2. b\n"),
        ("- a\n  - b\n    c\n- d\n", "- a\n    - b\n        c\n- d\n"),
        ("text\n- a\n", "text\n\n- a\n"),
        ("text\n| x |\n|---|\n", "text\n\n| x |\n|---|\n"),
        ("```\n- a\n  b\n```\n", "```\n- a\n  b\n```\n"),
        ("- a\n  ```\n  b\n  ```\n", "- a\n    ```\n    b\n    ```\n"),
    ],
)
def test_a_list_is_indented_as_python_markdown_reads_it(written: str, read: str) -> None:
    assert docs_site.reindented(written) == read


def test_links_lead_to_pages_of_the_site() -> None:
    known = docs_site.site_paths()
    written = (
        "[a](promise.md#in-doubt) [b](../examples/charges.py) [`c`](../src/semel/errors.py) "
        "[d](../README.md) [e](https://spark.example) [f](#words) [g](nowhere.md)\n"
        "```\n[h](../README.md)\n```\n"
    )
    assert docs_site.with_site_links(written, "docs/protocol.md", known) == (
        "[a](promise.md#in-doubt) [b](examples/charges.md) `c` "
        "[d](index.md) [e](https://spark.example) [f](#words) [g](nowhere.md)\n"
        "```\n[h](../README.md)\n```\n"
    )


# -- the rooms

SAID_IN = ["CONTRIBUTING.md", "docs/architecture.md", "docs/img/house.svg"]


@pytest.mark.parametrize("page", SAID_IN)
def test_every_room_is_in_the_pictures_of_the_house(page: str) -> None:
    rooms = [
        each.stem
        for each in (ROOT / "src/semel").iterdir()
        if not each.name.startswith("_") and (each.is_dir() or each.suffix == ".py")
    ]
    text = (ROOT / page).read_text()
    shown = {
        name
        for cell in re.findall(r"^\| (`[^|]*`) \||font-weight=\"600\">([^<]*)<", text, re.MULTILINE)
        for name in re.findall(r"\w+", " ".join(cell))
    }
    assert [each for each in rooms if each not in shown] == []
