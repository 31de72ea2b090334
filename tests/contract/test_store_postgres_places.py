"""Where a ledger is in PostgreSQL: schemas, roles, foreign tables; and answers that never come."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger import payloads
from semel.ledger.client import LedgerClient
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Absent, Equals, Put
from semel.ledger.store.opening import open_store
from semel.ledger.store.postgres import PostgresStore
from support.servers.transaction_pool import Pool

if TYPE_CHECKING:
    from semel.verify.servers.postgres import PostgresServer

A, B = make_key("t", "a"), make_key("t", "b")
ONE, TWO = payloads.dump_payload({"n": 1}), payloads.dump_payload({"n": 2})

TABLES = "select schemaname::text from pg_tables where tablename = 'semel_ledger' order by 1"
FUNCTIONS = (
    "select nspname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
    " where proname = 'semel_commit_1' order by 1"
)
ARRAYS = ", ".join(["text[]"] * 8)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create()
    yield name
    postgres.drop(name)


@pytest.fixture
def url(postgres: PostgresServer, database: str) -> str:
    return postgres.url(database)


@contextmanager
def role(postgres: PostgresServer, database: str) -> Iterator[str]:
    """A user with no rights but to connect; returns its URL."""
    postgres.execute("create role clerk login password 'clerk'")
    head = postgres.url().split("@")[0]
    try:
        yield postgres.url(database).replace(head, "postgresql://clerk:clerk")
    finally:
        postgres.execute("drop owned by clerk cascade", database)
        postgres.execute("drop role clerk")


def commits(url: str, *puts: Put) -> None:
    with closing(open_store(url)) as store:
        store.commit([], list(puts))


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- looking creates nothing ----------------------------------------------------------------------


def test_a_look_at_a_ledger_without_its_function_creates_no_second_one(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    postgres.execute(f"drop function public.semel_commit_1({ARRAYS})", database)
    postgres.execute(f"create schema {postgres.user}", database)  # first in the search path
    with closing(open_store(url)) as store:
        assert store.read([A]) == {A: ONE}
        assert dict(store.scan("t", "")) == {A: ONE}
    assert postgres.execute(TABLES, database) == [("public",)]
    assert postgres.execute(FUNCTIONS, database) == []


def test_a_commit_puts_the_function_into_the_schema_of_the_table(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    postgres.execute(f"drop function public.semel_commit_1({ARRAYS})", database)
    postgres.execute(f"create schema {postgres.user}", database)
    with closing(open_store(url)) as store:
        store.commit([Equals(A, ONE)], [Put(A, TWO)])
        assert store.read([A]) == {A: TWO}
    assert postgres.execute(TABLES, database) == [("public",)]
    assert postgres.execute(FUNCTIONS, database) == [("public",)]


def test_a_function_of_that_name_elsewhere_in_the_path_is_not_called(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    postgres.execute(f"create schema {postgres.user}", database)
    postgres.execute(
        f"create function {postgres.user}.semel_commit_1({ARRAYS}) returns void"
        " language plpgsql as $$ begin raise exception 'a foreign function'; end $$",
        database,
    )
    commits(url, Put(A, TWO))
    with closing(open_store(url)) as store:
        assert store.read([A]) == {A: TWO}


def test_a_commit_of_the_old_function_without_a_schema_in_it_still_reaches_its_table(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    [(text,)] = postgres.execute("select pg_get_functiondef('semel_commit_1'::regproc)", database)
    postgres.execute(str(text).replace("public.semel_ledger", "semel_ledger"), database)
    postgres.execute(f"create schema {postgres.user}", database)
    commits(url, Put(A, TWO))
    assert postgres.execute(
        "select payload from public.semel_ledger where tbl = 't'", database
    ) == [(TWO,)]


def test_schemas_may_have_any_name(postgres: PostgresServer, database: str, url: str) -> None:
    postgres.execute('create schema "Odd %s ""name"""', database)
    postgres.execute(f'alter database {database} set search_path = "Odd %s ""name"""', "postgres")
    with closing(open_store(url)) as store:
        store.commit([Absent(A)], [Put(A, ONE)])
        store.commit([Equals(A, ONE)], [Put(A, TWO)])
        assert store.read([A]) == {A: TWO}
        assert dict(store.scan("t", "")) == {A: TWO}
    assert postgres.execute(TABLES, database) == [('Odd %s "name"',)]


def test_who_may_only_read_can_look_and_is_told_what_a_commit_needs(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    with role(postgres, database) as charge_client:
        postgres.execute("grant select on semel_ledger to clerk", database)
        with closing(open_store(charge_client)) as store:
            assert store.read([A]) == {A: ONE}
            with pytest.raises(ConfigurationError, match="grant"):
                store.commit([], [Put(A, TWO)])


def test_a_ledger_that_the_user_may_not_see_gets_no_twin_beside_it(
    postgres: PostgresServer, database: str, url: str
) -> None:
    postgres.execute("create schema books", database)
    postgres.execute(f"alter database {database} set search_path = books, public")
    commits(url, Put(A, ONE))
    postgres.execute("grant create on schema public to public", database)
    with (
        role(postgres, database) as charge_client,
        pytest.raises(ConfigurationError, match=r"schema books .* grant usage"),
    ):
        commits(charge_client, Put(A, TWO))
    assert postgres.execute(TABLES, database) == [("books",)]


def test_a_ledger_that_is_lost_while_in_use_is_not_created_again(
    postgres: PostgresServer, database: str, url: str
) -> None:
    with closing(open_store(url)) as store:
        store.commit([], [Put(A, ONE)])
        postgres.execute("drop table semel_ledger", database)
        store.close()  # the next call connects again
        for act in (lambda: store.read([A]), lambda: store.commit([], [Put(A, TWO)])):
            with pytest.raises(ConfigurationError, match="lost its table"):
                act()
    assert postgres.execute(TABLES, database) == []


def test_a_ledger_that_another_one_comes_to_hide_is_noticed(
    postgres: PostgresServer, database: str, url: str
) -> None:
    with closing(open_store(url)) as store:
        store.commit([], [Put(A, ONE)])
        postgres.execute(f"create schema {postgres.user}", database)
        name = f"{postgres.user}.semel_ledger"
        postgres.execute(f"create table {name} (like semel_ledger including all)", database)
        postgres.execute(f"insert into {name} select * from public.semel_ledger", database)
        store.close()
        with pytest.raises(ConfigurationError, match=r"public\.semel_ledger .* precedes it"):
            store.commit([], [Put(A, TWO)])


# --- a foreign table ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "foreign",
    [
        "create table semel_ledger (id bigint, amount numeric)",
        "create table semel_ledger (tbl text, key text, payload jsonb)",
        "create view semel_ledger as select 'a'::text tbl, 'b'::text as key, 'c'::text payload",
    ],
)
def test_a_foreign_table_of_that_name_is_refused_by_name_and_left_alone(
    postgres: PostgresServer, database: str, url: str, foreign: str
) -> None:
    postgres.execute(foreign, database)
    with closing(open_store(url)) as store:
        for act in (lambda: store.read([A]), lambda: store.commit([], [Put(A, ONE)])):
            with pytest.raises(
                ConfigurationError, match=r"public\.semel_ledger exists, but .* the columns of a"
            ):
                act()
    assert postgres.execute(FUNCTIONS, database) == []


def test_a_ledger_whose_rows_were_removed_is_not_taken_for_a_newer_one(
    postgres: PostgresServer, database: str, url: str
) -> None:
    commits(url, Put(A, ONE))
    postgres.execute("truncate semel_ledger", database)
    with closing(open_store(url)) as store:
        for act in (lambda: store.read([A]), lambda: store.commit([], [Put(A, ONE)])):
            with pytest.raises(ConfigurationError, match="lost the row of its schema version"):
                act()


# --- an answer that does not come -----------------------------------------------------------------


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


def test_a_commit_that_waits_for_a_standby_ends_in_time_and_is_logged(
    postgres: PostgresServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(PostgresStore(url, answer_s=6.0)) as store:
        store.commit([], [Put(A, ONE)])
        with standby_away(postgres):
            began = time.monotonic()
            with (
                caplog.at_level(logging.WARNING, "semel"),
                pytest.raises(LedgerUnavailable, match=r"may have happened.*standby") as error,
            ):
                store.commit([Equals(A, ONE)], [Put(A, TWO)])
            assert 5.9 < time.monotonic() - began < 9
        assert "has not answered for 5 s; waiting for up to 6 s" in caplog.text
        assert postgres.password not in str(error.value) + caplog.text
        until(lambda: store.read([A]) == {A: TWO})  # it had been committed after all


def test_a_commit_whose_wait_was_cut_off_finds_its_own_success(
    postgres: PostgresServer, url: str
) -> None:
    with closing(PostgresStore(url, answer_s=1.0)) as store, ThreadPoolExecutor(1) as threads:
        store.commit([], [Put(A, ONE)])
        client = LedgerClient(store, "pay")
        with standby_away(postgres):
            commit = threads.submit(
                client.commit, [Equals(A, ONE), Absent(B)], [Put(A, TWO), Put(B, ONE)]
            )
            time.sleep(2.5)
            assert not commit.done()
        commit.result(20)
        assert store.read([A, B]) == {A: TWO, B: ONE}


def test_a_backend_that_is_stopped_is_not_waited_for_without_end(
    postgres: PostgresServer, database: str, url: str
) -> None:
    with closing(PostgresStore(url, answer_s=1.0)) as store:
        store.commit([], [Put(A, ONE)])
        for act in (
            lambda: store.commit([Equals(A, ONE)], [Put(A, TWO)]),
            lambda: store.read([A]),
        ):
            [(pid,)] = postgres.execute(
                "select pid from pg_stat_activity where application_name = 'semel'"
                f" and datname = '{database}' order by backend_start desc limit 1"
            )
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(LedgerUnavailable, match=r"no answer within 1 s"):
                    act()
                assert time.monotonic() - began < 4
            finally:
                os.kill(pid, signal.SIGCONT)
            until(lambda: store.read([A]) == {A: TWO})


# --- a pool in between ----------------------------------------------------------------------------


def test_a_pool_that_hands_its_connections_on_after_each_transaction_is_no_obstacle(
    postgres: PostgresServer, database: str, url: str
) -> None:
    with (
        closing(Pool(url)) as pool,
        closing(open_store(postgres.url(database, port=pool.port))) as store,
    ):
        assert store.read([A]) == {}
        for turn in range(30):
            store.commit([], [Put(make_key("t", turn), ONE)])
            assert store.read([make_key("t", turn)]) == {make_key("t", turn): ONE}
        assert len(list(store.scan("t", ""))) == 30


def test_a_pool_is_not_left_with_settings_that_its_other_clients_would_get(
    postgres: PostgresServer, database: str, url: str
) -> None:
    with closing(Pool(url)) as pool:
        pooled = postgres.url(database, port=pool.port)
        for _ in range(3):
            commits(pooled, Put(A, ONE))
        with closing(PostgresStore(pooled)) as store, store._connection() as connection:
            for _ in range(4):
                assert connection.execute("show statement_timeout").fetchall() == [("0",)]
    with closing(PostgresStore(url)) as store, store._connection() as connection:
        assert connection.execute("show statement_timeout").fetchall() == [("20s",)]
