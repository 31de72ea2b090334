"""`semel verify-sink`: the verdict of a sink, for people and for machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.command_line import semel

Out = pytest.CaptureFixture[str]

pytestmark = pytest.mark.rows("N10")

MODULE = """
import sqlite3
import pyarrow as pa
from semel.sinks import sink

print("a module that talks")

def connect():
    connection = sqlite3.connect({path!r}, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute("create table if not exists sent (n integer primary key, c text, id int)")
    return connection

@sink
def send(event):
    connect().execute("insert into sent (c, id) values (?, ?)", (event.entity, event.id))

@sink
def twice(event):
    send.function(event)
    if event.id == 2:
        send.function(event)

@sink
def account(event):
    assert event.value["cents"] == event.value["id"] * 0 + event.value["cents"]
    send.function(event)

def made():
    return send

def rows(payments):
    names = ["account", "id", "cents"]
    return payments.drop_columns(["note"]).rename_columns(names)

def wrong_rows(payments):
    return payments.slice(1)

def reset():
    connect().execute("insert into sent (c, id) values ('somebody else', 1)")

def arrived():
    return connect().execute("select c, id from sent order by n").fetchall()

def blind():
    raise OSError("nobody can look")

no_function = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(path=str(tmp_path / "sent.db")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_sink_that_keeps_its_promise_earns_it(module: str, capsys: Out) -> None:
    status, out, _ = semel(
        capsys, "verify-sink", f"{module}:send", "--arrived", f"{module}:arrived"
    )
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == ["case", "what", "happens", "verdict", "plays", "in", "doubt", "s"]
    named = {line.partition(" ")[0] for line in lines[1:]}
    assert named >= {"clean", "mid-call", "zombie", "poison"}
    assert f"{module}:send earns OPAQUE: " in lines[-1]
    assert "0 lost, 0 duplicated, 0 out of order" in lines[-1]
    assert "connection-cut does not apply: the sink has no connection" in out
    assert "talks" not in out


def test_one_that_does_not_is_told_with_the_event_and_the_command(module: str, capsys: Out) -> None:
    status, out, _ = semel(
        capsys,
        *("verify-sink", f"{module}:twice", "--arrived", f"{module}:arrived"),
        *("--case", "clean", "--seed", "3"),
    )
    assert status == 1
    assert "duplicated: event 2 of" in out
    again = f"semel verify-sink {module}:twice --arrived {module}:arrived --case clean --seed 3"
    assert f"again: {again}" in out
    assert out.splitlines()[-1] == f"{module}:twice does not earn OPAQUE: broken in clean (seed 3)"


def test_a_machine_gets_one_object(module: str, capsys: Out) -> None:
    status, out, _ = semel(
        capsys,
        *("verify-sink", f"{module}:made", "--arrived", f"{module}:arrived", "--json"),
        *("--case", "clean", "--case", "odd-numbers", "--reset", f"{module}:reset"),
    )
    told: dict[str, Any] = json.loads(out)
    assert status == 0
    assert (told["earned"], told["complete"]) == (True, False)
    assert (told["sink"], told["capability"]) == (f"{module}:made", "opaque")
    assert [case["case"] for case in told["cases"]] == ["clean", "odd-numbers"]
    assert {case["verdict"] for case in told["cases"]} == {"earned"}
    assert f"--reset {module}:reset" in told["cases"][0]["again"]


def test_rows_can_be_made_as_the_sink_needs_them(module: str, capsys: Out) -> None:
    words = ("verify-sink", f"{module}:account", "--arrived", f"{module}:arrived")
    rows = ("--rows", f"{module}:rows", "--entity", "account", "--event", "id")
    status, out, _ = semel(capsys, *words, *rows, "--case", "clean")
    assert status == 0, out
    status, out, err = semel(capsys, *words, "--rows", f"{module}:wrong_rows", "--case", "clean")
    assert (status, out) == (2, "")
    assert "the rows function changed entities or event ids" in err


def test_what_cannot_be_looked_at_is_unknown_and_not_earned(module: str, capsys: Out) -> None:
    status, out, _ = semel(
        capsys,
        *("verify-sink", f"{module}:send", "--arrived", f"{module}:blind", "--case", "clean"),
    )
    assert status == 1
    assert "arrived() failed (OSError: nobody can look)" in out
    assert "does not earn OPAQUE: unknown in clean" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("{m}:send",), "--arrived"),
        (("{m}", "--arrived", "{m}:arrived"), "is not MODULE:OBJECT"),
        (("{m}:nothing", "--arrived", "{m}:arrived"), "has no 'nothing'"),
        (("{m}:arrived", "--arrived", "{m}:arrived"), "arrived returns a list, not a sink"),
        (("{m}:send", "--arrived", "{m}:no_function"), "not a function"),
        (("{m}:send", "--arrived", "{m}:arrived", "--case", "x"), "there is no case 'x'"),
        (("{m}:send", "--arrived", "{m}:arrived", "--reset", "{m}:blind"), "blind failed: OSError"),
        (("{m}:send", "--arrived", "{m}:arrived", "--entity", "cust"), "no column 'cust', only"),
        (("{m}:send", "--arrived", "{m}:arrived", "--rows", "{m}:made"), "rows function failed"),
        (("no_such_module:x", "--arrived", "{m}:arrived"), "cannot import 'no_such_module'"),
    ],
)
def test_a_wrong_command_gets_one_line(
    module: str, words: tuple[str, ...], told: str, capsys: Out
) -> None:
    status, out, err = semel(capsys, "verify-sink", *(word.format(m=module) for word in words))
    lines = [line for line in err.splitlines() if line != "a module that talks"]
    assert (status, out, len(lines)) == (2, "", 1)
    assert told in lines[0]


def test_nothing_is_left_behind_after_ctrl_c(module: str, tmp_path: Path) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    command = [sys.executable, "-c", f"{heard} from semel.cli.main import main; main()"]
    words = ["verify-sink", f"{module}:send", "--arrived", f"{module}:arrived"]
    mark = f"SEMEL_TEST_MARK=ctrl-c-{tmp_path.name}"
    name, _, value = mark.partition("=")
    running = subprocess.Popen(
        [*command, *words],
        env={**os.environ, name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 30
    while not (tmp_path / "sent.db").exists() and time.monotonic() < until:
        time.sleep(0.05)
    started = marked(mark)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert len(started) > 2
    assert running.returncode == 130
    assert err.decode().strip().endswith("semel: stopped")
    until = time.monotonic() + 10
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert marked(mark) == []


def marked(mark: str) -> list[str]:
    """Every living process that carries the mark."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(path.name)
            except OSError:
                continue
    return found
