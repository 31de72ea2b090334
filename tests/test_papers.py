"""The papers are true: what they name exists, and what exists is named.

- every command, make target and relative link in README and docs is there;
- every word of `deliver`, `deliver_batch` and of sinks is in docs/promise.md;
- README's pipeline is a part of an example, which tests/spark/test_examples.py runs.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import typer

from semel.cli.main import app
from semel.sinks import Function, Retry
from semel.spark.deliver import deliver, deliver_batch

ROOT = Path(__file__).parent.parent
PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(each.relative_to(ROOT)) for each in PAPERS]

papers = pytest.mark.parametrize("paper", PAPERS, ids=NAMES)

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
    """Lines of code that call a command `semel` which there is none of."""
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
    """Targets of make that there are none of."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [found[1] for line in code(text) if (found := re.match(r"make ([a-z][\w-]*)", line))]
    return [each for each in named if each not in targets]


def anchors(paper: Path) -> set[str]:
    """The headings of a paper as links name them."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", paper.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", each.lower()) for each in headings]
    return {each.replace(" ", "-") for each in plain}


def broken_links(paper: Path, text: str) -> list[str]:
    """Relative links that lead nowhere."""
    broken = []
    for link in _LINK.findall(_FENCE.sub("", text)):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (paper.parent / place) if place else paper
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@papers
def test_every_command_that_is_named_exists(paper: Path) -> None:
    assert unknown_commands(paper.read_text()) == []


@papers
def test_every_make_target_that_is_named_exists(paper: Path) -> None:
    assert unknown_targets(paper.read_text()) == []


@papers
def test_every_relative_link_leads_somewhere(paper: Path) -> None:
    assert broken_links(paper, paper.read_text()) == []


def test_every_decision_is_in_the_index() -> None:
    index = ROOT / "docs/decisions/README.md"
    listed = re.findall(r"^- (\d+): \[(.*)\]\((.*)\)$", index.read_text(), re.MULTILINE)
    pages = sorted(each for each in index.parent.glob("*.md") if each != index)
    titles = [each.read_text().partition("\n")[0] for each in pages]
    assert [f"# {number}. {title}" for number, title, _ in listed] == titles
    assert [page for _, _, page in listed] == [each.name for each in pages]


def test_what_is_not_there_is_found() -> None:
    text = "```\nsemel parked fly\n```\nor `semel fly` or `make fly`, see [it](docs/fly.md)"
    text += " and [that](README.md#fly)\n"
    assert unknown_commands(text) == ["semel parked fly", "semel fly"]
    assert unknown_targets(text) == ["fly"]
    assert broken_links(ROOT / "README.md", text) == ["docs/fly.md", "README.md#fly"]


def test_every_command_is_told_in_commands_md() -> None:
    told = (ROOT / "docs/commands.md").read_text()
    for name, group in commands().items():
        for each in [f"{name} {sub}" for sub in group] or [name]:
            assert f"semel {each}" in told, each


def section(title: str) -> str:
    """The part of docs/promise.md under a heading."""
    text = (ROOT / "docs/promise.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_word_of_deliver_is_in_the_promise() -> None:
    told = section("The parameters of `deliver`")
    missing = [word for word in inspect.signature(deliver).parameters if f"`{word}`" not in told]
    assert missing == []


def test_every_word_of_deliver_batch_is_in_the_promise() -> None:
    told = section("The parameters of `deliver_batch`")
    words = inspect.signature(deliver_batch).parameters
    assert [word for word in words if f"`{word}`" not in told] == []


def test_every_setting_of_a_sink_is_in_the_promise_with_its_default() -> None:
    told = section("The settings of a sink")
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", told, re.MULTILINE))
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
    blocks = [body for kind, body in _FENCE.findall((ROOT / "README.md").read_text()) if kind]
    assert len(blocks) == 1
    imports, _, part = blocks[0].partition("\n\n\n")
    example = (ROOT / "examples/charges.py").read_text()
    assert part.strip() in example
    assert set(imports.splitlines()) <= set(example.splitlines())
