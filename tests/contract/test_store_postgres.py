"""What only the PostgreSQL store can suffer: a network, a server that goes away, other clients."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from semel.errors import ConfigurationError, LedgerUnavailable, MissingExtra
from semel.ledger import payloads
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Absent, Conflict, Equals, Put, Store, Sweep
from semel.ledger.store.opening import open_store

if TYPE_CHECKING:
    from semel.verify.servers.postgres import PostgresServer

A, B = make_key("t", "a"), make_key("t", "b")
ONE, TWO = payloads.dump_payload({"n": 1}), payloads.dump_payload({"n": 2})


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create()
    yield name
    postgres.drop(name)


@pytest.fixture
def store(postgres: PostgresServer, database: str) -> Iterator[Store]:
    opened = open_store(postgres.url(database))
    yield opened
    opened.close()


class Wire:
    """A proxy before the server that cuts the line on request: before a request, or its reply."""

    def __init__(self, port: int) -> None:
        self.cut_at = b""
        self.cuts = 0
        self.deliver_first = False
        self._unheard: list[socket.socket] = []
        self._replied = threading.Event()
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, target, asks in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pass, args=(source, target, asks), daemon=True
                ).start()

    def _pass(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        try:
            while received := source.recv(65536):
                if source in self._unheard:
                    self._replied.set()
                    continue
                if asks and self.cuts and self.cut_at in received:
                    self.cuts -= 1
                    if self.deliver_first:
                        self._unheard.append(target)
                        target.sendall(received)
                        assert self._replied.wait(10)
                    break
                target.sendall(received)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting_for_a_lock(postgres: PostgresServer, database: str) -> bool:
    [[count]] = postgres.execute(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        f" and datname = '{database}'"
    )
    return bool(count)


@pytest.mark.parametrize("delivered", [False, True])
def test_a_line_cut_during_a_commit_leaves_its_outcome_unknown(
    postgres: PostgresServer, database: str, store: Store, delivered: bool
) -> None:
    store.commit([], [Put(A, ONE)])
    with closing(Wire(postgres.port)) as wire:
        far = open_store(postgres.url(database, port=wire.port))
        assert far.read([A]) == {A: ONE}
        wire.deliver_first = delivered
        wire.cut_at, wire.cuts = b"cut here", 1
        with pytest.raises(LedgerUnavailable, match="may have happened") as error:
            far.commit(
                [Equals(A, ONE)], [Put(A, TWO), Put(B, payloads.dump_payload({"x": "cut here"}))]
            )
        assert postgres.password not in str(error.value)
        assert store.read([A]) == {A: TWO if delivered else ONE}
        assert wire.cuts == 0
        assert far.read([A]) == store.read([A])
        far.commit([], [Put(A, ONE)])
        far.close()


def test_a_line_cut_during_a_read_is_not_noticed(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    with closing(Wire(postgres.port)) as wire:
        far = open_store(postgres.url(database, port=wire.port))
        far.commit([], [])
        wire.cut_at, wire.cuts = b"unnest", 1
        assert far.read([A]) == {A: ONE}
        assert wire.cuts == 0
        wire.cuts = 2
        with pytest.raises(LedgerUnavailable):
            far.read([A])
        far.close()


def test_a_backend_that_is_terminated_during_a_commit_leaves_its_outcome_unknown(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    with psycopg.connect(postgres.url(database)) as other, ThreadPoolExecutor(1) as threads:
        other.execute("select from semel_ledger where tbl = 't' for update")
        commit = threads.submit(store.commit, [Equals(A, ONE)], [Put(A, TWO)])
        until(lambda: waiting_for_a_lock(postgres, database))
        postgres.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            f" where application_name = 'semel' and datname = '{database}'"
        )
        with pytest.raises(LedgerUnavailable, match="may have happened"):
            commit.result(10)
    assert store.read([A]) == {A: ONE}
    store.commit([Equals(A, ONE)], [Put(A, TWO)])


def test_a_server_that_restarts_in_between_is_not_noticed(
    postgres: PostgresServer, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    postgres.restart()
    store.commit([Equals(A, ONE)], [Put(A, TWO)])
    postgres.restart()
    assert store.read([A]) == {A: TWO}
    postgres.restart()
    assert dict(store.scan("t", "")) == {A: TWO}


def test_a_server_that_is_away_is_unavailable_until_it_is_back(
    postgres: PostgresServer, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    postgres.stop()
    try:
        for act in (lambda: store.read([A]), lambda: store.commit([], [Put(A, TWO)])):
            with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1:\d+ cannot be reached"):
                act()
    finally:
        postgres.start()
    assert store.read([A]) == {A: ONE}


def test_a_deadlock_that_others_cause_is_tried_again(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(A, ONE), Put(B, ONE)])
    lock = "select from semel_ledger where tbl = 't' and key = %s for update"
    with psycopg.connect(postgres.url(database)) as other, ThreadPoolExecutor(1) as threads:
        other.execute(lock, ["b"])
        commit = threads.submit(store.commit, [Equals(A, ONE), Equals(B, ONE)], [Put(A, TWO)])
        until(lambda: waiting_for_a_lock(postgres, database))
        other.execute(lock, ["a"])  # a circle, that the server breaks after a second
        other.commit()
        commit.result(10)
    assert store.read([A]) == {A: TWO}


def test_a_commit_is_durable_where_the_server_is_told_to_be_hasty(
    postgres: PostgresServer, database: str
) -> None:
    postgres.execute(f"alter database {database} set synchronous_commit = off")
    store = open_store(postgres.url(database))
    store.commit([], [Put(A, ONE)])
    postgres.execute("create table seen (mode text)", database)
    postgres.execute(
        "create function see() returns trigger language plpgsql as $$ begin"
        " insert into seen values (current_setting('synchronous_commit')); return new; end $$",
        database,
    )
    postgres.execute(
        "create constraint trigger see after update on semel_ledger"
        " initially deferred for each row execute function see()",
        database,
    )
    store.commit([], [Put(A, TWO)])
    assert postgres.execute("select * from seen", database) == [("on",)]
    store.close()


def test_the_isolation_that_the_database_prefers_does_not_matter(
    postgres: PostgresServer, database: str
) -> None:
    postgres.execute(f"alter database {database} set default_transaction_isolation = serializable")
    store = open_store(postgres.url(database))
    with ThreadPoolExecutor(8) as threads:
        puts = [Put(make_key("u", n), ONE) for n in range(200)]
        list(threads.map(lambda put: store.commit([Absent(put.key)], [put]), puts))
    assert len(list(store.scan("u", ""))) == 200
    store.close()


def test_the_order_of_keys_is_fixed_in_the_table_and_not_left_to_the_database(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [])
    collations = "select collation_name from information_schema.columns where table_name = '{}'"
    found = postgres.execute(collations.format("semel_ledger"), database)
    assert sorted(found, key=str) == [("C",), ("C",), (None,)]


def test_a_child_opens_its_own_connection_and_leaves_the_parents_alone(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    [parents] = store._idle._connections  # type: ignore[attr-defined]
    pid = os.fork()
    if pid == 0:
        try:
            store.commit([Equals(A, ONE)], [Put(A, TWO)])
            [own] = store._idle._connections  # type: ignore[attr-defined]
            assert own is not parents
            store.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.read([A]) == {A: TWO}
    assert store._idle._connections == [parents]  # type: ignore[attr-defined]


def test_a_store_that_is_forgotten_closes_its_connections(
    postgres: PostgresServer, database: str
) -> None:
    store = open_store(postgres.url(database))
    store.commit([], [])
    count = f"select count(*) from pg_stat_activity where datname = '{database}'"
    assert postgres.execute(count) == [(1,)]
    del store
    until(lambda: postgres.execute(count) == [(0,)])


def test_a_server_that_cannot_be_reached_is_unavailable() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    store = open_store(f"postgresql://me:sesame@127.0.0.1:{port}/pay")
    with pytest.raises(
        LedgerUnavailable, match=f"'pay' at 127.0.0.1:{port} cannot be reached"
    ) as e:
        store.commit([], [])
    assert "sesame" not in str(e.value)


def test_a_server_that_never_answers_is_unavailable_in_time() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        store = open_store(f"postgresql://me:sesame@127.0.0.1:{port}/pay?connect_timeout=2")
        with pytest.raises(LedgerUnavailable, match="cannot be reached"):
            store.read([A])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("semel:", "nobody_here:"), "authentication failed"),
        (("semel:", "semel:wrong"), "authentication failed"),
        (("/postgres", "/no_such_database"), "does not exist"),
    ],
)
def test_a_refusal_is_a_matter_of_configuration(
    postgres: PostgresServer, change: tuple[str, str], says: str
) -> None:
    url = postgres.url().replace(*change)
    with pytest.raises(ConfigurationError, match=says) as error:
        open_store(url).read([A])
    assert postgres.password not in str(error.value)
    assert "wrong" not in str(error.value)


@pytest.mark.parametrize("bad", ["postgresql://u:sesame@[h/d", "postgresql://u:sesame@h/d?x=1"])
def test_a_url_that_postgresql_does_not_understand_is_refused(bad: str) -> None:
    with pytest.raises(ConfigurationError, match="postgresql://user:password@") as error:
        open_store(bad)
    assert "sesame" not in str(error.value)


def test_a_user_who_may_not_create_the_table_is_told_so(
    postgres: PostgresServer, database: str
) -> None:
    postgres.execute("create role poor login password 'poor'")
    url = postgres.url(database).replace(postgres.url().split("@")[0], "postgresql://poor:poor")
    with pytest.raises(ConfigurationError, match="grant"):
        open_store(url).commit([], [Put(A, ONE)])
    postgres.execute("drop role poor")


def test_a_standby_is_unavailable(postgres: PostgresServer, database: str) -> None:
    postgres.execute(f"alter database {database} set default_transaction_read_only = on")
    with pytest.raises(LedgerUnavailable, match="read-only"):
        open_store(postgres.url(database)).commit([], [Put(A, ONE)])


def test_a_newer_ledger_asks_for_a_newer_semel(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(make_key("semel", "schema"), payloads.dump_payload({"version": 2}))])
    with pytest.raises(ConfigurationError, match="upgrade semel"):
        open_store(postgres.url(database)).read([A])


def test_a_table_that_is_dropped_while_in_use_is_a_matter_of_configuration(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    postgres.execute("drop table semel_ledger", database)
    with pytest.raises(ConfigurationError, match="lost its table"):
        store.commit([], [Put(A, ONE)])


def test_the_table_has_three_columns_that_a_person_can_read(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    store.commit([], [Put(A, ONE)])
    assert postgres.execute("select * from semel_ledger order by tbl", database) == [
        ("semel", "schema", '{"version":1}'),
        ("t", "a", '{"n":1}'),
    ]


def test_a_conflict_keeps_the_connection(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    idle = store._idle._connections  # type: ignore[attr-defined]
    [before] = idle
    for _ in range(3):
        with pytest.raises(Conflict):
            store.commit([Absent(A)], [Put(A, TWO)])
    assert idle == [before]


def test_without_its_driver_the_store_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "semel.ledger.store.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'semel\[postgres\]'"):
        open_store("postgresql://h/d")


def test_no_commit_ever_waits_for_one_that_waits_for_it(
    postgres: PostgresServer, database: str, store: Store
) -> None:
    def turn(number: int) -> None:
        mine, its = (A, B) if number % 2 else (B, A)
        with suppress(Conflict):
            store.commit([Equals(mine, ONE)], [Put(its, ONE), Sweep("t", "swept/")])

    store.commit([], [Put(A, ONE), Put(B, ONE)])
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(turn, range(400)))
    store.close()
    postgres.execute("select pg_stat_force_next_flush()", database)
    found = postgres.execute(
        f"select deadlocks from pg_stat_database where datname = '{database}'", database
    )
    assert found == [(0,)]
