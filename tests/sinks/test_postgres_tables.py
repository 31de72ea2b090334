"""semel's own tables in PostgreSQL: statements read the chunk and nothing else of its name, and ids
that are left over are in no attempt's way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semel.errors import ConfigurationError
from semel.events import EntityIds, Minibatch
from support.sinks.postgres_pipeline import PostgresDesk, batch, chunk_of, progress_of

INSERT = "insert into payments select customer, id, amount from semel_batch"
AT = "(pipeline, sink, partition) = ('pay', 'out', '0')"


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    made.execute("create table payments (customer text, id bigint, amount bigint)")
    yield made
    made.close()


def with_path(desk: PostgresDesk, path: str) -> str:
    return f"{desk.url}?options=-csearch_path%3D{path}"


# -- semel_batch


OTHERS = (
    "table public.semel_batch (customer text, id bigint, amount bigint)",
    "view public.semel_batch as select '' customer, 1::bigint id, 2::bigint amount where false",
)


@pytest.mark.parametrize("other", OTHERS, ids=["table", "view"])
def test_another_relation_that_is_called_semel_batch_is_not_read_for_the_chunk(
    desk: PostgresDesk, other: str
) -> None:
    desk.execute(f"create {other}")
    sink = desk.sink(apply=INSERT, url=with_path(desk, "public,pg_temp"))
    session = desk.open(sink)
    with pytest.raises(ConfigurationError, match=r"public\.semel_batch.*search_path"):
        desk.deliver(session, chunk_of(batch(range(20))))
    assert desk.execute("select count(*) from payments") == [(0,)]
    assert desk.execute("select count(*) from semel_progress") == [(0,)]


def test_a_relation_of_that_name_that_comes_later_is_noticed_too(desk: PostgresDesk) -> None:
    session = desk.open(desk.sink(apply=INSERT, url=with_path(desk, "public,pg_temp")))
    desk.deliver(session, chunk_of(batch([1, 2])))
    desk.execute("create table public.semel_batch (customer text, id bigint, amount bigint)")
    with pytest.raises(ConfigurationError, match=r"public\.semel_batch"):
        desk.deliver(session, chunk_of(batch([3, 4]), 2))
    desk.execute("drop table public.semel_batch")
    desk.deliver(session, chunk_of(batch([3, 4]), 2))
    assert desk.execute("select id from payments order by 1") == [(1,), (2,), (3,), (4,)]


def test_a_statement_that_changes_the_search_path_cannot_lead_the_next_one_astray(
    desk: PostgresDesk,
) -> None:
    desk.execute("create table public.semel_batch (customer text, id bigint, amount bigint)")
    sly = "select set_config('search_path', 'public, pg_temp', false)"
    session = desk.open(desk.sink(apply=[sly, INSERT]))
    with pytest.raises(ConfigurationError, match=r"public\.semel_batch"):
        desk.deliver(session, chunk_of(batch([1, 2])))
    assert desk.execute("select count(*) from payments") == [(0,)]


def test_a_table_of_that_name_behind_the_chunk_is_in_nobodys_way(desk: PostgresDesk) -> None:
    desk.execute("create table public.semel_batch (customer text, id bigint, amount bigint)")
    desk.deliver(desk.open(desk.sink(apply=INSERT)), chunk_of(batch([1, 2])))
    assert desk.execute("select count(*) from payments") == [(2,)]


# -- ids without their row


def leave(desk: PostgresDesk, done: int) -> None:
    """Rows of ids that no progress row counts."""
    desk.execute(
        "insert into semel_progress_ids values ('pay', 'out', '0', %s, '{\"c9\": [[9, 9]]}')", done
    )


@pytest.mark.parametrize("done", [1, 5])
def test_ids_without_a_row_do_not_stop_an_attempt_that_takes_over(
    desk: PostgresDesk, done: int
) -> None:
    sink = desk.sink(table="payments")
    session = desk.open(sink)
    leave(desk, done)
    assert session.take_over() is None
    desk.deliver(session, chunk_of(batch([1])))
    told = desk.open(sink).take_over()
    assert told is not None
    assert told.ids == chunk_of(batch([1])).rows.id_sets()


@pytest.mark.parametrize("done", [1, 2, 5])
def test_ids_that_the_row_does_not_count_go_before_the_first_that_it_does(
    desk: PostgresDesk, done: int
) -> None:
    sink = desk.sink(table="payments")
    session = desk.open(sink)
    chunk = chunk_of(batch([1]))
    session.deliver_with(chunk, replace(progress_of(chunk), ids=EntityIds.EMPTY))
    leave(desk, done)
    desk.deliver(session, chunk_of(batch([2]), 1))
    told = desk.open(sink, task=2).take_over()
    assert told is not None
    assert told.ids == chunk_of(batch([2])).rows.id_sets()


def test_the_engine_goes_on_where_ids_were_left_without_their_row(desk: PostgresDesk) -> None:
    desk.open(desk.sink(table="payments"))
    for done in range(1, 6):
        leave(desk, done)
    desk.execute("insert into semel_progress values ('pay', 'out', '0', 1, 0, 0, 0, 0, 0, 0, '',"
                 " null, 0)")  # fmt: skip
    sink = desk.sink(table="payments", chunk_rows=2)
    desk.minibatch(sink, [batch(range(5))])
    assert desk.execute("select id from payments order by 1") == [(at,) for at in range(5)]
    assert desk.parked() == []


def test_ids_beyond_what_the_row_has_done_are_not_its_own(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    desk.deliver(desk.open(sink), chunk_of(batch([1])))
    leave(desk, 7)
    told = desk.open(sink, task=2).take_over()
    assert told is not None
    assert told.ids == chunk_of(batch([1])).rows.id_sets()


def test_ids_beyond_it_are_not_in_the_way_of_a_chunk_that_ends_there(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    session = desk.open(sink)
    desk.deliver(session, chunk_of(batch([1])))
    leave(desk, 2)
    desk.deliver(session, chunk_of(batch([2]), 1))
    told = desk.open(sink, task=2).take_over()
    assert told is not None
    assert told.ids == chunk_of(batch([1, 2])).rows.id_sets()


CHANGES = (
    "insert into semel_progress_ids values ('pay', 'out', '0', 1, '{}')",
    "delete from semel_progress_ids",
)


@pytest.mark.parametrize("change", CHANGES, ids=["one more", "none"])
def test_a_row_that_counts_other_ids_than_there_are_says_what_to_do(
    desk: PostgresDesk, change: str
) -> None:
    sink = desk.sink(table="payments")
    desk.deliver(desk.open(sink), chunk_of(batch([1, 2])))
    desk.execute(change)
    with pytest.raises(ConfigurationError, match="set id_rows = 0"):
        desk.open(sink, task=2).take_over()
    desk.execute(f"delete from semel_progress_ids where {AT}")
    desk.execute(f"update semel_progress set id_rows = 0 where {AT}")
    desk.deliver(desk.open(sink, task=2), chunk_of(batch([3]), 2), task=2)
    later = desk.open(sink, task=3, minibatch=Minibatch(1, 1)).take_over()
    assert later is not None
    assert later.done == 3


@pytest.mark.parametrize("damage", ["", "{", "[]", "7", '{"a": {}}', '{"packed": "x"}', "null"])
def test_ids_that_cannot_be_read_are_an_error_that_names_their_table(
    desk: PostgresDesk, damage: str
) -> None:
    sink = desk.sink(table="payments")
    desk.deliver(desk.open(sink), chunk_of(batch([1, 2])))
    desk.execute("update semel_progress_ids set ids = %s", damage)
    with pytest.raises(ConfigurationError, match=r"semel_progress_ids.*cannot be read"):
        desk.open(sink, task=2).take_over()


def test_a_progress_row_that_cannot_be_read_is_an_error_that_names_its_table(
    desk: PostgresDesk,
) -> None:
    sink = desk.sink(table="payments")
    desk.deliver(desk.open(sink), chunk_of(batch([1, 2])))
    desk.execute("update semel_progress set sort_key = '['")
    with pytest.raises(ConfigurationError, match=r"semel_progress.*cannot be read"):
        desk.open(sink, task=2).take_over()
