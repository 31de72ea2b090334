"""The PostgreSQL sink keeps the contract: the row and the effect are one, and the row fences."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Fenced, NotDelivered, Rejected
from semel.events import Attempt, EntityIds, Minibatch
from semel.protocol import Capability, OnReject
from semel.sinks import Progress, Target, TransactionalSession
from semel.sinks.postgres import Postgres
from semel.verify.servers.postgres import PostgresServer
from support.sinks.postgres_pipeline import GIVEN, PostgresDesk, batch, chunk_of, progress_of

NEXT = Minibatch(1, 1)
BOOK = (
    "insert into balances select customer, sum(amount) from semel_batch group by 1"
    " on conflict (customer) do update set balance = balances.balance + excluded.balance"
)
ADD = (
    "insert into balances values (%(customer)s, %(amount)s)"
    " on conflict (customer) do update set balance = balances.balance + excluded.balance"
)


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    made.execute("create table payments (customer text, id bigint primary key, amount bigint)")
    made.execute("create table balances (customer text primary key, balance bigint not null)")
    yield made
    made.close()


def ids_in(desk: PostgresDesk) -> list[int]:
    return [each for (each,) in desk.execute("select id from payments order by ctid")]


def balances_in(desk: PostgresDesk) -> dict[str, int]:
    return dict(desk.execute("select customer, balance::bigint from balances"))


WAYS = [{"table": "payments"}, {"apply": BOOK}, {"each": ADD}]


# -- what it is


@pytest.mark.rows("S17", "A14", "O23")
def test_it_is_a_transactional_sink_that_travels(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments", columns={"id": "id"})
    assert sink.capability is Capability.TRANSACTIONAL
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert isinstance(desk.open(sink), TransactionalSession)
    assert sink.describe() == {"capability": "transactional", "progress": "public.semel_progress"}


def test_no_word_of_it_tells_the_password(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    secret = "p%2Fw%3A100%25%40semel"
    assert secret in sink.url
    for shown in (repr(sink), sink.where, str(sink.describe())):
        assert secret not in shown
        assert PostgresServer.password not in shown


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "one of table=, apply= and each="),
        ({"table": "t", "each": "select 1"}, "apply= and each=; given: table and each"),
        ({"each": "select 1", "columns": ["a"]}, "columns= goes with table="),
        ({"table": "t", "columns": "a"}, "columns= must be a list of names"),
        ({"table": "t", "url": "host=h password=geheim"}, "the url is not the URL"),
        ({"table": "t", "url": "mysql://u:geheim@h/d"}, "is not the URL of a PostgreSQL"),
        ({"table": "t", "deadline_s": 0}, "must be greater than 0"),
        ({"table": "t", "schema": ""}, "not a valid schema name"),
        ({"apply": " -- so\n/* it */ Commit"}, "begins with COMMIT"),
        ({"apply": ("select 1", "rollback")}, "begins with ROLLBACK"),
        ({"each": "  "}, "is not a statement"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(
    settings: dict[str, object], said: str
) -> None:
    given = {"name": "out", "url": "postgresql://u:geheim@h/d", **settings}
    with pytest.raises(ConfigurationError) as refused:
        Postgres(**given)  # type: ignore[arg-type]
    assert said in str(refused.value)
    assert "geheim" not in str(refused.value)


# -- the row


def test_the_first_take_over_finds_nothing_and_names_the_attempt(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments"), task=4)
    assert session.take_over() is None
    row = desk.execute("select generation, batch, run, task, done from semel_progress")
    assert row == [(1, 0, 1, 4, 0)]


@pytest.mark.rows("O23", "A14")
def test_a_take_over_tells_what_stood_there_and_keeps_it(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    first, second = chunk_of(batch([1, 2, 3])), chunk_of(batch([4, 5]), 3)
    session = desk.open(sink)
    desk.deliver(session, first)
    desk.deliver(session, second)
    later = desk.open(sink, task=2)
    both = progress_of(first).ids | progress_of(second).ids
    told = replace(progress_of(second), ids=both)
    assert later.take_over() == told
    assert later.take_over() == replace(told, attempt=Attempt(1, 2))


def test_a_take_over_by_a_new_minibatch_tells_the_old_one_and_starts_from_nothing(
    desk: PostgresDesk,
) -> None:
    sink = desk.sink(table="payments")
    chunk = chunk_of(batch([1, 2, 3]))
    desk.deliver(desk.open(sink), chunk)
    later = desk.open(sink, task=2, minibatch=NEXT)
    assert later.take_over() == progress_of(chunk)
    assert later.take_over() == Progress(NEXT, Attempt(1, 2), osn=4)
    assert desk.execute("select count(*) from semel_progress_ids") == [(0,)]


@pytest.mark.parametrize("way", WAYS)
def test_a_later_attempt_fences_an_earlier_one_which_then_changes_nothing(
    desk: PostgresDesk, way: dict[str, str]
) -> None:
    sink = desk.sink(**way)
    zombie, later = desk.open(sink), desk.open(sink, task=2)
    zombie.take_over()
    later.take_over()
    with pytest.raises(Fenced, match=r"names attempt 1\.2"):
        desk.deliver(zombie, chunk_of(batch([1])))
    with pytest.raises(Fenced):
        zombie.take_over()
    assert ids_in(desk) == []
    assert balances_in(desk) == {}
    desk.deliver(later, chunk_of(batch([1])), task=2)


def test_an_earlier_run_and_an_earlier_minibatch_are_fenced(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    desk.open(sink, minibatch=NEXT).take_over()
    with pytest.raises(Fenced):
        desk.open(sink, task=9).take_over()
    with pytest.raises(Fenced):
        desk.deliver(desk.open(sink, task=9), chunk_of(batch([1])), task=9)
    assert ids_in(desk) == []


def test_a_call_that_comes_late_is_refused_because_the_row_is_beyond_it(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments"))
    desk.deliver(session, chunk_of(batch([1, 2])))
    with pytest.raises(Fenced, match="beyond 0"):
        desk.deliver(session, chunk_of(batch([8, 9])))
    assert ids_in(desk) == [1, 2]


def test_partitions_and_pipelines_have_rows_of_their_own(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    for number, (pipeline, partition) in enumerate((("pay", "0"), ("pay", "1"), ("other", "0"))):
        target = Target(pipeline, "out", Minibatch(1, 0), partition, Attempt(1, 1))
        session = sink.open(target)
        desk.made.append(session)
        desk.deliver(session, chunk_of(batch([number])))
    assert desk.execute("select count(*) from semel_progress") == [(3,)]
    assert ids_in(desk) == [0, 1, 2]


def test_ids_are_added_a_row_per_chunk_and_go_with_the_minibatch(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    session = desk.open(sink)
    for start in range(0, 30, 10):
        desk.deliver(session, chunk_of(batch(range(start, start + 10)), start))
    assert desk.execute("select done from semel_progress_ids order by 1") == [(10,), (20,), (30,)]
    told = desk.open(sink).take_over()
    assert told is not None
    assert told.ids == chunk_of(batch(range(30))).rows.id_sets()
    chunk = chunk_of(batch([40]))
    desk.deliver(desk.open(sink, task=2, minibatch=NEXT), chunk, task=2, minibatch=NEXT)
    assert desk.execute("select done from semel_progress_ids") == [(1,)]


def test_identities_that_need_no_ids_write_none(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments"))
    chunk = chunk_of(batch([1]))
    session.deliver_with(chunk, replace(progress_of(chunk), ids=EntityIds.EMPTY))
    assert desk.execute("select count(*) from semel_progress_ids") == [(0,)]


def test_ids_that_somebody_left_without_their_row_are_not_in_the_way(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    desk.deliver(desk.open(sink), chunk_of(batch([1])))
    desk.execute("delete from semel_progress")
    desk.deliver(desk.open(sink), chunk_of(batch([2])))
    assert desk.execute("select count(*) from semel_progress_ids") == [(1,)]


@pytest.mark.rows("S17")
@pytest.mark.parametrize("way", WAYS)
def test_an_effect_that_fails_leaves_the_row_where_it_was(
    desk: PostgresDesk, way: dict[str, str]
) -> None:
    desk.execute("alter table payments add check (amount < 100)")
    desk.execute("alter table balances add check (balance < 100)")
    session = desk.open(desk.sink(**way))
    desk.deliver(session, chunk_of(batch([1])))
    before = desk.execute("select * from semel_progress")
    with pytest.raises(Rejected, match="violates check constraint"):
        desk.deliver(session, chunk_of(batch([2, 13]), 1))
    assert desk.execute("select * from semel_progress") == before
    desk.deliver(session, chunk_of(batch([2]), 1))
    assert desk.execute("select done from semel_progress") == [(2,)]


# -- the tables


def test_twenty_that_come_at_once_create_the_tables_together(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments", schema="public")
    errors: list[BaseException] = []
    gate = threading.Barrier(20)

    def come(number: int) -> None:
        gate.wait()
        try:
            desk.open(sink, task=number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_tables_stand_in_the_schema_that_is_named(desk: PostgresDesk) -> None:
    desk.execute('create schema "My ""Schema"')
    desk.open(desk.sink(table="payments", schema='My "Schema')).take_over()
    assert desk.execute('select count(*) from "My ""Schema".semel_progress') == [(1,)]


def test_a_user_who_may_not_create_is_told_what_somebody_else_has_to_run(
    desk: PostgresDesk, request: pytest.FixtureRequest
) -> None:
    role = f"low_{desk.url[-8:]}"
    desk.execute(f"create role {role} login password 'geheim'")
    request.addfinalizer(lambda: desk.execute(f"drop owned by {role}; drop role {role}"))
    low = desk.url.replace(desk.url.split("@")[0], f"postgresql://{role}:geheim")
    with pytest.raises(ConfigurationError) as refused:
        desk.open(desk.sink(table="payments", url=low))
    told = str(refused.value)
    assert "geheim" not in told
    ddl = told[told.index("create table if not exists") :]
    desk.execute(ddl)
    desk.execute(f"grant select, insert, update, delete on semel_progress to {role}")
    with pytest.raises(ConfigurationError, match=r"permission denied .*semel_progress_ids"):
        desk.deliver(desk.open(desk.sink(table="payments", url=low)), chunk_of(batch([1])))
    desk.execute(f"grant select, insert, update, delete on semel_progress_ids to {role}")
    with pytest.raises(ConfigurationError, match="permission denied for table payments"):
        desk.deliver(desk.open(desk.sink(table="payments", url=low)), chunk_of(batch([1])))
    desk.execute(f"grant insert on payments to {role}")
    desk.deliver(desk.open(desk.sink(table="payments", url=low)), chunk_of(batch([1])))
    assert ids_in(desk) == [1]


# -- the three ways


@pytest.mark.rows("S17")
def test_append_copies_the_columns_by_name_whatever_their_order_or_case(desk: PostgresDesk) -> None:
    desk.execute('create table "Wide" (other int default 7, amount bigint, "Id" bigint, c text)')
    sink = desk.sink(table='"Wide"', columns={"id": "ID", "amount": "amount"})
    desk.deliver(desk.open(sink), chunk_of(batch([1, 2])))
    assert desk.execute('select * from "Wide"') == [(7, 10, 1, None), (7, 20, 2, None)]


def test_append_takes_all_columns_or_those_that_are_listed(desk: PostgresDesk) -> None:
    desk.deliver(desk.open(desk.sink(table="payments")), chunk_of(batch([1])))
    sink = desk.sink(table="public.payments", columns=["id"])
    desk.deliver(desk.open(sink), chunk_of(batch([2]), 1))
    assert desk.execute("select * from payments") == [("c1", 1, 10), (None, 2, None)]


def test_apply_sees_the_chunk_as_a_table_with_the_types_of_the_frame(desk: PostgresDesk) -> None:
    desk.execute("create table seen (shape text, entity text, event bigint, osn bigint)")
    look = (
        "insert into seen select format('%s %s', pg_typeof(amount), pg_typeof(customer)),"
        " semel_entity, semel_event, semel_osn from semel_batch order by semel_osn"
    )
    session = desk.open(desk.sink(apply=look))
    desk.deliver(session, chunk_of(batch([1, 5])))
    desk.deliver(session, chunk_of(batch([7]), 2))
    assert desk.execute("select * from seen") == [
        ("bigint text", "c1", 1, 1),
        ("bigint text", "c2", 5, 2),
        ("bigint text", "c1", 7, 3),
    ]


def test_apply_adds_up_what_one_update_would_do_only_once(desk: PostgresDesk) -> None:
    desk.execute("insert into balances values ('c0', 0), ('c1', 0), ('c2', 0)")
    once = "update balances b set balance = balance + s.amount from {} s where b.customer = s.{}"
    added = "(select customer, sum(amount) amount from semel_batch group by 1)"
    session = desk.open(desk.sink(apply=once.format(added, "customer")))
    desk.deliver(session, chunk_of(batch(range(9))))
    assert balances_in(desk) == {"c0": 90, "c1": 120, "c2": 150}
    wrong = desk.open(desk.sink(apply=once.format("semel_batch", "customer"), name="wrong"))
    desk.deliver(wrong, chunk_of(batch(range(9))))
    assert sum(balances_in(desk).values()) < 2 * 360


def test_apply_runs_several_statements_in_their_order_in_one_transaction(
    desk: PostgresDesk,
) -> None:
    first = "insert into payments select customer, id, amount from semel_batch"
    desk.execute("insert into balances values ('sum', 0)")
    second = "update balances set balance = (select sum(amount) from payments)"
    session = desk.open(desk.sink(apply=[first, second]))
    desk.deliver(session, chunk_of(batch([1, 2])))
    assert balances_in(desk) == {"sum": 30}
    broken = desk.open(desk.sink(apply=[first, "insert into balances values ('sum', null)"]))
    with pytest.raises(Rejected, match="null value"):
        desk.deliver(broken, chunk_of(batch([3]), 2))
    assert ids_in(desk) == [1, 2]


def test_several_commands_in_one_statement_are_refused(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(apply="delete from payments; commit"))
    with pytest.raises(ConfigurationError, match="multiple commands"):
        desk.deliver(session, chunk_of(batch([1])))
    assert desk.execute("select count(*) from semel_progress") == [(0,)]


def test_a_procedure_cannot_commit_for_us(desk: PostgresDesk) -> None:
    desk.execute("create procedure sly() language plpgsql as $$ begin commit; end $$")
    for way in ({"apply": "call sly()"}, {"each": "call sly()"}):
        with pytest.raises(ConfigurationError, match="invalid transaction termination"):
            desk.deliver(desk.open(desk.sink(**way)), chunk_of(batch([1])))
    assert desk.execute("select count(*) from semel_progress") == [(0,)]


def test_a_frame_whose_columns_changed_gets_a_new_staging_table(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(apply=BOOK))
    desk.deliver(session, chunk_of(batch([1])))
    desk.deliver(session, chunk_of(batch([4], more=["x"]), 1))
    assert balances_in(desk) == {"c1": 50}


def test_each_runs_a_statement_per_event_in_order_with_its_columns(desk: PostgresDesk) -> None:
    desk.execute("create table log (at serial, entity text, event bigint, osn bigint, key text)")
    say = (
        "insert into log (entity, event, osn, key) select %(semel_entity)s, %(semel_event)s,"
        " %(semel_osn)s, %(semel_key)s where 100 %% 7 = 2"
    )
    desk.deliver(desk.open(desk.sink(each=say)), chunk_of(batch(range(200))))
    rows = desk.execute("select event, osn from log order by at")
    assert rows == [(number, number + 1) for number in range(200)]
    assert desk.execute("select key from log where event = 7") == [("pay/out/c1/7",)]


def test_each_names_a_column_that_the_frame_does_not_have(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(each="select %(nobody)s::int"))
    with pytest.raises(ConfigurationError, match="nobody"):
        desk.deliver(session, chunk_of(batch([1])))


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ({"table": "nowhere"}, "table 'nowhere' does not exist"),
        ({"table": "payments", "columns": {"id": "ident"}}, "has no column 'ident'"),
        ({"table": "payments", "columns": ["ident"]}, "but the DataFrame has customer"),
        ({"table": "forgetful"}, "forgetful is unlogged"),
        ({"table": "parted"}, "a_part is unlogged"),
        ({"table": "spread"}, "far_part is a foreign table"),
        ({"apply": "update nowhere set a = 1"}, "does not exist"),
        ({"each": "insert into payments (nowhere) values (%(id)s)"}, "does not exist"),
        ({"apply": "vacuum payments"}, "cannot run inside a transaction block"),
    ],
)
def test_a_destination_that_does_not_fit_stops_the_pipeline_and_parks_nothing(
    desk: PostgresDesk, way: dict[str, str], said: str
) -> None:
    desk.execute("create unlogged table forgetful (id bigint)")
    desk.execute("create table parted (id bigint) partition by range (id)")
    desk.execute("create unlogged table a_part partition of parted default")
    desk.execute("create foreign data wrapper far")
    desk.execute("create server away foreign data wrapper far")
    desk.execute("create table spread (id bigint) partition by range (id)")
    desk.execute("create foreign table far_part partition of spread default server away")
    with pytest.raises(ConfigurationError, match=said):
        desk.minibatch(desk.sink(**way), [batch(range(10))])
    assert desk.parked() == []
    assert PostgresServer.password not in desk.ledger_text()


# -- through the engine


@pytest.mark.rows("N8")
def test_a_chunk_is_visible_to_others_while_the_minibatch_is_still_delivered(
    desk: PostgresDesk,
) -> None:
    visible: list[list[int]] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for start in (0, 2, 4):
            visible.append(ids_in(desk))
            yield batch(range(start, start + 2))

    desk.minibatch(desk.sink(table="payments", chunk_rows=2), rows())
    assert visible == [[], [0, 1], [0, 1, 2, 3]]


@pytest.mark.rows("S17", "O23")
@pytest.mark.parametrize("way", WAYS)
def test_minibatches_run_again_by_another_run_deliver_nothing_twice(
    desk: PostgresDesk, way: dict[str, str]
) -> None:
    sink = desk.sink(**way, chunk_rows=7)
    desk.minibatch(sink, [batch(range(50))])
    desk.minibatch(sink, [batch(range(50))], nonce="n2")
    desk.minibatch(sink, [batch(range(50, 60))], 1, nonce="n2")
    if "table" in way:
        assert ids_in(desk) == list(range(60))
    else:
        assert sum(balances_in(desk).values()) == sum(range(60)) * 10


def test_the_ledger_may_be_in_the_same_database(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments", chunk_rows=7)
    for _ in range(2):
        desk.minibatch(sink, [batch(range(20))], ledger=desk.url)
    assert ids_in(desk) == list(range(20))


@pytest.mark.rows("S17")
@pytest.mark.parametrize("way", WAYS)
def test_a_bad_event_is_parked_alone_and_the_others_go_on_in_order(
    desk: PostgresDesk, way: dict[str, str]
) -> None:
    desk.execute("alter table payments add check (amount <> 170)")
    desk.execute(
        "create function no() returns trigger language plpgsql as"
        " $$ begin if new.balance % 1000 = 170 then raise exception 'not that one'; end if;"
        " return new; end $$"
    )
    desk.execute(
        "create trigger no before insert or update on balances for each row execute function no()"
    )
    sink = desk.sink(**way, chunk_rows=64)
    rows = batch(range(40)) if "table" in way else batch([1, 3, 17])
    desk.minibatch(sink, [rows])
    [parked] = desk.parked()
    assert parked.event == 17
    assert "check constraint" in parked.why or "not that one" in parked.why
    if "table" in way:
        assert ids_in(desk) == [each for each in range(40) if each != 17]
    else:
        assert balances_in(desk) == {"c1": 10, "c0": 30}


@pytest.mark.parametrize("policy", OnReject)
def test_the_entity_of_a_bad_event_waits_where_it_is_told_to(
    desk: PostgresDesk, policy: OnReject
) -> None:
    desk.execute("alter table payments add check (amount <> 20)")
    desk.minibatch(desk.sink(table="payments", on_reject=policy), [batch(range(9))])
    waiting = [5, 8] if policy is OnReject.BLOCK else []
    assert sorted(row.event for row in desk.parked()) == [2, *waiting]
    assert ids_in(desk) == [each for each in range(9) if each not in (2, *waiting)]


def test_a_lost_checkpoint_delivers_nothing_of_a_half_done_minibatch_again(
    desk: PostgresDesk,
) -> None:
    sink = desk.sink(table="payments", chunk_rows=5)
    desk.execute("create function stop() returns trigger language plpgsql as"
                 " $$ begin raise exception sqlstate '57014'; end $$")  # fmt: skip
    desk.execute("create trigger stop before insert on payments for each row"
                 " when (new.id = 12) execute function stop()")  # fmt: skip
    hasty = replace(sink, retry=replace(sink.retry, for_s=0.1))
    with pytest.raises(Exception, match="took longer than"):
        desk.minibatch(hasty, [batch(range(20))])
    assert ids_in(desk) == list(range(10))
    desk.execute("drop trigger stop on payments")
    _another_query(desk, sink)
    assert sorted(ids_in(desk)) == list(range(20))
    assert desk.parked() == []


def _another_query(desk: PostgresDesk, sink: Postgres) -> None:
    """Read everything again under a new query id, as after a lost checkpoint, one row more."""
    from semel.delivery import Assignment, Driver, PartitionDelivery
    from semel.ledger.client import LedgerClient
    from semel.ledger.journal import Journal
    from semel.ledger.store.opening import open_store
    from semel.runtime import Process

    store = open_store(f"sqlite:///{desk.folder}/ledger.db")
    client, me = LedgerClient(store, "pay"), Process.here()
    driver = Driver(client, [sink], GIVEN, me, "n2")
    driver.start()
    opening = driver.begin("another query", 0)
    assignment = Assignment("pay", opening, GIVEN, "0", Attempt(driver.run, 1), me, 0)
    rows = PartitionDelivery(assignment, [sink], client, Journal(client)).run([batch(range(20))])
    driver.end(opening, rows)
    store.close()


def test_synchronous_commit_is_on_for_semel_also_where_it_is_off(desk: PostgresDesk) -> None:
    name = desk.url.rsplit("/", 1)[1]
    desk.execute("create table said (word text)")
    desk.execute(f"alter database {name} set synchronous_commit = off")
    desk.execute(f"alter database {name} set default_transaction_isolation = 'serializable'")
    say = (
        "insert into said select current_setting('synchronous_commit')"
        " || ' ' || current_setting('transaction_isolation')"
    )
    desk.deliver(desk.open(desk.sink(each=say)), chunk_of(batch([1])))
    assert desk.execute("select word from said") == [("on read committed",)]


def test_a_server_that_only_reads_is_waited_for(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(table="payments"))
    name = desk.url.rsplit("/", 1)[1]
    desk.execute(f"alter database {name} set default_transaction_read_only = on")
    with pytest.raises(NotDelivered, match="target_session_attrs=read-write"):
        desk.deliver(desk.open(desk.sink(table="payments")), chunk_of(batch([1])))
    desk.deliver(session, chunk_of(batch([1])))
