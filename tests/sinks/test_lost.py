"""PostgreSQL and Kafka that lost what they acknowledged: noticed before a further event goes there.

Redis has the same in `test_redis_faults`, with a server that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from semel.bench.kafka_broker import KafkaBroker
from semel.bench.servers import PostgresServer
from semel.errors import Diverged
from semel.sinks.kafka import progress as rows
from sinks import kafka_world
from sinks.kafka_world import Pipeline, consumed, ids_in, sink_to
from sinks.postgres_desk import Desk, batch, chunk_of, progress_of


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(postgres_url, tmp_path)
    made.execute("create table payments (customer text, id bigint primary key, amount bigint)")
    yield made
    made.close()


def ids_of(desk: Desk) -> list[int]:
    return [each for (each,) in desk.execute("select id from payments order by id")]


# -- PostgreSQL


@pytest.mark.rows("S17")
def test_a_database_restored_from_an_older_copy_is_noticed(
    desk: Desk, postgres: PostgresServer
) -> None:
    sink = desk.sink(table="payments")
    desk.minibatch(sink, [batch([1, 2, 3])], 0)
    name = desk.url.rpartition("/")[2]
    older = f"older_{uuid4().hex}"
    maintenance = Desk(postgres.url("postgres"), desk.folder)
    maintenance.execute(f'create database "{older}" template "{name}"')
    try:
        desk.minibatch(sink, [batch([4, 5])], 1)
        restored = Desk(postgres.url(older), desk.folder)
        for nonce in ("n1", "n2"):  # on the clean path, and when the partition is found pending
            with pytest.raises(Diverged, match=r"5 is the last output .* it has only 3"):
                restored.minibatch(restored.sink(table="payments"), [batch([6])], 2, nonce=nonce)
        assert ids_of(restored) == [1, 2, 3]
    finally:
        maintenance.execute(f'drop database "{older}" with (force)')
    desk.minibatch(sink, [batch([6])], 2, nonce="n3")
    assert ids_of(desk) == [1, 2, 3, 4, 5, 6]


def test_a_database_whose_rows_are_gone_is_noticed(desk: Desk) -> None:
    sink = desk.sink(table="payments")
    desk.minibatch(sink, [batch([1, 2, 3])], 0)
    desk.execute("drop table semel_progress, semel_progress_ids")
    desk.execute("truncate payments")
    for nonce in ("n1", "n2"):
        with pytest.raises(Diverged, match=r"partition 0.*: 3 is the last output .* has nothing"):
            desk.minibatch(sink, [batch([4])], 1, nonce=nonce)
    assert ids_of(desk) == []


def test_a_part_lost_within_an_attempt_is_refused_inside_the_transaction(desk: Desk) -> None:
    session = desk.open(desk.sink(table="payments"))
    first, second = chunk_of(batch([1, 2])), chunk_of(batch([3, 4]), 2)
    told = progress_of(first)
    session.deliver_with(first, told)
    desk.execute("update semel_progress set osn = osn - 1")
    with pytest.raises(Diverged, match=f"{told.osn} is the last output"):
        session.deliver_with(second, replace(progress_of(second), after=told.osn))
    assert ids_of(desk) == [1, 2]
    desk.execute("update semel_progress set osn = osn + 1")
    session.deliver_with(second, replace(progress_of(second), after=told.osn))
    assert ids_of(desk) == [1, 2, 3, 4]


# -- Kafka


@pytest.mark.rows("S17")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_progress_topic_that_was_made_anew_is_noticed(
    kafka: KafkaBroker, tmp_path: Path, restarted: bool
) -> None:
    topic, progress = kafka.create_topic(), f"progress-{uuid4().hex}"
    pipeline = Pipeline(tmp_path, sink_to(kafka, topic, progress_topic=progress))
    try:
        pipeline.minibatch(0, kafka_world.chunk(0, 3).rows.batch)
        rows._kept.clear()  # another process goes on
        kafka.delete_topic(progress)
        kafka.create_topic(progress, partitions=4, **{"cleanup.policy": "compact"})
        if restarted:
            pipeline.start()
        for _ in range(2):
            rows._kept.clear()
            opening = pipeline.open(1)
            with pytest.raises(Diverged, match=r"3 is the last output .* it has nothing"):
                pipeline.task(opening, kafka_world.chunk(3, 4).rows.batch)
        assert ids_in(consumed(kafka, topic)) == [0, 1, 2]
    finally:
        pipeline.close()


def test_a_session_refuses_a_row_that_stands_below_what_was_acknowledged(
    kafka: KafkaBroker,
) -> None:
    topic, place = kafka.create_topic(), f"p-{uuid4().hex}"
    session = sink_to(kafka, topic).open(kafka_world.target(pipeline=place))
    told = kafka_world.progress(0, 2)
    with pytest.raises(Diverged, match=r"1 is the last output .* it has nothing"):
        session.deliver_with(kafka_world.chunk(0, 2), replace(told, after=1))
    session.deliver_with(kafka_world.chunk(0, 2), told)
    further = kafka_world.progress(2, 3)
    with pytest.raises(Diverged, match=r"3 is the last output .* it has only 2"):
        session.deliver_with(kafka_world.chunk(2, 3), replace(further, after=3))
    session.deliver_with(kafka_world.chunk(2, 3), replace(further, after=2))
    session.close()
    assert ids_in(consumed(kafka, topic)) == [0, 1, 2]
