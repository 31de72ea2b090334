"""One damaged row: it is named with table and key, and the others are shown all the same."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.ledger import open_store
from support.command_line import read_json, refused, semel
from support.ledger.crashed_pipelines import load, read

Out = pytest.CaptureFixture[str]
HELD = "given/post/a/e30001/a1/a1"

DAMAGE: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[: len(text) // 2],
    "a field is missing": lambda text: text.replace('"attempts":', '"attempt_s":'),
    "an unknown state": lambda text: text.replace('"state":"', '"state":"un'),
    "no time": lambda text: text.replace('"at":', '"at":NaN,"at_":'),
    "an infinite time": lambda text: text.replace('"at":', '"at":1e999,"at_":'),
    "bad compression": lambda _: '{"z":"eJyrVkosLclQslIqS8wpTVWqBQ=="}',
    "bad base64": lambda _: '{"z":"%%%"}',
    "another document": lambda _: '["a", "b"]',
    "nothing": lambda _: "",
    "too many digits": lambda text: text.replace('"attempts":0', '"attempts":' + "9" * 5_000),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.db"
    store = open_store(f"sqlite:///{path}")
    load(store, read()[0])
    store.close()
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{path}")
    return path


def damage(path: Path, table: str, key: str, how: str) -> None:
    with sqlite3.connect(path) as connection:
        where = "WHERE tbl = ? AND key = ?"
        [(text,)] = connection.execute(f"SELECT payload FROM semel {where}", (table, key))
        made = DAMAGE[how](text)
        assert made != text
        connection.execute(f"UPDATE semel SET payload = ? {where}", (made, table, key))
    connection.close()


def names(told: str, table: str, key: str) -> bool:
    return f"the row {key} of table '{table}' is damaged" in told and "Traceback" not in told


@pytest.mark.parametrize("how", DAMAGE)
def test_parked_events_are_listed_beside_one_that_is_damaged(
    how: str, path: Path, capsys: Out
) -> None:
    damage(path, "parked", HELD, how)
    status, out, err = semel(capsys, "parked", "ls", "given")
    assert status == 2
    assert names(err, "parked", HELD)
    assert HELD in out
    assert "damaged" in out
    assert "given/post/b/30002" in out
    status, out, err = semel(capsys, "parked", "ls", "--json")
    assert status == 2
    [marked] = [each for each in json.loads(out) if each["state"] == "damaged"]
    assert marked["key"] == HELD
    status, _, err = semel(capsys, "parked", "ls", "counter")
    assert (status, err) == (0, "")


def test_a_damaged_event_is_named_and_the_others_can_be_shown_and_resolved(
    path: Path, capsys: Out
) -> None:
    damage(path, "parked", HELD, "truncated")
    assert names(refused(capsys, "parked", "show", "given/post/a/30001"), "parked", HELD)
    told = refused(capsys, "resolve", "a/30001", "discard", "--reason", "x")
    assert names(told, "parked", HELD)
    assert "waiting" in semel(capsys, "parked", "show", "given/post/a/30011")[1]
    other = "increasing/post/a/4"
    status, out, _ = semel(capsys, "resolve", other, "discard", "--reason", "not wanted")
    assert status == 0
    assert "discarded" in out


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("owners", "given"),
        ("open", "given"),
        ("pipelines", "given"),
        ("streams", "given/base/a1/a1/0"),
        ("sequences", "given/base/0"),
        ("parked", HELD),
        ("heads", "given/post/a"),
    ],
)
def test_status_tells_of_the_others_and_names_the_row(
    table: str, key: str, path: Path, capsys: Out
) -> None:
    before = {each["pipeline"]: each for each in read_json(capsys, "status")}
    damage(path, table, key, "truncated")
    status, out, err = semel(capsys, "status", "--json")
    assert status == 2
    assert names(err, table, key)
    found = {each["pipeline"]: each for each in json.loads(out)}
    assert [each["table"] for each in found["given"]["damaged"]] == [table]
    assert found.keys() == before.keys()
    for each in ("increasing", "position", "counter"):
        assert found[each]["sinks"] == before[each]["sinks"]
    status, out, err = semel(capsys, "status")
    assert status == 2
    assert f"damaged: {table} {key}" in out


@pytest.mark.parametrize("table", ["pipelines", "owners", "open", "streams", "events", "journal"])
def test_rows_are_listed_beside_one_that_is_damaged(table: str, path: Path, capsys: Out) -> None:
    rows = read_json(capsys, "ledger", "ls", table)
    damage(path, table, rows[0]["key"], "truncated")
    status, out, err = semel(capsys, "ledger", "ls", table, "--json")
    assert status == 2
    assert names(err, table, rows[0]["key"])
    found = json.loads(out)
    assert found[0]["payload"] is None
    assert found[1:] == rows[1:]
    status, out, _ = semel(capsys, "ledger", "ls", table)
    assert status == 2
    assert "    damaged: " in out


def test_an_answer_that_needs_a_damaged_row_is_not_given(path: Path, capsys: Out) -> None:
    damage(path, "sequences", "position/base/t%2F0", "truncated")
    told = refused(capsys, "ledger", "find", "--pipeline", "position", "--entity", "t/0")
    assert names(told, "sequences", "position/base/t%2F0")


def test_a_ledger_is_checked(path: Path, capsys: Out) -> None:
    assert read_json(capsys, "ledger", "check")["problems"] == []
    assert "no problems" in semel(capsys, "ledger", "check")[1]
    damage(path, "heads", "given/post/a", "truncated")
    status, out, err = semel(capsys, "ledger", "check")
    assert (status, err) == (1, "")
    assert "given/post/a" in out
    status, out, _ = semel(capsys, "ledger", "check", "--json")
    assert status == 1
    assert {each["table"] for each in json.loads(out)["problems"]} == {"heads", "parked"}


@pytest.mark.parametrize("how", ["truncated", "another document", "nothing", "bad base64"])
def test_a_schema_row_that_is_damaged_is_named(how: str, path: Path, capsys: Out) -> None:
    damage(path, "semel", "schema", how)
    for command in (["status"], ["ledger", "check"], ["parked", "ls"]):
        assert names(refused(capsys, *command), "semel", "schema")


def test_bytes_that_are_not_utf_8_are_a_damaged_row(path: Path, capsys: Out) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE semel SET payload = CAST(replace(CAST(payload AS BLOB), 'reply', x'ff'"
            ") AS TEXT) WHERE tbl = 'parked' AND key = ?",
            (HELD,),
        )
    connection.close()
    status, out, err = semel(capsys, "parked", "ls")
    assert status == 2
    assert names(err, "parked", HELD)
    assert "given/post/b/30002" in out


def test_thousands_of_digits_are_no_number(path: Path, capsys: Out) -> None:
    digits = "7" * 5_000
    at = ("--pipeline", "position", "--entity", "t/0")
    status, out, err = semel(capsys, "ledger", "find", *at, "--event", digits)
    assert (status, err) == (1, "")
    assert "delivered" not in out
    assert "there is no parked event" in refused(capsys, "parked", "show", f"t%2F0/{digits}")
    told = refused(capsys, "resolve", f"given/{digits}.7", "as-recorded", "--reason", "x")
    assert "is not a minibatch" in told
    told = refused(capsys, "rescale", "given", digits)
    assert "Traceback" not in told
