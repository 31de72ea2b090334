"""The commands on pipeline files, without Spark; `tests/spark/test_pipeline_file.py` runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.delivery import EventResent
from semel.errors import LedgerUnavailable
from semel.pipeline import Lines, QueryFailed, RunStanding, exit_status, json_schema
from semel.pipeline.progress import RunCounts
from semel.protocol import ParkedState
from semel.runtime import SystemClock
from support.command_line import read_json, refused, semel

ROOT = Path(__file__).parents[2]

Out = pytest.CaptureFixture[str]


def test_the_schema_in_the_docs_is_that_of_the_code(capsys: Out) -> None:
    """`make reference` writes it again."""
    assert json.loads((ROOT / "docs/reference/pipeline.schema.json").read_text()) == json_schema()
    assert read_json(capsys, "schema") == json_schema()


def test_a_new_file_is_valid_explained_and_not_written_twice(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert semel(capsys, "init") == (
        0,
        "wrote pipeline.toml\nwrote payments\nnext: semel run pipeline.toml\n",
        "",
    )
    assert refused(capsys, "init").startswith("semel: pipeline.toml exists")
    assert read_json(capsys, "init", "other.toml") == ["other.toml"]
    status, out, _ = semel(capsys, "check", "pipeline.toml")
    assert (status, out) == (
        0,
        "pipeline.toml is valid: pipeline charges, to files (repeatable)\n",
    )
    assert read_json(capsys, "check", "pipeline.toml") == {
        "file": "pipeline.toml",
        "ok": True,
        "problems": [],
    }
    explained = read_json(capsys, "explain", "pipeline.toml")
    assert explained["pipeline"] == "charges"
    assert explained["identity"]["kind"] == "given"
    assert not (tmp_path / "charges.db").exists(), "nothing but init writes"
    assert not (tmp_path / "checkpoints").exists()


def test_how_a_paced_file_is_paced_is_explained(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    semel(capsys, "init")
    path = tmp_path / "pipeline.toml"
    paced = 'application = "payments"\nlatency = "3s"'
    path.write_text(path.read_text().replace("[pipeline]", f"[pipeline]\n{paced}", 1))
    pacing = read_json(capsys, "explain", "pipeline.toml")["pacing"]
    assert "application 'payments': an event is to be delivered within 3 s" in pacing
    assert "interval + cost is at most 2.4 s" in pacing
    assert "The source limits a micro-batch (maxfilespertrigger=" in pacing


def test_a_wrong_file_ends_every_command_with_status_2_and_its_lines(
    tmp_path: Path, capsys: Out
) -> None:
    path = tmp_path / "p.toml"
    path.write_text("[pipeline]\nname = 5\n[[sinks]]\n")
    for command in ("check", "explain", "run"):
        status, out, err = semel(capsys, command, str(path))
        assert (status, out) == (2, "")
        lines = err.splitlines()
        assert len(lines) == 4, err
        assert lines[2] == f"semel: {path}:2:8: name: expected a non-empty text, found the number 5"
    status, out, err = semel(capsys, "check", str(path), "--json")
    found: Any = json.loads(out)
    assert (status, err, found["ok"], len(found["problems"])) == (2, "", False, 4)
    assert found["problems"][2] == {
        "line": 2,
        "column": 8,
        "message": "name: expected a non-empty text, found the number 5",
    }
    assert "none.toml:1:1: there is no such file" in refused(capsys, "run", "none.toml")


def test_a_module_cannot_start_a_pipeline_while_a_file_is_checked(
    tmp_path: Path, capsys: Out
) -> None:
    """`check` and `explain` import what the file names, and only look."""
    (tmp_path / "starts_itself.py").write_text(
        "from semel.delivery import refuse_while_looking\n"
        "print('imported')\n"
        "refuse_while_looking('p', 'start()')\n"
    )
    path = tmp_path / "p.toml"
    path.write_text(
        '[pipeline]\nname = "p"\ncheckpoint = "c"\n[source]\nformat = "rate"\n'
        '[identity]\nentity = "value"\nevent = "value"\n[[sinks]]\ntype = "starts_itself:f"\n'
    )
    status, out, err = semel(capsys, "check", str(path))
    assert (status, out) == (2, "")
    assert f"{path}:10:8: cannot import 'starts_itself': pipeline 'p': start() is refused" in err


def test_progress_is_a_line_when_something_changed() -> None:
    lines: list[str] = []
    shown = Lines(lines.append, every_s=0.0)
    first = RunStanding("p", 1200, 60.4, 2, 5, "1.7")
    for each in (first, first, RunStanding("p", 1201, draining=True)):
        shown.show(each)
    assert lines == [
        "p: 1,200 delivered, 60/s, 2 in doubt, 5 parked, minibatch 1.7",
        "p: 1,201 delivered, 0/s, ? in doubt, ? parked, stopping in order",
    ]
    lines.clear()
    rare = Lines(lines.append, every_s=1000.0)
    rare.show(RunStanding("p", 1))
    rare.show(RunStanding("p", 2))
    assert len(lines) == 1


def test_parked_events_that_are_sent_count_as_delivered_too() -> None:
    counts = RunCounts("p", "sqlite:///none.db", SystemClock())
    sent = EventResent("p", "bank", "ann", 1, 1, "ann", "delivered", ParkedState.DELIVERED)
    for each in (sent, replace(sent, state=ParkedState.HELD), replace(sent, state=None)):
        counts.observe(each)
    assert counts.standing().delivered == 1


def test_every_error_of_a_run_has_its_exit_status() -> None:
    assert exit_status(QueryFailed("x")) == 1
    assert exit_status(LedgerUnavailable("x")) == 3
    assert exit_status(ValueError("x")) == 2
