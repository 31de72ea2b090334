"""Loads that could lose or change events, each shown against a real PostgreSQL."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from delivery.world import World
from semel.errors import Diverged
from semel.sinks.files import Files, committed
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


def test_a_new_ledger_with_another_folder_is_told_why_its_events_are_not_loaded(
    tmp_path: Path, postgres_url: str
) -> None:
    execute(postgres_url, "create table events (c text, id bigint)")
    load = PostgresLoad(url=postgres_url, table="events", columns=["c", "id"])
    world_of(tmp_path / "before", load).minibatch(0, "a1 b2")
    with pytest.raises(
        Diverged, match=r"after/.*was not loaded.*'pay/out/1\.0'.*before/"
    ) as caught:
        world_of(tmp_path / "after", load).minibatch(0, "c3 d4")
    assert "Give the pipeline or the sink another name" in str(caught.value)
    # As the advice says: the old rows are gone, so their key goes.
    execute(postgres_url, "delete from events")
    execute(postgres_url, "delete from semel_loads")
    [manifest] = committed(tmp_path / "after/pay/out")
    load.load(manifest)
    assert execute(postgres_url, "select c, id from events order by id") == [("c", 3), ("d", 4)]


def test_a_manifest_that_stands_where_another_one_stood_is_not_taken_for_it(
    tmp_path: Path, postgres_url: str
) -> None:
    execute(postgres_url, "create table events (c text, id bigint)")
    load = PostgresLoad(url=postgres_url, table="events", columns=["c", "id"])
    world_of(tmp_path / "lake", load).minibatch(0, "a1 b2")
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(Diverged, match="for another"):
        world_of(tmp_path / "lake", load).minibatch(0, "c3 d4")
    [manifest] = committed(tmp_path / "lake/pay/out")
    for ask in (load.known, load.load):
        with pytest.raises(Diverged, match="with 2 rows was not loaded"):
            ask(manifest)
    assert execute(postgres_url, "select c, id from events order by id") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize(
    "text",
    ["007", "2026-11-14", "1e3", "true", ""],
    ids=["zeros", "day", "number", "truth", "empty"],
)
def test_a_text_is_loaded_as_it_was_delivered(
    tmp_path: Path, postgres_url: str, form: str, text: str
) -> None:
    execute(postgres_url, "create table accounts (c text, id bigint, account text)")
    load = PostgresLoad(url=postgres_url, table="accounts")
    world = World()
    world.sinks.append(
        Files(name="out", url=str(tmp_path), format=form, then=load, retry=Retry(for_s=0.0))
    )
    world.start()
    opening = world.open(0)
    columns = {"c": ["a"], "id": [1], "account": [text]}
    world.driver.end(opening, world.task(opening, [pa.RecordBatch.from_pydict(columns)]))
    assert execute(postgres_url, "select account from accounts") == [(text,)]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_an_amount_is_loaded_with_all_its_digits(
    tmp_path: Path, postgres_url: str, form: str
) -> None:
    execute(postgres_url, "create table amounts (c text, id bigint, amount numeric(38, 2))")
    load = PostgresLoad(url=postgres_url, table="amounts")
    world = World()
    world.sinks.append(
        Files(name="out", url=str(tmp_path), format=form, then=load, retry=Retry(for_s=0.0))
    )
    world.start()
    opening = world.open(0)
    amount = Decimal("12345678901234567.89")
    amounts = pa.array([amount], pa.decimal128(38, 2))
    batch = pa.RecordBatch.from_pydict({"c": ["a"], "id": [1], "amount": amounts})
    world.driver.end(opening, world.task(opening, [batch]))
    assert execute(postgres_url, "select amount from amounts") == [(amount,)]


def test_a_load_goes_where_the_options_of_its_url_say(tmp_path: Path, postgres_url: str) -> None:
    execute(postgres_url, "create schema sales")
    execute(postgres_url, "create table sales.events (c text, id bigint)")
    execute(postgres_url, "create table public.events (c text, id bigint)")
    url = f"{postgres_url}?options=-csearch_path%3Dsales"
    world_of(tmp_path, PostgresLoad(url=url, table="events", columns=["c", "id"])).minibatch(
        0, "a1"
    )
    assert execute(postgres_url, "select c, id from public.events") == []
    assert execute(postgres_url, "select c, id from sales.events") == [("a", 1)]


def test_a_load_is_on_the_disk_of_the_server_when_it_is_acknowledged(
    tmp_path: Path, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    execute(postgres_url, f"alter database {database} set synchronous_commit = off")
    execute(
        postgres_url,
        "create table events (c text, id bigint, "
        "kept text default current_setting('synchronous_commit'))",
    )
    load = PostgresLoad(url=postgres_url, table="events", columns=["c", "id"])
    world_of(tmp_path, load).minibatch(0, "a1")
    assert execute(postgres_url, "select kept from events") == [("on",)]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1.5, float("nan")]), "double precision"),
        (pa.array(["short", "x" * 3_000_000]), "text"),
    ],
    ids=["a number that is none", "a long text"],
)
def test_what_a_format_can_hold_can_be_loaded(
    tmp_path: Path, postgres_url: str, form: str, column: pa.Array, kind: str
) -> None:
    execute(postgres_url, f"create table loaded (c text, id bigint, v {kind})")
    load = PostgresLoad(url=postgres_url, table="loaded")
    world = World()
    world.sinks.append(
        Files(name="out", url=str(tmp_path), format=form, then=load, retry=Retry(for_s=0.0))
    )
    world.start()
    opening = world.open(0)
    batch = pa.RecordBatch.from_pydict({"c": ["a", "b"], "id": [1, 2], "v": column})
    world.driver.end(opening, world.task(opening, [batch]))
    loaded = execute(postgres_url, "select v from loaded order by id")
    assert repr(loaded) == repr([(value,) for value in column.to_pylist()])
