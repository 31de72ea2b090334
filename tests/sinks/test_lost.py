"""PostgreSQL and Kafka that lost what they acknowledged: noticed before a further event goes there.

Redis has the same in `test_redis_faults`, with a server that is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import Diverged, SemelError
from semel.sinks.kafka import connection, topics
from semel.sinks.kafka import transactional_session as rows
from semel.verify.servers.kafka import KafkaBroker
from semel.verify.servers.postgres import PostgresServer
from support.sinks import kafka_pipeline
from support.sinks.kafka_pipeline import KafkaPipeline, consumed, ids_in, sink_to
from support.sinks.postgres_pipeline import PostgresDesk, batch, chunk_of, progress_of


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    made.execute("create table payments (customer text, id bigint primary key, amount bigint)")
    yield made
    made.close()


def ids_of(desk: PostgresDesk) -> list[int]:
    return [each for (each,) in desk.execute("select id from payments order by id")]


# -- PostgreSQL


@pytest.mark.rows("O11")
def test_a_database_restored_from_an_older_copy_is_noticed(
    desk: PostgresDesk, postgres: PostgresServer
) -> None:
    sink = desk.sink(table="payments")
    desk.minibatch(sink, [batch([1, 2, 3])], 0)
    name = desk.url.rpartition("/")[2]
    older = f"older_{uuid4().hex}"
    maintenance = PostgresDesk(postgres.url("postgres"), desk.folder)
    maintenance.execute(f'create database "{older}" template "{name}"')
    try:
        desk.minibatch(sink, [batch([4, 5])], 1)
        restored = PostgresDesk(postgres.url(older), desk.folder)
        for nonce in ("n1", "n2"):  # on the clean path, and when the partition is found pending
            with pytest.raises(Diverged, match=r"5 is the last output .* it has only 3"):
                restored.minibatch(restored.sink(table="payments"), [batch([6])], 2, nonce=nonce)
        assert ids_of(restored) == [1, 2, 3]
    finally:
        maintenance.execute(f'drop database "{older}" with (force)')
    desk.minibatch(sink, [batch([6])], 2, nonce="n3")
    assert ids_of(desk) == [1, 2, 3, 4, 5, 6]


def test_a_database_whose_rows_are_gone_is_noticed(desk: PostgresDesk) -> None:
    sink = desk.sink(table="payments")
    desk.minibatch(sink, [batch([1, 2, 3])], 0)
    desk.execute("drop table semel_progress, semel_progress_ids")
    desk.execute("truncate payments")
    for nonce in ("n1", "n2"):
        with pytest.raises(Diverged, match=r"partition 0.*: 3 is the last output .* has nothing"):
            desk.minibatch(sink, [batch([4])], 1, nonce=nonce)
    assert ids_of(desk) == []


def test_a_part_lost_within_an_attempt_is_refused_inside_the_transaction(
    desk: PostgresDesk,
) -> None:
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
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, progress_topic=progress))
    try:
        pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
        rows._kept.clear()  # another process goes on
        kafka.delete_topic(progress)
        kafka.create_topic(progress, partitions=4, **{"cleanup.policy": "compact"})
        if restarted:
            pipeline.start()
        for _ in range(2):
            rows._kept.clear()
            opening = pipeline.open(1)
            with pytest.raises(Diverged, match=r"3 is the last output .* it has nothing"):
                pipeline.task(opening, kafka_pipeline.chunk(3, 4).rows.batch)
        assert ids_in(consumed(kafka, topic)) == [0, 1, 2]
    finally:
        pipeline.close()


def test_a_session_refuses_a_row_that_stands_below_what_was_acknowledged(
    kafka: KafkaBroker,
) -> None:
    topic, place = kafka.create_topic(), f"p-{uuid4().hex}"
    session = sink_to(kafka, topic).open(kafka_pipeline.target(pipeline=place))
    told = kafka_pipeline.progress(0, 2)
    with pytest.raises(Diverged, match=r"1 is the last output .* it has nothing"):
        session.deliver_with(kafka_pipeline.chunk(0, 2), replace(told, after=1))
    session.deliver_with(kafka_pipeline.chunk(0, 2), told)
    further = kafka_pipeline.progress(2, 3)
    with pytest.raises(Diverged, match=r"3 is the last output .* it has only 2"):
        session.deliver_with(kafka_pipeline.chunk(2, 3), replace(further, after=3))
    session.deliver_with(kafka_pipeline.chunk(2, 3), replace(further, after=2))
    session.close()
    assert ids_in(consumed(kafka, topic)) == [0, 1, 2]


def recreate(kafka: KafkaBroker, topic: str, **settings: object) -> None:
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=4, **settings)


@pytest.mark.rows("S17")
@pytest.mark.parametrize("going_on", ["another process", "this process"])
def test_a_topic_that_was_deleted_and_recreated_is_noticed(
    kafka: KafkaBroker, tmp_path: Path, going_on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic(partitions=4)
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic))
    try:
        pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
        recreate(kafka, topic)
        if going_on == "another process":
            rows._kept.clear()
            connection._known.clear()
        else:
            monkeypatch.setattr(connection, "KNOWN_S", 0.0)  # a minute later
        for _ in range(2):
            opening = pipeline.open(1)
            with pytest.raises(Diverged, match=rf"topic '{topic}' was deleted and recreated"):
                pipeline.task(opening, kafka_pipeline.chunk(3, 4).rows.batch)
        assert consumed(kafka, topic) == []
    finally:
        pipeline.close()


@pytest.mark.rows("S17")
def test_a_topic_recreated_between_two_chunks_is_noticed_with_the_next_look(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    for sequenced in (False, True):
        topic = kafka.create_topic(partitions=4)
        sink = sink_to(kafka, topic, sequenced=sequenced, chunk_rows=3)
        pipeline = KafkaPipeline(tmp_path, sink)
        pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
        events = kafka_pipeline.chunk(3, 9).rows.batch

        def halves(batch: pa.RecordBatch = events, name: str = topic) -> Iterator[pa.RecordBatch]:
            yield batch.slice(0, 3)
            recreate(kafka, name)
            yield batch.slice(3)

        opening = pipeline.open(1)
        with suppress(SemelError):
            pipeline.driver.end(opening, pipeline.task(opening, halves()))
        rows._kept.clear()
        connection._known.clear()
        pipeline.start()
        with suppress(Diverged):
            pipeline.minibatch(1, events)
        with pytest.raises(Diverged, match=r"recreated|It has lost events"):
            pipeline.minibatch(2, kafka_pipeline.chunk(9, 12).rows.batch)
        pipeline.close()


def test_another_topic_that_the_sink_names_now_is_no_loss(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    first, second = kafka.create_topic(), kafka.create_topic()
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, first))
    pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
    pipeline.sink = sink_to(kafka, second)
    pipeline.start()
    pipeline.minibatch(1, kafka_pipeline.chunk(3, 5).rows.batch)
    assert ids_in(consumed(kafka, second)) == [3, 4]
    pipeline.close()


@pytest.mark.parametrize("sequenced", [False, True])
def test_a_row_or_tail_of_before_without_a_topics_id_is_continued(
    kafka: KafkaBroker, tmp_path: Path, sequenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic()
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=sequenced))
    with monkeypatch.context() as older:
        older.setattr(topics.Topic, "identity", None)
        pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
    rows._kept.clear()
    pipeline.minibatch(1, kafka_pipeline.chunk(3, 5).rows.batch)
    rows._kept.clear()
    pipeline.minibatch(2, kafka_pipeline.chunk(5, 6).rows.batch)
    assert ids_in(consumed(kafka, topic)) == [0, 1, 2, 3, 4, 5]
    pipeline.close()


def test_ids_of_another_cluster_are_not_compared() -> None:
    here = topics.Topic("t", 1, "id-a", cluster="one")
    assert here.is_another(["one", "t", "id-b"])
    assert not here.is_another(["one", "t", "id-a"])
    assert not here.is_another(["two", "t", "id-b"])  # mirrored
    assert not here.is_another(["one", "u", "id-b"])
    assert not here.is_another(None)
    assert topics.Topic("t", 1, topics.NO_ID, cluster="one").identity is None
    assert topics.Topic("t", 1, "id-a").identity is None


@pytest.mark.rows("S17")
def test_a_kept_fence_notices_a_progress_topic_that_was_recreated(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, progress = kafka.create_topic(), f"progress-{uuid4().hex}"
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, progress_topic=progress))
    pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
    assert rows._kept
    recreate(kafka, progress, cleanup_policy="compact")
    monkeypatch.setattr(connection, "KNOWN_S", 0.0)  # a minute later
    opening = pipeline.open(1)
    with pytest.raises(Diverged, match=r"3 is the last output .* it has nothing"):
        pipeline.task(opening, kafka_pipeline.chunk(3, 4).rows.batch)
    assert ids_in(consumed(kafka, topic)) == [0, 1, 2]
    pipeline.close()


@pytest.mark.parametrize("kept", [True, False])
def test_a_kept_fence_writes_a_lost_row_again_and_any_other_notices_it(
    kafka: KafkaBroker, tmp_path: Path, kept: bool
) -> None:
    """The limit of docs/protocol.md: a kept fence does not ask for the row that it wrote itself."""
    topic, progress = kafka.create_topic(), f"progress-{uuid4().hex}"
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, progress_topic=progress))
    pipeline.minibatch(0, kafka_pipeline.chunk(0, 3).rows.batch)
    at = rows.progress_partition(kafka_pipeline.target(pipeline=pipeline.name), 4)
    lose(kafka, progress, at, f"{pipeline.name}/out/0")
    if not kept:
        rows._kept.clear()
        with pytest.raises(Diverged, match=r"3 is the last output .* it has nothing"):
            pipeline.minibatch(1, kafka_pipeline.chunk(3, 5).rows.batch)
    else:
        pipeline.minibatch(1, kafka_pipeline.chunk(3, 5).rows.batch)
        rows._kept.clear()
        pipeline.minibatch(2, kafka_pipeline.chunk(5, 6).rows.batch)  # the row is there again
        assert ids_in(consumed(kafka, topic)) == [0, 1, 2, 3, 4, 5]
    pipeline.close()


def lose(kafka: KafkaBroker, topic: str, partition: int, key: str) -> None:
    """Let a compacted topic forget a key."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(topic, None, key, partition)
    assert producer.flush(10) == 0
