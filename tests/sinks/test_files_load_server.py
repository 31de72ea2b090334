"""A load rests on its server: what the server does not keep, or has not yet kept, is not loaded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.errors import ConfigurationError, NotDelivered, OutcomeUnknown, SemelError
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed
from semel.sinks.files.manifests import Manifest
from semel.sinks.postgres.manifest_loader import PostgresLoad
from semel.verify.servers.postgres import PostgresServer
from support.pipeline import World


def execute(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def manifest_in(folder: Path) -> Manifest:
    """A manifest of two events that were not loaded."""
    world = World()
    world.sinks.append(Files(name="out", url=str(folder), retry=Retry(for_s=0.0)))
    world.start()
    world.minibatch(0, "a1 b2")
    [manifest] = committed(folder / "pay/out")
    return manifest


def loader(url: str, **settings: Any) -> PostgresLoad:
    return PostgresLoad(**{"url": url, "table": "events", "columns": ["c", "id"], **settings})


# -- what a crash of the server empties, or another server keeps


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (["create unlogged table events (c text, id bigint)"], "is unlogged"),
        (
            [
                "create table events (c text, id bigint) partition by range (id)",
                "create table first partition of events for values from (0) to (2)",
                "create unlogged table rest partition of events default",
            ],
            "rest is unlogged",
        ),
        (
            [
                "create foreign data wrapper far",
                "create server away foreign data wrapper far",
                "create foreign table events (c text, id bigint) server away",
            ],
            "is a foreign table",
        ),
    ],
)
def test_nothing_is_loaded_into_a_table_that_does_not_keep_it(
    tmp_path: Path, postgres_url: str, tables: list[str], said: str
) -> None:
    for statement in tables:
        execute(postgres_url, statement)
    load, manifest = loader(postgres_url), manifest_in(tmp_path)
    with pytest.raises(ConfigurationError, match=said):
        load.load(manifest)
    assert not load.known(manifest)


# -- a standby


@contextmanager
def standby_away(postgres: PostgresServer) -> Iterator[None]:
    """Every COMMIT waits for a standby that is not there, and no timeout of the server ends it."""
    postgres.execute("alter system set synchronous_standby_names = 'a_standby_that_is_away'")
    postgres.execute("select pg_reload_conf()")
    try:
        time.sleep(1.0)
        yield
    finally:
        postgres.execute("alter system reset synchronous_standby_names")
        postgres.execute("select pg_reload_conf()")


WAITING = "from pg_stat_activity where wait_event = 'SyncRep' and datname = current_database()"


def waits(url: str) -> bool:
    ends = time.monotonic() + 10.0
    while time.monotonic() < ends:
        if execute(url, f"select 1 {WAITING}"):
            return True
        time.sleep(0.05)
    return False


def prepared(url: str) -> None:
    """Everything that is made with the first load is there."""
    execute(url, "create table events (c text, id bigint)")
    execute(
        url,
        "create table semel_loads (manifest text primary key, location text not null, "
        "rows bigint not null, digest text not null, loaded timestamptz not null default now())",
    )


def test_a_load_whose_commit_waits_for_a_standby_ends_as_unknown(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    prepared(postgres_url)
    manifest = manifest_in(tmp_path)
    outcome: list[SemelError] = []

    def loading() -> None:
        with suppress(psycopg.Error):
            try:
                loader(postgres_url, deadline_s=1.0).load(manifest)
            except SemelError as error:
                outcome.append(error)

    thread = threading.Thread(target=loading)
    with standby_away(postgres):
        thread.start()
        thread.join(8.0)
        ended = not thread.is_alive()
    thread.join()
    assert ended
    assert [type(each) for each in outcome] == [OutcomeUnknown]
    assert loader(postgres_url).known(manifest)


def test_a_load_that_the_standby_does_not_have_is_not_known_to_be_done(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    prepared(postgres_url)
    manifest = manifest_in(tmp_path)
    short = loader(postgres_url, deadline_s=1.0)

    def loading() -> None:
        with suppress(SemelError):
            loader(postgres_url).load(manifest)

    thread = threading.Thread(target=loading)
    with standby_away(postgres):
        thread.start()
        assert waits(postgres_url)
        # As a crash does: it is committed here, and its driver gets no answer.
        execute(postgres_url, f"select pg_terminate_backend(pid) {WAITING}")
        thread.join()
        assert execute(postgres_url, "select count(*) from events") == [(2,)]
        for ask in (short.known, short.load):
            with pytest.raises((NotDelivered, OutcomeUnknown)):
                ask(manifest)
    assert short.known(manifest)
    short.load(manifest)
    assert execute(postgres_url, "select count(*) from events") == [(2,)]


# -- rights and secrets


def test_a_user_who_may_not_create_tables_loads_where_they_are(
    tmp_path: Path, postgres: PostgresServer, postgres_url: str
) -> None:
    prepared(postgres_url)
    execute(postgres_url, "drop role if exists loads_only")
    execute(postgres_url, "create role loads_only")
    execute(postgres_url, "revoke create on schema public from public")
    execute(postgres_url, "grant select, insert, update on semel_loads, events to loads_only")
    try:
        load = loader(f"{postgres_url}?options=-crole%3Dloads_only")
        load.load(manifest_in(tmp_path))
        assert execute(postgres_url, "select c, id from events order by id") == [("a", 1), ("b", 2)]
    finally:
        execute(postgres_url, "drop owned by loads_only")
        execute(postgres_url, "drop role loads_only")


@pytest.mark.parametrize("password", ["s3cr%zzet", "s3cret%"])
def test_a_password_that_is_no_part_of_a_url_is_shown_nowhere(
    tmp_path: Path, password: str
) -> None:
    with pytest.raises(ConfigurationError, match="is not a URL") as caught:
        loader(f"postgresql://app:{password}@127.0.0.1:1/dw").load(manifest_in(tmp_path))
    assert "s3cr" not in str(caught.value)
