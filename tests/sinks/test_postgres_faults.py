"""PostgreSQL goes away, is slow, refuses or loses its reply: each is called by its name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.events import Minibatch
from semel.sinks import Retry
from semel.sinks.postgres.errors import Phase, classify
from semel.verify.servers.postgres import PostgresServer
from semel.verify.servers.proxy import TcpProxy
from support.sinks.postgres_pipeline import (
    PostgresDesk,
    batch,
    chunk_of,
    once,
    progress_of,
)

COMMIT = b"commit\0"


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    made.execute("create table payments (customer text, id bigint primary key, amount bigint)")
    yield made
    made.close()


@pytest.fixture
def wire(postgres: PostgresServer) -> Iterator[TcpProxy]:
    made = TcpProxy(postgres.port)
    yield made
    made.close()


def ids_in(desk: PostgresDesk) -> list[int]:
    return [each for (each,) in desk.execute("select id from payments order by ctid")]


def through(desk: PostgresDesk, wire: TcpProxy) -> str:
    """The same database, behind the wire."""
    head, _, tail = desk.url.rpartition("@")
    return f"{head}@127.0.0.1:{wire.port}/{tail.rpartition('/')[2]}"


# -- the connection


@pytest.mark.parametrize("word", [b"pg_try_advisory", b'into "public".semel', b"copy ", COMMIT])
def test_a_connection_lost_before_commit_was_sent_is_not_delivered_and_the_session_goes_on(
    desk: PostgresDesk, wire: TcpProxy, word: bytes
) -> None:
    session = desk.open(desk.sink(table="payments", url=through(desk, wire)))
    wire.rule = once(word, "cut")
    with pytest.raises((NotDelivered, OutcomeUnknown)) as lost:
        desk.deliver(session, chunk_of(batch([1, 2])))
    # To say COMMIT into a wire that is cut just then is unknown; before it, it is not.
    assert isinstance(lost.value, OutcomeUnknown) == (word == COMMIT)
    assert ids_in(desk) == []
    desk.deliver(session, chunk_of(batch([1, 2])))
    assert ids_in(desk) == [1, 2]


def test_a_reply_to_commit_that_is_lost_is_unknown_and_the_row_tells(
    desk: PostgresDesk, wire: TcpProxy
) -> None:
    sink = desk.sink(table="payments", url=through(desk, wire))
    session = desk.open(sink)
    wire.rule = once(COMMIT, "lose")
    with pytest.raises(OutcomeUnknown, match="COMMIT"):
        desk.deliver(session, chunk_of(batch([1, 2])))
    assert ids_in(desk) == [1, 2]
    stood = desk.open(sink).take_over()
    assert stood is not None
    assert stood.done == 2


@pytest.mark.rows("S17", "O23")
@pytest.mark.parametrize("what", ["cut", "lose"])
@pytest.mark.parametrize("word", [b"copy ", COMMIT])
def test_the_engine_delivers_once_whatever_the_wire_does(
    desk: PostgresDesk, wire: TcpProxy, what: str, word: bytes
) -> None:
    sink = desk.sink(table="payments", url=through(desk, wire), chunk_rows=4)
    first, third = once(word, what), once(word, what, number=3)
    wire.rule = lambda said: what if what in (first(said), third(said)) else "pass"
    desk.minibatch(sink, [batch(range(30))])
    assert ids_in(desk) == list(range(30))
    assert desk.parked() == []


def test_a_server_that_restarts_half_way_is_waited_for(
    desk: PostgresDesk, postgres: PostgresServer
) -> None:
    session = desk.open(desk.sink(table="payments"))
    desk.deliver(session, chunk_of(batch([1])))
    postgres.stop()
    try:
        with pytest.raises(NotDelivered):
            desk.deliver(session, chunk_of(batch([2]), 1))
        with pytest.raises(NotDelivered, match="cannot be reached") as away:
            desk.deliver(session, chunk_of(batch([2]), 1))
        assert PostgresServer.password not in str(away.value)
        with pytest.raises(NotDelivered, match="cannot be reached"):
            desk.open(desk.sink(table="payments"))
        with pytest.raises(NotDelivered):
            desk.minibatch(
                desk.sink(table="payments", retry=replace(session._sink.retry, for_s=0.1)),
                [batch([5])],
            )
    finally:
        postgres.start()
    desk.deliver(session, chunk_of(batch([2]), 1))
    assert ids_in(desk) == [1, 2]
    assert desk.parked() == []


def test_a_backend_that_is_ended_from_outside_is_not_delivered(desk: PostgresDesk) -> None:
    sink = desk.sink(each="select pg_sleep(5)")
    session = desk.open(sink)
    ended = threading.Timer(
        0.3,
        lambda: desk.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where query ~ 'pg_sleep'"
            " and pid <> pg_backend_pid()"
        ),
    )
    ended.start()
    with pytest.raises(NotDelivered, match="went away"):  # in a pipeline the last word is lost
        desk.deliver(session, chunk_of(batch([1])))
    ended.join()


def test_a_staging_table_that_went_with_its_connection_is_made_again(desk: PostgresDesk) -> None:
    statement = "insert into payments select customer, id, amount from semel_batch"
    session = desk.open(desk.sink(apply=statement))
    desk.deliver(session, chunk_of(batch([1])))
    desk.execute(
        "select pg_terminate_backend(pid, 2000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    with pytest.raises(NotDelivered):
        session.take_over()
    assert session.take_over() is not None
    desk.deliver(session, chunk_of(batch([2]), 1))
    assert ids_in(desk) == [1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("semel:p", "semel:x"), "authentication failed"),
        (lambda url: url + "_not", "does not exist"),
        (lambda url: url.replace("semel:", "nobody:"), "authentication failed"),
        (lambda url: url + "?sslmode=strange", "sslmode"),
        (lambda url: url.replace("p%2Fw", "%zzgeheim"), "is not a URL that can be read"),
    ],
)
def test_a_wrong_address_is_told_without_the_password(
    desk: PostgresDesk, change: Callable[[str], str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        desk.open(desk.sink(table="payments", url=change(desk.url)))
    assert "geheim" not in str(refused.value)
    assert "100%25" not in str(refused.value)


def test_a_server_without_a_connection_left_is_waited_for(
    desk: PostgresDesk, request: pytest.FixtureRequest
) -> None:
    role = f"few_{desk.url[-8:]}"
    desk.execute(f"create role {role} login superuser password 'geheim' connection limit 0")
    request.addfinalizer(lambda: desk.execute(f"drop owned by {role}; drop role {role}"))
    desk.execute(f"alter role {role} nosuperuser")
    few = desk.url.replace(desk.url.split("@")[0], f"postgresql://{role}:geheim")
    with pytest.raises(NotDelivered, match="too many connections"):
        desk.open(desk.sink(table="payments", url=few))


# -- time


def test_a_statement_that_takes_too_long_is_rolled_back_and_not_delivered(
    desk: PostgresDesk,
) -> None:
    statement = "with a as (select pg_sleep(%(amount)s)) insert into payments select 'x', 1 from a"
    session = desk.open(desk.sink(each=statement, deadline_s=0.3))
    with pytest.raises(NotDelivered, match="longer than deadline_s"):
        desk.deliver(session, chunk_of(batch([1])))
    assert ids_in(desk) == []


def test_a_lock_that_is_not_given_in_time_is_not_delivered(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments", deadline_s=0.3))
    with psycopg.connect(desk.url) as other:
        other.execute("lock table payments")
        with pytest.raises(NotDelivered, match="did not get a lock"):
            desk.deliver(session, chunk_of(batch([1])))
    desk.deliver(session, chunk_of(batch([1])))
    assert ids_in(desk) == [1]


@pytest.mark.parametrize("word", [b"copy ", COMMIT])
def test_a_frozen_zombie_cannot_hold_the_row(
    desk: PostgresDesk, wire: TcpProxy, word: bytes
) -> None:
    """No timeout of PostgreSQL ends a COPY whose client says nothing more."""
    zombie = desk.open(desk.sink(table="payments", url=through(desk, wire), deadline_s=60))
    seen = {"copying": False}

    def freeze(said: bytes) -> str:
        """Hold what follows COPY, when the server already waits for the rows; or COMMIT."""
        if word == COMMIT:
            return "hold" if word in said else "pass"
        if b"from stdin" in said:
            seen["copying"] = True
            return "pass"
        return "hold" if seen["copying"] else "pass"

    wire.rule = freeze
    said: list[BaseException] = []

    def deliver() -> None:
        try:
            desk.deliver(zombie, chunk_of(batch([1, 2])))
        except SemelError as error:
            said.append(error)

    frozen = threading.Thread(target=deliver)
    frozen.start()
    assert wire.held.wait(10)
    time.sleep(0.1)
    sink = desk.sink(table="payments")
    began = time.monotonic()
    later = desk.open(sink, task=2)
    with pytest.raises(NotDelivered, match="its connection was ended"):
        later.take_over()
    assert later.take_over() is None
    assert time.monotonic() - began < 8
    desk.deliver(later, chunk_of(batch([1, 2])), task=2)
    wire.rule = lambda _: "pass"
    wire.released.set()
    frozen.join(10)
    [error] = said
    assert isinstance(error, OutcomeUnknown if word == COMMIT else NotDelivered)
    with pytest.raises(Fenced):
        desk.deliver(zombie, chunk_of(batch([1, 2])))
    assert ids_in(desk) == [1, 2]


def test_a_zombie_that_is_fenced_already_ends_nobodys_connection(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    zombie, later = desk.open(sink), desk.open(sink, task=2)
    later.take_over()
    with later._transaction(), pytest.raises(Fenced):
        zombie.take_over()
    desk.deliver(later, chunk_of(batch([1])), task=2)


def test_a_zombie_of_the_minibatch_before_ends_no_connection_of_a_later_attempt(
    desk: PostgresDesk,
) -> None:
    sink = desk.sink(table="payments")
    zombie, later = desk.open(sink), desk.open(sink, task=2, minibatch=Minibatch(1, 1))
    zombie.take_over()
    with later._transaction(), pytest.raises(Fenced, match=r"attempt 1\.2 is writing there"):
        zombie.take_over()  # later's name is not in the row: this is its first transaction
    desk.deliver(later, chunk_of(batch([1])), task=2, minibatch=Minibatch(1, 1))
    assert ids_in(desk) == [1]


@pytest.mark.parametrize(
    "way", [{"table": "payments"}, {"each": "select 1"}, {"apply": "select 1"}]
)
def test_a_session_that_stands_idle_in_its_transaction_is_ended_by_the_server(
    desk: PostgresDesk, wire: TcpProxy, way: dict[str, str]
) -> None:
    session = desk.open(desk.sink(**way, url=through(desk, wire), deadline_s=0.3))
    wire.rule = lambda said: "hold" if COMMIT in said else "pass"
    timer = threading.Timer(1.0, wire.released.set)
    timer.start()
    with pytest.raises(OutcomeUnknown, match="idle-in-transaction"):
        desk.deliver(session, chunk_of(batch([1])))
    assert desk.open(desk.sink(table="payments")).take_over() is None


def test_a_session_that_stands_idle_before_its_effect_is_ended_too(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments", deadline_s=0.3))

    def idle() -> None:
        with session._transaction():
            time.sleep(0.8)

    with pytest.raises(OutcomeUnknown, match="idle-in-transaction"):
        idle()


def test_a_wait_for_a_standby_is_not_cut_short_and_taken_for_a_commit(tmp_path: Path) -> None:
    """A COMMIT whose wait is cancelled is answered with success; its timeouts are over by then."""
    server = PostgresServer(durable=False)
    desk = PostgresDesk(server.url(), tmp_path)
    try:
        desk.execute("create table payments (customer text, id bigint, amount bigint)")
        desk.open(desk.sink(table="payments"))
        desk.execute("alter system set synchronous_standby_names = 'nobody'")
        desk.execute("select pg_reload_conf()")
        session = desk.open(desk.sink(table="payments", deadline_s=0.3))
        delivered = threading.Event()

        def deliver() -> None:
            desk.deliver(session, chunk_of(batch([1])))
            delivered.set()

        thread = threading.Thread(target=deliver)
        thread.start()
        assert not delivered.wait(1.5)
        desk.execute("alter system reset synchronous_standby_names")
        desk.execute("select pg_reload_conf()")
        assert delivered.wait(10)
        thread.join()
        assert ids_in(desk) == [1]
    finally:
        desk.close()
        server.close()


# -- transactions among others


def test_a_deadlock_is_rolled_back_and_delivered_by_the_next_try(desk: PostgresDesk) -> None:
    desk.execute("create table accounts (id bigint primary key, balance bigint)")
    desk.execute("insert into accounts values (1, 0), (2, 0)")
    desk.execute(f"alter database {desk.url.rsplit('/', 1)[1]} set deadlock_timeout = '50ms'")
    turn = "update accounts set balance = balance + 1 where id = {}"
    session = desk.open(desk.sink(apply=[turn.format(1), "select pg_sleep(0.3)", turn.format(2)]))
    outcome: list[DeliveryError] = []

    def deliver() -> None:
        try:
            desk.deliver(session, chunk_of(batch([1])))
        except DeliveryError as error:
            outcome.append(error)

    with psycopg.connect(desk.url) as other:
        other.execute("set deadlock_timeout = '10s'")  # so that it is we who give way
        other.execute(turn.format(2).encode())
        thread = threading.Thread(target=deliver)
        thread.start()
        time.sleep(0.15)
        other.execute(turn.format(1).encode())
        thread.join()
        other.rollback()
    [error] = outcome
    assert isinstance(error, NotDelivered)
    assert "deadlock" in str(error)
    desk.deliver(session, chunk_of(batch([1])))
    assert desk.execute("select balance from accounts") == [(1,), (1,)]


def test_a_constraint_that_is_checked_at_commit_rejects_and_nothing_arrives(
    desk: PostgresDesk,
) -> None:
    desk.execute(
        "create table refs (id bigint references payments (id) deferrable initially deferred)"
    )
    session = desk.open(desk.sink(table="refs", columns=["id"]))
    with pytest.raises(Rejected, match="foreign key"):
        desk.deliver(session, chunk_of(batch([1])))
    assert desk.execute("select count(*) from refs") == [(0,)]
    desk.execute("insert into payments values ('c1', 1, 1)")
    desk.deliver(session, chunk_of(batch([1])))


def raised(desk: PostgresDesk, state: str) -> psycopg.Error:
    """The error that the server raises with this SQLSTATE."""
    try:
        desk.execute(f"do $$ begin raise sqlstate '{state}'; end $$")
    except psycopg.Error as error:
        return error
    raise AssertionError(state)


def test_every_class_of_errors_has_its_name(desk: PostgresDesk) -> None:
    names = {
        NotDelivered: "40001 40P01 55P03 55006 57014 57P01 57P03 53100 53200 53300 53400 08006"
        " 25006 25P03 25P04 58030 XX000 XX001 MY001",
        Rejected: "22001 22003 22007 22012 22021 22P02 22P05 23502 23503 23505 23514 23P01 44000"
        " 21000 P0001 54000",
        ConfigurationError: "42P01 42703 42501 42601 42804 42883 3F000 3D000 28000 0A000 2D000"
        " 25001 55000 22P04 26000",
    }
    for kind, states in names.items():
        for state in states.split():
            error = raised(desk, state)
            assert type(classify(error, Phase.EFFECT, "here")) is kind, state
            assert type(classify(error, Phase.COMMIT, "here")) is kind, state  # ERROR: it answers
            own = classify(error, Phase.ROW, "here")
            assert type(own) is (NotDelivered if kind is Rejected else kind), state


def test_what_does_not_answer_commit_is_unknown(desk: PostgresDesk) -> None:
    fatal = None
    with psycopg.connect(desk.url, autocommit=True) as connection:
        desk.execute(f"select pg_terminate_backend({connection.info.backend_pid}, 2000)")
        try:
            connection.execute("select 1")
        except psycopg.Error as error:
            fatal = error
    assert fatal is not None
    assert fatal.sqlstate == "57P01"
    assert type(classify(fatal, Phase.EFFECT, "here")) is NotDelivered
    assert type(classify(fatal, Phase.COMMIT, "here")) is OutcomeUnknown
    nothing = psycopg.OperationalError("consuming input failed")
    assert type(classify(nothing, Phase.COMMIT, "here")) is OutcomeUnknown
    assert type(classify(nothing, Phase.EFFECT, "here")) is NotDelivered


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


def test_a_commit_that_waits_for_a_standby_is_unknown_and_then_asked_for(
    desk: PostgresDesk, postgres: PostgresServer
) -> None:
    sink = desk.sink(table="payments", deadline_s=1.0)
    session = desk.open(sink)
    session.take_over()
    chunk = chunk_of(batch(range(3)))
    with standby_away(postgres):
        began = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="COMMIT was not answered within 4 s"):
            session.deliver_with(chunk, progress_of(chunk))
        assert time.monotonic() - began < 8.0
        for _ in range(3):  # a reader sees nothing that the standby does not have
            with pytest.raises((NotDelivered, OutcomeUnknown)):
                desk.open(sink, task=2).take_over()
    told = desk.open(sink, task=3).take_over()
    assert told is not None
    assert told.done == 3
    assert ids_in(desk) == [0, 1, 2]


def test_a_pipeline_goes_on_when_the_standby_is_back(
    desk: PostgresDesk, postgres: PostgresServer
) -> None:
    sink = desk.sink(table="payments", deadline_s=1.0, chunk_rows=2, retry=Retry(0.1, 1.0, 60.0))
    delivering = threading.Thread(target=lambda: desk.minibatch(sink, [batch(range(5))]))
    with standby_away(postgres):
        delivering.start()
        delivering.join(6.0)
        assert delivering.is_alive()
    delivering.join(30.0)
    assert not delivering.is_alive()
    assert sorted(ids_in(desk)) == [0, 1, 2, 3, 4]
