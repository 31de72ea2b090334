"""Loads that could lose or change events, each shown against a real PostgreSQL."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from semel.errors import Diverged
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed
from semel.sinks.postgres.manifest_loader import PostgresLoad
from support.pipeline import World


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def world_of(folder: Path, then: PostgresLoad, form: str = "parquet") -> World:
    world = World()
    world.sinks.append(
        Files(name="out", url=str(folder), format=form, then=then, retry=Retry(for_s=0.0))
    )
    world.start()
    return world


def load_column(folder: Path, url: str, form: str, kind: str, column: pa.Array) -> list[Any]:
    """Deliver a column to files and load them into a table; give what stands there then."""
    execute(url, f"create table loaded (c text, id bigint, v {kind})")
    world = world_of(folder, PostgresLoad(url=url, table="loaded"), form)
    opening = world.open(0)
    ids = range(1, len(column) + 1)
    batch = pa.RecordBatch.from_pydict({"c": [f"c{id_}" for id_ in ids], "id": ids, "v": column})
    world.driver.end(opening, world.task(opening, [batch]))
    return [value for (value,) in execute(url, "select v from loaded order by id")]


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
    assert "give the pipeline or the sink another name" in str(caught.value)
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
    assert load_column(tmp_path, postgres_url, form, "text", pa.array([text])) == [text]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_an_amount_is_loaded_with_all_its_digits(
    tmp_path: Path, postgres_url: str, form: str
) -> None:
    amounts = pa.array([Decimal("12345678901234567.89")], pa.decimal128(38, 2))
    loaded = load_column(tmp_path, postgres_url, form, "numeric(38, 2)", amounts)
    assert loaded == amounts.to_pylist()


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
    loaded = load_column(tmp_path, postgres_url, form, kind, column)
    assert repr(loaded) == repr(column.to_pylist())
