"""`semel inbox`: events from a terminal, and what a stream has."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from semel.ledger import Ledger
from semel.streams import Inbox, NewEvent
from support.command_line import pipeline_at, read_json, refused, semel

Out = pytest.CaptureFixture[str]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("SEMEL_LEDGER", url)
    return url


@pytest.mark.rows("S1")
def test_lines_become_events_and_are_put_again_as_repeats(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = '{"c": "a", "n": 1}\n\n{"c": "b", "n": 2}\r\n{"c": "a", "n": 3}\n'
    put = ("inbox", "put", "orders", "--entity-field", "c", "--id-field", "n", "--type", "t")
    for repeats in (0, 3):
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        assert read_json(capsys, *put) == {"stream": "orders", "events": 3, "repeats": repeats}
    told = "orders: 2 events stored\n"
    assert semel(capsys, "inbox", "put", "orders", "[1]", "[2]", "--entity", "z") == (0, told, "")
    tailed = read_json(capsys, "inbox", "tail", "orders", "--limit", "4")
    assert sorted((each["entity"], each["event"], each["value"]) for each in tailed[2:]) == [
        ("z", 1, "[1]"),
        ("z", 2, "[2]"),
    ]
    assert {each["type"] for each in tailed[:2]} == {"t"}
    status, out, _ = semel(capsys, "inbox", "tail", "orders")
    assert status == 0
    assert len(out.splitlines()) == 5
    assert "z#2  [2]" in out


def test_streams_are_listed_with_partitions_and_readers(url: str, capsys: Out) -> None:
    with Inbox(url, "orders", partitions=1) as inbox:
        inbox.append([NewEvent(b"%d" % n, entity="a") for n in range(5)])
        inbox.register_reader("charges")
        inbox.reader_completed("charges", {0: 2})
    shown = read_json(capsys, "inbox", "ls", "orders")
    assert [shown] == read_json(capsys, "inbox", "ls")
    assert shown["kept"] == 5
    [reader] = shown["readers"]
    assert (reader["reader"], reader["behind"], reader["completed"]) == ("charges", 3, {"0": 2})
    assert read_json(capsys, "inbox", "repartition", "orders", "2")["partitions"][1] == {
        "partition": 1, "begin": 0, "end": 0, "final": False, "parents": [0], "newest": None,
    }  # fmt: skip
    _, out, _ = semel(capsys, "inbox", "ls")
    assert out.splitlines()[1].split()[:5] == ["orders", "0", "0", "5", "5"]
    assert out.splitlines()[1].endswith("final")
    assert out.splitlines()[-1].split()[:3] == ["orders", "charges", "3"]
    assert read_json(capsys, "inbox", "prune", "orders", "--keep-s", "0")["events"] == 0
    forgotten = read_json(capsys, "inbox", "forget", "orders", "charges")
    assert forgotten == {"stream": "orders", "forgotten": "charges"}
    told = semel(capsys, "inbox", "prune", "orders", "--keep-s", "0")[1]
    assert told == "orders: 5 events and 0 ids removed\n"


def test_what_is_wrong_gets_one_line(url: str, capsys: Out) -> None:
    assert "there is no ledger at" in refused(capsys, "inbox", "ls")
    assert "value 1 is not JSON" in refused(capsys, "inbox", "put", "orders", "x")
    with Inbox(url, "orders") as inbox:
        inbox.create()
    field = refused(capsys, "inbox", "put", "orders", '{"a": 1.5}', "--entity-field", "a")
    assert "value 1 has no field 'a' with a text or an integer" in field
    assert "--id is the id of one event" in refused(capsys, "inbox", "put", "o", "1", "2", "--id=x")
    assert "or --entity-field, not both" in refused(
        capsys, "inbox", "put", "orders", "1", "--entity", "a", "--entity-field", "b"
    )
    for command in ("tail", "ls", "prune"):
        assert "has no inbox 'refunds'" in refused(capsys, "inbox", command, "refunds")
    assert "has no reader 'x'" in refused(capsys, "inbox", "forget", "orders", "x")
    assert "has 4 partitions, got partitions=2" in refused(
        capsys, "inbox", "put", "orders", "1", "--partitions", "2"
    )
    semel(capsys, "inbox", "put", "orders", "1", "--entity", "a", "--id", "1")
    differs = refused(capsys, "inbox", "put", "orders", "2", "--entity", "a", "--id", "1")
    assert "has used the id '1' for another event" in differs


def test_tail_follows_what_comes(url: str) -> None:
    with Inbox(url, "orders") as inbox:
        inbox.append([NewEvent(b"\xff", entity="a")])
        script = "from semel.cli.main import main; main()"
        command = [sys.executable, "-c", script, "inbox", "tail", "orders", "--follow", "--json"]
        tail = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert tail.stdout
            assert json.loads(tail.stdout.readline())["value_base64"] == "/w=="
            inbox.append([NewEvent(b"2", entity="a")])
            inbox.repartition(1)
            inbox.append([NewEvent(b"3", entity="a")])
            assert [json.loads(tail.stdout.readline())["event"] for _ in range(2)] == [2, 3]
        finally:
            tail.kill()
            tail.communicate()


def test_an_inbox_does_not_disturb_the_pipelines_of_its_ledger(
    url: str, tmp_path: Path, capsys: Out
) -> None:
    world = pipeline_at(tmp_path / "ledger.db")
    world.minibatch(0, "a1 b2")
    with Inbox(url, "pay") as inbox:
        inbox.append([NewEvent(b"1", entity="a", id="1"), NewEvent(b"2", entity="b")])
        inbox.register_reader("pay")
        world.minibatch(1, "a3")
        [pipeline] = read_json(capsys, "status")
        assert pipeline["pipeline"] == "pay"
        assert read_json(capsys, "ledger", "check")["problems"] == []
        counts = {each["table"]: each["rows"] for each in read_json(capsys, "ledger", "ls")}
        assert counts["counters"] == 2
        assert counts["producers"] == 1
        assert counts["inbox_ends"] == 4
        assert counts["inbox_readers"] == 2
        for table in ("inbox", "inbox_ends", "inbox_readers", "counters", "producers"):
            assert len(read_json(capsys, "ledger", "ls", table)) == counts[table]
    with Ledger(url) as ledger:
        assert ledger.pipelines() == ["pay"]


def test_damage_of_an_inbox_is_found(url: str, capsys: Out) -> None:
    with Inbox(url, "orders", partitions=2) as inbox:
        inbox.append([NewEvent(b"%d" % n, entity=f"e{n}") for n in range(20)])
        inbox.append([NewEvent(b"%d" % n, entity=f"e{n}") for n in range(20)])
    with Ledger(url) as ledger:
        from semel.ledger.store import Delete, Key, Put

        (first, text), (second, _), *_ = list(ledger.store.scan("inbox", ""))
        broken = text.replace('"content":"', '"content":"AAAA')
        ledger.store.commit([], [Put(first, broken), Delete(second)])
        ledger.store.commit([], [Put(Key("counters", "orders/e1"), "{}")])
    status, out, _ = semel(capsys, "ledger", "check", "--json")
    assert status == 1
    found = [(each["table"], each["what"]) for each in json.loads(out)["problems"]]
    assert ("inbox", "the checksum does not agree with the content") in found
    assert ("counters", "the field 'last' is missing") in found
    assert [table for table, what in found if "are missing" in what] == ["inbox_ends"]
