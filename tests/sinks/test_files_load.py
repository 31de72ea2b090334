"""Staged delivery: files first, then each manifest is loaded into a real PostgreSQL, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import semel
from semel.errors import ConfigurationError, NotDelivered, Rejected
from semel.events import Minibatch
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed
from semel.sinks.files.manifests import Manifest
from semel.sinks.postgres.manifest_loader import PostgresLoad, _Loading
from semel.verify.servers.postgres import PostgresServer
from support.destinations import Crash
from support.pipeline import World

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()
ONCE = Retry(for_s=0.0)


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def table(postgres_url: str) -> str:
    execute(postgres_url, 'create table "Events" (c text, id bigint, extra int)')
    return postgres_url


def world_of(folder: Path, then: Any, **settings: Any) -> World:
    world = World()
    world.sinks.append(Files(name="out", url=str(folder), then=then, retry=ONCE, **settings))
    world.start()
    return world


def loader(url: str, **settings: Any) -> PostgresLoad:
    return PostgresLoad(**{"url": url, "table": '"Events"', "columns": ["c", "id"], **settings})


def loaded(url: str) -> list[str]:
    return [f"{c}{id_}" for c, id_ in execute(url, 'select c, id from "Events" order by id, c')]


@pytest.mark.rows("A15", "A16")
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_the_files_of_each_minibatch_are_loaded_once(tmp_path: Path, table: str, form: str) -> None:
    world = world_of(tmp_path, loader(table), format=form)
    world.minibatch(0, "a1 b2 c3")
    world.minibatch(1, "d4 e5")
    world.start()
    world.minibatch(1, "d4 e5")
    assert loaded(table) == NAMES
    keys = execute(table, "select manifest, location, rows from semel_loads order by 1")
    assert keys == [
        ("pay/out/1.0", f"{tmp_path}/pay/out/_manifests/0001-0000000000.json", 3),
        ("pay/out/1.1", f"{tmp_path}/pay/out/_manifests/0001-0000000001.json", 2),
    ]


def dying(call: Callable[..., Any], moment: str) -> Callable[..., Any]:
    def dies(*args: Any, **words: Any) -> Any:
        if moment == "before":
            raise Crash
        call(*args, **words)
        raise Crash

    return dies


@pytest.mark.rows("A15", "A16")
@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Files, "_manifest"),
        (PostgresLoad, "known"),
        (PostgresLoad, "load"),
        (_Loading, "_copy"),
        (_Loading, "_commit"),
    ],
    ids=["manifest", "known", "load", "copy", "commit"],
)
def test_after_a_crash_between_any_two_steps_the_load_is_made_good_once(
    tmp_path: Path,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    moment: str,
    *,
    lost: bool,
) -> None:
    world = world_of(tmp_path, loader(table))
    world.minibatch(0, "a1")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, dying(getattr(owner, name), moment))
        with pytest.raises(Crash):
            world.minibatch(1, "b2 c3")
    assert loaded(table) in (NAMES[:1], NAMES[:3])
    world.start()
    if lost:
        world.minibatch(0, "a1 b2 c3 d4", query="another")
        world.minibatch(1, "e5", query="another")
    else:
        world.minibatch(1, "b2 c3")
        world.minibatch(2, "d4 e5")
    assert loaded(table) == NAMES
    [count] = execute(table, "select sum(rows) from semel_loads")[0]
    assert count == len(NAMES)


class LaterLoader:
    async def known(self, manifest: Manifest) -> bool:
        raise AssertionError(manifest)

    def load(self, manifest: Manifest) -> None:
        raise AssertionError(manifest)


async def load_later(manifest: Manifest) -> None:
    raise AssertionError(manifest)


def load_by_and_by(manifest: Manifest) -> Iterator[None]:
    yield


@pytest.mark.parametrize("then", [LaterLoader(), load_later, load_by_and_by])
def test_a_load_that_a_call_does_not_run_is_refused(tmp_path: Path, then: Any) -> None:
    with pytest.raises(ConfigurationError, match="a call would load nothing"):
        Files(name="out", url=str(tmp_path), then=then)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_load_that_is_still_to_run_when_its_function_returns_does_not_count(
    tmp_path: Path,
) -> None:
    def forgets_to_wait(manifest: Manifest) -> Any:
        return load_later(manifest)

    world = world_of(tmp_path, forgets_to_wait)
    world.minibatch(0, "a1")
    [(_, row)] = world.parked_rows("out.then")
    assert (row.state, row.doubted) == ("held", True)
    assert "returned a coroutine that is never awaited" in row.why


@pytest.mark.rows("A16")
def test_two_drivers_that_load_the_same_manifest_at_once_load_it_once(
    tmp_path: Path, table: str
) -> None:
    world_of(tmp_path, None).minibatch(0, INPUT)
    [manifest] = committed(f"{tmp_path}/pay/out")
    load = loader(table)
    threads = [threading.Thread(target=load.load, args=[manifest]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded(table) == NAMES
    assert load.known(manifest)


def test_a_database_that_is_down_stops_the_query_and_the_next_run_loads(
    tmp_path: Path, postgres: PostgresServer, table: str
) -> None:
    world = world_of(tmp_path, loader(table))
    world.minibatch(0, "a1")
    postgres.stop()
    try:
        with pytest.raises(NotDelivered, match="end-of-minibatch step failed") as caught:
            world.minibatch(1, "b2 c3 d4 e5")
        assert postgres.password not in str(caught.value)
    finally:
        postgres.start()
    assert len(list(committed(f"{tmp_path}/pay/out"))) == 2
    world.start()
    world.minibatch(1, "b2 c3 d4 e5")
    assert loaded(table) == NAMES


def test_a_row_that_the_table_refuses_stops_the_load_as_a_whole(tmp_path: Path, table: str) -> None:
    execute(table, 'alter table "Events" add check (id <> 3)')
    world = world_of(tmp_path, loader(table))
    with pytest.raises(Rejected, match="Events_id_check"):
        world.minibatch(0, INPUT)
    assert loaded(table) == []
    assert execute(table, "select count(*) from semel_loads") == [(0,)]
    execute(table, 'alter table "Events" drop constraint "Events_id_check"')
    world.start()
    world.minibatch(0, INPUT)
    assert loaded(table) == NAMES


def test_columns_that_are_not_there_are_told(tmp_path: Path, table: str) -> None:
    world = world_of(tmp_path, loader(table, columns=None))
    with pytest.raises(ConfigurationError, match="column 'topic' is not both"):
        world.minibatch(0, INPUT)
    world = world_of(tmp_path / "other", loader(table, table="missing"))
    with pytest.raises(ConfigurationError, match="missing"):
        world.minibatch(0, INPUT)


def test_names_and_values_are_quoted(tmp_path: Path, postgres_url: str) -> None:
    execute(postgres_url, 'create table t (c text, "id"" ); drop table t; --" bigint)')
    load = PostgresLoad(url=postgres_url, table="t", columns=["c", 'id" ); drop table t; --'])
    world = world_of(tmp_path, load)
    with pytest.raises(
        ConfigurationError, match=r"names the column .* which the DataFrame does not have"
    ):
        world.minibatch(0, INPUT)
    assert execute(postgres_url, "select count(*) from t") == [(0,)]


def test_a_function_is_handed_every_manifest_and_after_a_crash_its_policy_decides(
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, int]] = []

    @semel.sink(on_doubt="resend")
    def request(manifest: Manifest) -> None:
        seen.append((manifest.key, manifest.rows))
        if len(seen) == 2:
            raise Crash

    world = world_of(tmp_path, request)
    world.minibatch(0, "a1 b2")
    with pytest.raises(Crash):
        world.minibatch(1, "c3")
    world.start()
    world.minibatch(1, "c3")
    assert seen == [("pay/out/1.0", 2), *[("pay/out/1.1", 1)] * 2]


def test_a_load_of_another_sink_or_pipeline_has_another_key() -> None:
    def key(pipeline: str, sink: str) -> str:
        return Manifest(pipeline, sink, Minibatch(1, 0), "csv", ()).key

    assert len({key("a", "b"), key("a/b", "c"), key("a", "b/c"), key("a%2Fb", "c")}) == 4


def test_settings_that_cannot_work_are_refused_and_the_password_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="not the URL of a PostgreSQL"):
        PostgresLoad(url="mysql://user:secret@host/x", table="t")
    with pytest.raises(ConfigurationError, match="a list of names"):
        PostgresLoad(url="postgresql://host/x", table="t", columns="c")
    load = PostgresLoad(url="postgresql://user:secret@127.0.0.1:1/x", table="t")
    assert "secret" not in f"{load!r} {load.where}"
    with pytest.raises(NotDelivered) as caught:
        load.known(Manifest("a", "b", Minibatch(1, 0), "csv", ()))
    assert "secret" not in str(caught.value)
