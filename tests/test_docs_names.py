"""The docs are true: what they name exists, and what exists is named.

- every command, make target and relative link in README and docs is there;
- every parameter of `deliver` and `deliver_batch` and every setting of a sink is in
  docs/promise.md, and every extra is named in README;
- README's pipeline is a part of an example, which tests/spark/test_examples.py runs.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import typer

from semel.cli.main import app
from semel.sinks import Function, Retry
from semel.spark.deliver import deliver, deliver_batch

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(each.relative_to(ROOT)) for each in PAGES]

pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")


def commands() -> dict[str, set[str]]:
    """Every command, and of a group its own."""
    root = typer.main.get_command(app)
    return {
        name: set(getattr(command, "commands", {}))
        for name, command in getattr(root, "commands", {}).items()
    }


def code(text: str) -> list[str]:
    """Everything that is written as code, by lines; of a block with prompts only what is typed."""
    lines: list[str] = []
    for _, block in _FENCE.findall(text):
        fenced = [line.strip() for line in block.splitlines()]
        typed = [line.removeprefix("$ ") for line in fenced if line.startswith("$ ")]
        lines += typed or fenced
    return [*lines, *_SPAN.findall(_FENCE.sub("", text))]


def unknown_commands(text: str) -> list[str]:
    """Lines of code that call a command of semel that does not exist."""
    known = commands()
    wrong = []
    for line in code(text):
        words = line.removeprefix(".venv/bin/").partition("#")[0].split()
        if len(words) < 2 or words[0] != "semel" or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        subject, rest = words[1], words[2:]
        group = known.get(subject)
        if group is None or (group and rest and rest[0] not in group):
            wrong.append(line)
    return wrong


def unknown_targets(text: str) -> list[str]:
    """Targets of make that do not exist."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [found[1] for line in code(text) if (found := re.match(r"make ([a-z][\w-]*)", line))]
    return [each for each in named if each not in targets]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", each.lower()) for each in headings]
    return {each.replace(" ", "-") for each in plain}


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links that lead nowhere."""
    broken = []
    for link in _LINK.findall(_FENCE.sub("", text)):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place) if place else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pages
def test_every_command_that_is_named_exists(page: Path) -> None:
    assert unknown_commands(page.read_text()) == []


@pages
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    assert unknown_targets(page.read_text()) == []


@pages
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_every_decision_is_in_the_index() -> None:
    index = ROOT / "docs/decisions/README.md"
    listed = re.findall(r"^- (\d+): \[(.*)\]\((.*)\)$", index.read_text(), re.MULTILINE)
    pages = sorted(each for each in index.parent.glob("*.md") if each != index)
    titles = [each.read_text().partition("\n")[0] for each in pages]
    assert [f"# {number}. {title}" for number, title, _ in listed] == titles
    assert [page for _, _, page in listed] == [each.name for each in pages]
    assert [number for number, _, _ in listed] == [str(at) for at in range(1, len(pages) + 1)]
    assert [int(each.name[:4]) for each in pages] == list(range(1, len(pages) + 1))


def test_what_is_not_there_is_found() -> None:
    text = "```\nsemel parked fly\n```\nor `semel fly` or `make fly`, see [it](docs/fly.md)"
    text += " and [that](README.md#fly)\n"
    assert unknown_commands(text) == ["semel parked fly", "semel fly"]
    assert unknown_targets(text) == ["fly"]
    assert broken_links(ROOT / "README.md", text) == ["docs/fly.md", "README.md#fly"]


def test_every_command_is_in_commands_md() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text()
    for name, group in commands().items():
        for each in [f"{name} {sub}" for sub in group] or [name]:
            assert f"semel {each}" in text, each


def section(title: str) -> str:
    """The part of docs/promise.md under a heading."""
    text = (ROOT / "docs/promise.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_parameter_of_deliver_is_in_the_promise() -> None:
    text = section("The parameters of `deliver`")
    missing = [word for word in inspect.signature(deliver).parameters if f"`{word}`" not in text]
    assert missing == []


def test_every_parameter_of_deliver_batch_is_in_the_promise() -> None:
    text = section("The parameters of `deliver_batch`")
    words = inspect.signature(deliver_batch).parameters
    assert [word for word in words if f"`{word}`" not in text] == []


def test_every_setting_of_a_sink_is_in_the_promise_with_its_default() -> None:
    text = section("The settings of a sink")
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", text, re.MULTILINE))
    fields = {each.name: each for each in dataclasses.fields(Function)}
    assert set(rows) == set(fields)
    for name, each in fields.items():
        if isinstance(each.default, int | float | str) and name not in ("name", "function"):
            shown = rows[name].split()[0].strip("`")
            plain = f"{each.default:g}" if isinstance(each.default, float) else str(each.default)
            assert shown in (plain, str(each.default)), name
    for each in dataclasses.fields(Retry):
        assert f"{each.name}={each.default:g}" in rows["retry"], each.name


def test_the_pipeline_of_the_readme_is_a_part_of_an_example_that_is_run() -> None:
    fenced = _FENCE.findall((ROOT / "README.md").read_text())
    [block] = [body for kind, body in fenced if kind == "python"]
    imports, _, part = block.partition("\n\n\n")
    example = (ROOT / "examples/charges.py").read_text()
    assert part.strip() in example
    assert set(imports.splitlines()) <= set(example.splitlines())


def unnamed_extras(text: str) -> set[str]:
    """The extras that a user can install and that the paragraph of extras does not name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for_users = set(project["optional-dependencies"]) - {"dev", "docs"}
    [paragraph] = [each for each in text.split("\n\n") if each.startswith("The extras are ")]
    return for_users - set(re.findall(r"`([a-z]+)`", paragraph))


def test_every_extra_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert unnamed_extras(text) == set()
    assert unnamed_extras(text.replace("`kafka`", "kafka")) == {"kafka"}
