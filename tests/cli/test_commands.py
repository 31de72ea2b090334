"""Every command is documented, has an example, and speaks JSON; a wrong one gets one line."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from semel.cli.main import app
from semel.cli.options import JsonOption
from semel.ledger import LedgerClient
from semel.ledger.inspect.ledger import TABLES
from semel.ledger.verbs.runs import Owners
from semel.runtime import Process
from semel.verify.contract.suite import SEED, SETTLES_S
from support.command_line import pipeline_at, refused, semel
from support.destinations import lost
from support.docs_blocks import problem
from support.reference import commands, groups

Out = pytest.CaptureFixture[str]

ROOT = Path(__file__).parents[2]
UNDETECTED = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""With it the shell is named in the command; nothing here has a shell above it to detect."""
DOCUMENT = ROOT / "docs" / "reference" / "commands.md"


COMMANDS = dict(commands(typer.main.get_command(app)))

WITHOUT_JSON: dict[str, str] = {}
"""Commands without `--json`, and why it has no meaning for them. There is none."""


def examples(command: Any) -> list[str]:
    """The commands that the end of a help shows."""
    text = " ".join((command.epilog or "").split())
    _, begins, rest = text.partition("Example: ")
    found = re.split(r"; or |; | && |, or |\. (?=[A-Z])", rest) if begins else []
    return [each.rstrip(".").partition(" > ")[0] for each in found if each.startswith("semel ")]


def lacking(root: Any) -> list[str]:
    """What commands and groups of the whole tree lack: a help, an example that the command line
    takes, `--json`.
    """
    found = []
    for name, command in [*commands(root), *groups(root)]:
        shown = examples(command)
        if not command.help:
            found.append(f"{name}: no help")
        if not shown or not shown[0].startswith(f"semel {name}"):
            found.append(f"{name}: no example")
        found += [
            f"{name}: the example {each!r} is refused: {error}"
            for each in shown
            if (error := problem(shlex.split(each)[1:], root)) is not None
        ]
        if hasattr(command, "commands") or name in WITHOUT_JSON:
            continue
        if not any("--json" in each.opts for each in command.params):
            found.append(f"{name}: no --json")
    return found


def test_every_command_has_help_with_an_example_and_json() -> None:
    assert len(COMMANDS) >= 29, "the whole tree"
    assert lacking(typer.main.get_command(app)) == []
    assert WITHOUT_JSON.keys() <= COMMANDS.keys()


def test_a_command_without_help_example_or_json_is_found() -> None:
    planted = typer.Typer()
    group = typer.Typer(help="A group.", epilog="Example: semel deep bare")
    planted.add_typer(group, name="deep")

    @group.command("bare")
    def _bare() -> None:
        pass

    @planted.command("wrong", epilog="Example: semel wrong --fast --json. It is fast.")
    def _wrong(as_json: JsonOption = False) -> None:
        """Be wrong."""

    found = lacking(typer.main.get_command(planted))
    assert [each.partition(" is refused")[0] for each in found] == [
        "wrong: the example 'semel wrong --fast --json'",
        "deep bare: no help",
        "deep bare: no example",
        "deep bare: no --json",
    ]


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
        "demo",
        "verify-sink",
        "verify-store",
    } <= COMMANDS.keys()


def test_the_document_has_every_command_and_no_other() -> None:
    headings = re.findall(r"^## `semel ([a-z -]+)`$", DOCUMENT.read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_shows_its_example_and_json(name: str, capsys: Out) -> None:
    status, out, _ = semel(capsys, *name.split(), "--help")
    words = " ".join(out.split())
    assert status == 0
    assert f"Example: semel {name}" in words
    assert name in WITHOUT_JSON or "--json" in words


SHELLS: dict[str, Callable[[str], dict[str, str]]] = {
    "bash": lambda line: {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
    "zsh": lambda line: {"_TYPER_COMPLETE_ARGS": line},
    "fish": lambda line: {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
}
"""What the script of each shell asks the command with, for what is typed so far."""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    script = run("--show-completion", shell, env=os.environ | {UNDETECTED: "1"})
    assert (script.returncode, script.stderr) == (0, b"")
    assert f"_SEMEL_COMPLETE=complete_{shell}".encode() in script.stdout
    for line, completed, others in [
        ("semel res", "resolve rescale reset", "status"),
        ("semel parked ", "ls show export import", "status"),
        ("semel ledger find --ent", "--entity", "--event"),
    ]:
        asked = {"_SEMEL_COMPLETE": f"complete_{shell}", **SHELLS[shell](line)}
        done = run(env=os.environ | asked)
        offered = set(re.findall(r"[\w-]+", done.stdout.decode()))
        assert done.stderr == b"", line
        assert set(completed.split()) <= offered, line
        assert not set(others.split()) & offered, line


def test_bash_itself_completes_with_the_script(tmp_path: Path) -> None:
    semel_here = tmp_path / "semel"
    semel_here.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c 'from semel.cli.main import main; main()' \"$@\"\n"
    )
    semel_here.chmod(0o700)
    script = (
        'eval "$(semel --show-completion bash)"; complete -p semel; '
        "COMP_WORDS=(semel inbox re); COMP_CWORD=2; _semel_completion semel; "
        'echo "${COMPREPLY[@]}"'
    )
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}", UNDETECTED: "1"}
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | places, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0].endswith("_semel_completion semel")
    assert done.stdout.splitlines()[-1] == "repartition"
    assert done.stderr == ""


def test_the_help_has_the_tables_and_defaults_that_the_commands_use(capsys: Out) -> None:
    words = " ".join(semel(capsys, "ledger", "ls", "--help")[1].split())
    assert f"One of {', '.join(TABLES)}." in words
    words = " ".join(semel(capsys, "verify-sink", "--help")[1].split())
    assert f"default: ({SEED})" in words
    assert f"default: ({SETTLES_S})" in words


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


def test_a_wrong_command_names_the_help_that_lists_what_is_right(capsys: Out) -> None:
    assert refused(capsys, "resolve", "a/1").endswith("; see semel resolve --help\n")
    assert refused(capsys, "stat").endswith("; see semel --help\n")


@pytest.mark.parametrize("arguments", [(), ("parked",), ("ledger",)])
def test_without_a_command_it_gives_help(arguments: tuple[str, ...], capsys: Out) -> None:
    status, out, err = semel(capsys, *arguments)
    assert status == 2
    assert "Usage: semel" in out + err


def run(*arguments: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", "from semel.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, check=False, **settings)


def test_a_terminal_that_knows_few_characters_is_no_fault(tmp_path: Path) -> None:
    world = pipeline_at(tmp_path / "ledger.db")
    Owners(LedgerClient(world.store, "Zürich 日本")).register({"sinks": {}}, Process.here(), "n")
    url = f"sqlite:///{tmp_path}/ledger.db"
    done = run("status", "--ledger", url, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Z\\xfcrich" in done.stdout


def test_status_loads_only_the_rooms_that_it_needs(tmp_path: Path) -> None:
    """The ledger has spans with ids and a parked event with its payload: neither needs columns."""
    world = pipeline_at(tmp_path / "ledger.db")
    world.out.plan(lost)
    world.minibatch(0, "a1 b1")
    script = (
        "import sys; from semel.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(sys.modules), file=sys.stderr)"
    )
    arguments = ["status", "--json", "--ledger", f"sqlite:///{tmp_path}/ledger.db"]
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "semel.operate.status" in loaded
    for room in ("spark", "verify", "delivery", "sinks", "guarantees"):
        assert f"semel.{room}" not in loaded
    [pipeline] = json.loads(done.stdout)
    [sink] = pipeline["sinks"]
    assert (sink["last_osn"], sink["in_doubt"]) == (2, 1)
    for module in ("numpy", "pandas", "pyarrow", "psycopg", "pyspark", "semel.operate.doctor"):
        assert module not in loaded


def test_whoever_has_read_enough_is_no_fault(tmp_path: Path) -> None:
    world = pipeline_at(tmp_path / "ledger.db")
    world.out.plan(lost)
    world.minibatch(0, " ".join(f"a{number}" for number in range(1, 1_000)))
    for command in ("ledger ls parked --limit 5000", "parked ls", "parked ls --json"):
        url = f"sqlite:///{tmp_path}/ledger.db"
        line = f"{sys.executable} -c 'from semel.cli.main import main; main()' {command}"
        script = f"{line} --ledger {url} | head -1"
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
        assert done.stderr == b"", command
        assert done.stdout


def test_a_driver_that_is_not_installed_is_named_with_the_line_that_installs_it(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    told = refused(capsys, "status", "--ledger", "postgresql://localhost/x")
    assert "pip install 'semel[postgres]'" in told
