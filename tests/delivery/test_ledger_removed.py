"""A ledger that is removed under a running pipeline: what is said is true, and nothing is sent."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from semel.errors import ConfigurationError, Fenced
from semel.ledger import open_store
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Delete, Key, Put, Store
from support.command_line import pipeline_at
from support.pipeline import World


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def world(path: Path) -> World:
    return pipeline_at(path)


def in_a_worker(world: World, path: Path) -> None:
    """From here on the ledger is used as another process opens it."""
    world.store.memory = open_store(f"sqlite:///{path}", create=False)  # type: ignore[assignment]


def remove(path: Path) -> None:
    for each in path.parent.glob("ledger.db*"):
        each.unlink()


def test_a_worker_that_finds_no_ledger_says_so_and_makes_none(world: World, path: Path) -> None:
    opening = world.open(0)
    remove(path)
    in_a_worker(world, path)
    with pytest.raises(ConfigurationError, match=r"ledger.db was removed while a pipeline used it"):
        world.task(opening, "a1 b2")
    assert world.out.calls == []
    assert not path.exists()


def test_a_worker_that_finds_another_ledger_is_not_told_of_a_later_attempt(
    world: World, path: Path
) -> None:
    opening = world.open(0)
    remove(path)
    other: Store = open_store(f"sqlite:///{path}")
    other.commit([], [Put(Key("semel", "other"), "{}")])
    in_a_worker(world, path)
    said = "pipeline 'pay': the ledger does not know it any more: it was removed, emptied or"
    with pytest.raises(ConfigurationError, match=said):
        world.task(opening, "a1 b2")
    assert world.out.calls == []


def test_the_driver_says_that_its_ledger_was_removed(world: World, path: Path) -> None:
    opening = world.open(0)
    reports = world.task(opening, "a1")
    remove(path)
    with pytest.raises(ConfigurationError, match="removed or replaced while in use, and nothing"):
        world.driver.end(opening, reports)
    with pytest.raises(ConfigurationError, match="removed or replaced while in use, and nothing"):
        world.driver.beat()
    assert not path.exists()


def test_rows_that_were_deleted_under_a_run_are_no_later_run(world: World) -> None:
    world.store.commit([], [Delete(make_key("owners", "pay"))])
    with pytest.raises(Fenced, match=r"no owner of it any more.*removed, emptied or replaced"):
        world.driver.beat()


def test_a_commit_into_a_file_that_is_removed_meanwhile_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"

    class Unlucky(sqlite3.Connection):
        def execute(self, *arguments: object) -> sqlite3.Cursor:
            if arguments[0] == "COMMIT" and (tmp_path / "now").exists():
                path.unlink()
            return super().execute(*arguments)  # type: ignore[arg-type]

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, factory=Unlucky, **k))
    store = open_store(f"sqlite:///{path}")
    store.commit([], [Put(Key("parked", "a"), "{}")])
    (tmp_path / "now").touch()
    with pytest.raises(ConfigurationError, match="removed or replaced while in use"):
        store.commit([], [Put(Key("parked", "b"), "{}")])
    store.close()
