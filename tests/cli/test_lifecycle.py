"""`semel rename` and `semel forget` on SQLite and PostgreSQL, with a crash after every commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Fenced
from semel.ledger import TABLES, Ledger, open_store
from semel.ledger.inspect.check import check_ledger
from semel.ledger.store.commit import Key, Put, Requirement, Update
from semel.ledger.verbs import lifecycle
from semel.ledger.verbs.lifecycle import TABLES_OF_PIPELINE
from semel.ledger.verbs.runs import NAMES_TABLE
from semel.operate import forget_pipeline, rename_pipeline
from support.command_line import beats, pipeline_at, read_json, refused, semel
from support.destinations import Absorber, Crash, crash_after, lost
from support.pipeline import World, once

Out = pytest.CaptureFixture[str]

OF_STREAMS = {
    "inbox",
    "inbox_ends",
    "inbox_readers",
    "counters",
    "producers",
    "markers",
}
"""Tables whose keys begin with the name of a stream."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "postgresql":
        made = request.getfixturevalue("postgres_url")
    monkeypatch.setenv("SEMEL_LEDGER", made)
    return str(made)


def half_delivered(url: str) -> World:
    """A stopped pipeline: a minibatch is complete, and the process of the next one is gone."""
    world = pipeline_at(url, Absorber())
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4")
    world.driver.beat(ended=True)
    return world


def go_on(world: World, name: str) -> None:
    world.take_name(name)
    world.start()
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5 b6")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6"


class CrashingStore:
    """A store whose process is gone after its n-th commit."""

    def __init__(self, store: Any, crash_after: int) -> None:
        self._store, self.left = store, crash_after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        self._store.commit(requirements, updates)
        self.left -= 1
        if self.left == 0:
            raise Crash


def test_every_table_is_one_of_pipelines_or_of_streams() -> None:
    """A new table has to be renamed and forgotten too: add it to TABLES_OF_PIPELINE."""
    assert {*TABLES_OF_PIPELINE, *OF_STREAMS, NAMES_TABLE} == set(TABLES)


def test_a_renamed_pipeline_continues(url: str, capsys: Out) -> None:
    world = half_delivered(url)
    told = read_json(capsys, "rename", "pay", "charges", "--by", "ann")
    assert told == {"pipeline": "charges", "before": "pay", "known_as": "pay"}
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["charges"]
    assert "was renamed to 'charges' by ann; use that name" in refused(capsys, "status", "pay")
    assert "was renamed to 'charges'" in refused(capsys, "rename", "pay", "other")
    status, out, _ = semel(capsys, "rename", "charges", "payments")
    assert status == 0
    assert out.startswith("charges is payments now: start it with this name and the same")
    assert out.endswith("Destinations know it as pay\n")
    go_on(world, "payments")
    assert semel(capsys, "ledger", "check")[0] == 0
    [row] = [each for each in read_json(capsys, "ledger", "ls", "names") if each["key"] == "pay"]
    assert row["payload"]["renamed_to"] == "payments"


def test_a_rename_that_crashes_after_any_commit_loses_and_repeats_nothing(url: str) -> None:
    for number in (1, 2, 3):
        world = half_delivered(url)
        store: Any = CrashingStore(world.store.memory, number)
        try:
            rename_pipeline(Ledger(store), "pay", "charges", by="ann")
        except Crash:
            crashed = True
        else:
            crashed = False
        assert crashed is (number <= 2), "a rename has two commits"
        [name] = Ledger(world.store.memory).pipelines()
        assert name == ("pay" if number == 1 else "charges")
        go_on(world, name)
        assert check_ledger(world.store.memory)[1] == []
        forget_pipeline(Ledger(world.store.memory), name, by="ann", unsettled=None, dry_run=False)
        assert sum(Ledger(world.store.memory).count(table) for table in TABLES) == 0


def test_a_pipeline_that_runs_is_neither_renamed_nor_forgotten(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    pipeline_at(tmp_path / "ledger.db").minibatch(0, "a1 b2")
    with beats(tmp_path / "ledger.db"):
        assert "is running (run 1); stop the query" in refused(capsys, "rename", "pay", "charges")
        assert "is running (run 1); stop the query" in refused(capsys, "forget", "pay")
        assert "is running" in refused(capsys, "forget", "pay", "--yes", "--unsettled", "9")
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["pay"]


def test_forget_says_what_it_removes_and_then_removes_it(url: str, capsys: Out) -> None:
    world = pipeline_at(url)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    world.driver.beat(ended=True)
    status, out, _ = semel(capsys, "forget", "pay")
    assert status == 0
    assert "parked events without an outcome: 2" in out
    assert "run it with --yes --unsettled 2" in out
    for wrong in (("--yes",), ("--yes", "--unsettled", "1"), ("--yes", "--unsettled", "3")):
        said = refused(capsys, "forget", "pay", *wrong)
        assert "2 events are parked, and 0 partitions" in said
        assert "pass --unsettled 2 to forget them too" in said
    told = read_json(capsys, "forget", "pay", "--yes", "--unsettled", "2")
    assert (told["done"], told["tables"]["parked"], told["known_as"]) == (True, 2, "pay")
    assert read_json(capsys, "status") == []
    with Ledger(url) as ledger:
        assert {table: ledger.count(table) for table in TABLES if ledger.count(table)} == {}
    assert "no pipeline has run with this ledger yet" in refused(capsys, "forget", "pay")


def test_a_forget_that_crashes_after_any_commit_is_finished_by_the_next(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "PAGE", 1)
    number = 0
    while True:
        number += 1
        world = half_delivered(url)
        store: Any = CrashingStore(world.store.memory, number)
        try:
            forget_pipeline(Ledger(store), "pay", by="ann", unsettled=1, dry_run=False)
        except Crash:
            pass
        else:
            break
        if store.left == 0 and world.store.memory.read([Key(NAMES_TABLE, "pay")]):
            assert "`semel forget pay --yes` again" in refused(capsys, "status", "pay")
            assert "`semel forget pay --yes` again" in refused(capsys, "rename", "pay", "x")
            status, out, _ = semel(capsys, "ledger", "check")
            assert (status, "is being forgotten" in out) == (1, True)
            assert read_json(capsys, "forget", "pay")["done"] is False
            assert read_json(capsys, "forget", "pay", "--yes")["done"] is True
        assert sum(Ledger(world.store.memory).count(table) for table in TABLES) == 0
    assert number > 5, "several commits"


def test_a_pipeline_with_more_rows_than_one_commit_moves_keeps_its_name(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_delivered(url)
    monkeypatch.setattr(lifecycle, "ROWS_MAX", 3)
    assert "more than 3 rows in the ledger" in refused(capsys, "rename", "pay", "charges")
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["pay"]


def test_the_refusal_says_what_most_rows_are(
    url: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = half_delivered(url)
    world.minibatch(1, "a3 b4")
    for batch in range(2, 25):
        world.minibatch(batch, f"a{batch + 10}")
    world.driver.beat(ended=True)
    monkeypatch.setattr(lifecycle, "ROWS_MAX", 20)
    said = refused(capsys, "rename", "pay", "charges")
    assert "most of them are the ids that it remembers" in said
    assert "Run it with a smaller remember_s" in said


def test_what_changes_in_the_meantime_stops_a_rename(url: str, capsys: Out) -> None:
    world = half_delivered(url)
    other = open_store(url)

    class Racing(CrashingStore):
        """Another process writes a row of the pipeline just before the second commit."""

        def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
            if self.left:
                [(at, text)] = other.scan("owners", "")
                other.commit([], [Put(at, text.replace('"nonce":"', '"nonce":"x'))])
            self.left += 1
            self._store.commit(requirements, updates)

    store: Any = Racing(world.store.memory, 0)
    with pytest.raises(Fenced, match="'pay' changed meanwhile"):
        rename_pipeline(Ledger(store), "pay", "charges", by="ann")
    other.close()
    assert [each["pipeline"] for each in read_json(capsys, "status")] == ["pay"]
    go_on(world, "pay")


@pytest.mark.parametrize(
    "arguments",
    [
        ("forget", "", "--yes"),
        ("rename", "", "charges"),
        ("reset", "", "--to", "latest", "--reason", "x", "--yes"),
        ("rescale", "", "3"),
        ("stop", ""),
        ("status", ""),
        ("parked", "ls", ""),
        ("parked", "export", ""),
    ],
    ids=lambda each: each[0],
)
def test_an_empty_name_is_not_the_only_pipeline(
    arguments: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """A variable of the shell that is not set would choose it."""
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    world = pipeline_at(tmp_path / "ledger.db")
    world.minibatch(0, "a1 b2")
    world.driver.beat(ended=True)
    before = {table: list(world.store.memory.scan(table, "")) for table in TABLES}
    assert "there is no pipeline '' in this ledger" in refused(capsys, *arguments)
    assert {table: list(world.store.memory.scan(table, "")) for table in TABLES} == before
