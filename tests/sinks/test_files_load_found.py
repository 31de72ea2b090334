"""What loads of manifests lose or change, each shown against a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from delivery.world import World
from semel.errors import SemelError
from semel.sinks.files import Files
from semel.sinks.postgres.load import PostgresLoad
from semel.sinks.retry import Retry


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def world_of(folder: Path, then: PostgresLoad) -> World:
    world = World()
    world.sinks.append(Files(name="out", url=str(folder), then=then, retry=Retry(for_s=0.0)))
    world.start()
    return world


def test_a_new_ledger_with_another_folder_loads_its_events_or_says_why_not(
    tmp_path: Path, postgres_url: str
) -> None:
    execute(postgres_url, "create table events (c text, id bigint)")
    load = PostgresLoad(url=postgres_url, table="events", columns=["c", "id"])
    world_of(tmp_path / "before", load).minibatch(0, "a1 b2")
    try:
        world_of(tmp_path / "after", load).minibatch(0, "c3 d4")
    except SemelError:
        return
    loaded = execute(postgres_url, "select c, id from events order by id")
    assert loaded == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
