"""Every command is documented, has an example, and speaks JSON; a wrong one gets one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cli.running import refused, semel
from semel.cli.main import app

Out = pytest.CaptureFixture[str]

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"


def leaves(group: Any, *path: str) -> dict[str, Any]:
    """Every command that does something, by the words that call it."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= leaves(command, *path, name)
        else:
            found[" ".join((*path, name))] = command
    return found


COMMANDS = leaves(typer.main.get_command(app))


def test_the_commands_are_these() -> None:
    assert {
        "status",
        "parked ls",
        "parked show",
        "resolve",
        "ledger ls",
        "ledger find",
        "explain",
        "doctor",
        "simulate",
    } <= COMMANDS.keys()


def test_the_document_has_every_command_and_no_other() -> None:
    headings = re.findall(r"^## `semel ([a-z ]+)`$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_help_with_an_example_and_json(name: str, capsys: Out) -> None:
    status, out, _ = semel(capsys, *name.split(), "--help")
    words = " ".join(out.split())
    assert status == 0
    assert f"Example: semel {name}" in words
    assert "--json" in words


@pytest.mark.parametrize("name", COMMANDS)
def test_the_document_names_every_option(name: str) -> None:
    text = DOCUMENT.read_text()
    section = text.partition(f"## `semel {name}`\n")[2].partition("\n## ")[0]
    for option in COMMANDS[name].params:
        for written in option.opts:
            if written.startswith("--") and written != "--help":
                assert written in section, f"semel {name} {written}"


def test_the_help_and_the_document_tell_the_exit_status(capsys: Out) -> None:
    status, out, _ = semel(capsys, "--help")
    assert status == 0
    assert "Exit status: 0" in out
    for number in (0, 1, 2, 3, 130):
        assert f"| {number} |" in DOCUMENT.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("stat",),
        ("parked", "list"),
        ("ledger", "find", "--entity"),
        ("resolve", "a/1"),
        ("doctor", "--legder", "x"),
        ("ledger", "ls", "--limit", "0"),
        ("explain",),
    ],
)
def test_a_wrong_command_gets_one_line(arguments: tuple[str, ...], capsys: Out) -> None:
    refused(capsys, *arguments)


@pytest.mark.parametrize("arguments", [(), ("parked",), ("ledger",)])
def test_without_a_command_it_gives_help(arguments: tuple[str, ...], capsys: Out) -> None:
    status, out, err = semel(capsys, *arguments)
    assert status == 2
    assert "Usage: semel" in out + err
