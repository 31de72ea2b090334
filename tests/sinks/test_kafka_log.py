"""Kafka as a SEQUENCED sink: the log of each partition is asked for its tail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import Attempt, IdSet
from semel.ledger.verbs.parked import read_parked, resolve_parked
from semel.protocol import Capability, OnReject, ParkedState
from semel.sinks.kafka.sequenced_session import LogSession
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import (
    FIRST,
    SECOND,
    KafkaPipeline,
    alter,
    chunk,
    consumed,
    ids_in,
    progress,
    sink_to,
    target,
)


def opened(
    kafka: KafkaBroker, topic: str, place: str, task: int = 1, partition: str = "0"
) -> LogSession:
    sink = sink_to(kafka, topic, sequenced=True)
    assert sink.capability is Capability.SEQUENCED
    session = sink.open(target(task, pipeline=place, partition=partition))
    assert isinstance(session, LogSession)
    return session


@pytest.mark.rows("O6", "O23")
def test_the_log_tells_the_number_and_the_progress_of_its_last_chunk(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    session = opened(kafka, topic, place)
    assert session.take_over().osn == 0
    session.deliver_with(chunk(0, 5), progress(0, 5))
    session.deliver_with(chunk(5, 7), progress(5, 9))  # the last two are parked
    tail = opened(kafka, topic, place, 2).take_over()
    assert (tail.osn, tail.minibatch, tail.sort_key, tail.resent) == (7, FIRST, ["c0", 6], 0)
    assert tail.stamp is not None
    assert (tail.stamp.done, tail.stamp.attempt) == (9, Attempt(1, 1))
    assert [int(headers["semel-osn"]) for _, _, headers in consumed(kafka, topic)] == [*range(1, 8)]


def test_a_replaced_writer_is_refused_by_the_log(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    zombie = opened(kafka, topic, place)
    zombie.take_over()
    later = opened(kafka, topic, place, 2)
    later.take_over()
    later.deliver_with(chunk(0, 3), progress(0, 3, 2))
    with pytest.raises(Fenced):
        zombie.deliver_with(chunk(0, 3), progress(0, 3))
    with pytest.raises(Fenced, match=r"the log names the later attempt 1\.2"):
        opened(kafka, topic, place, 1).take_over()
    assert ids_in(consumed(kafka, topic)) == [0, 1, 2]


def test_a_number_that_is_not_beyond_the_tail_is_refused(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    session = opened(kafka, topic, place)
    session.take_over()
    session.deliver_with(chunk(0, 5), progress(0, 5))
    with pytest.raises(Fenced, match="the log is at 5 already"):
        session.deliver_with(chunk(4, 6), progress(4, 6))


def test_a_resend_keeps_the_tail_and_is_counted(kafka: KafkaBroker, topic: str, place: str) -> None:
    session = opened(kafka, topic, place)
    session.take_over()
    session.deliver_with(chunk(0, 5), progress(0, 5))
    session.deliver_again(chunk(2, 3), 7)
    tail = opened(kafka, topic, place, 2).take_over()
    assert (tail.osn, tail.resent) == (5, 7)
    later = opened(kafka, topic, place, 3)
    later.take_over()
    later.deliver_with(chunk(5, 6), progress(0, 1, 3, SECOND))
    tail = opened(kafka, topic, place, 4).take_over()
    assert (tail.osn, tail.resent, tail.minibatch) == (6, 7, SECOND)


def test_the_ids_of_a_minibatch_are_read_back_from_the_log(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    session = opened(kafka, topic, place)
    session.take_over()
    session.deliver_with(chunk(0, 50), progress(0, 50))
    for start in range(50, 150, 20):
        session.deliver_with(chunk(start, start + 20), progress(start, start + 20, 1, SECOND))
    session.deliver_again(chunk(2, 3), 1)
    later = opened(kafka, topic, place, 2)
    later.take_over()
    found = later.delivered_ids(SECOND)
    assert sorted(event for _, ids in found.items() for event in ids) == list(range(50, 150))
    assert found.get("c2") == IdSet.of([n for n in range(50, 150) if n % 3 == 2])


def test_logs_of_two_pipelines_in_one_topic_do_not_mix(kafka: KafkaBroker, topic: str) -> None:
    one, two = (opened(kafka, topic, uuid4().hex) for _ in "12")
    one.take_over()
    one.deliver_with(chunk(0, 5), progress(0, 5))
    two.take_over()
    two.deliver_with(chunk(0, 3), progress(0, 3))
    assert (one.take_over().osn, two.take_over().osn) == (5, 3)


def test_a_partition_without_a_log_of_its_own_is_refused(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    with pytest.raises(ConfigurationError, match="has 2 partitions"):
        opened(kafka, topic, place, partition="payments/2")
    with pytest.raises(ConfigurationError, match="has no number"):
        opened(kafka, topic, place, partition="~")
    for name in ("payments/1", "1of2"):
        session = opened(kafka, topic, place, partition=name)
        session.take_over()
        session.deliver_with(chunk(0, 3), progress(0, 3))
    assert len(consumed(kafka, topic)) == 6


# -- through the engine


@pytest.mark.rows("O6", "O10", "O11", "O23")
def test_a_replay_sends_exactly_what_is_beyond_the_tail(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    pipeline.minibatch(0, chunk(0, 10).rows.batch)
    rows = chunk(10, 30).rows.batch

    def dies() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 11)
        raise RuntimeError("the worker dies")

    opening = pipeline.open(1)
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(opening, dies())
    there = len(consumed(kafka, topic))
    assert 10 < there < 30
    [report] = pipeline.task(opening, rows)
    pipeline.driver.end(opening, [report])
    records = consumed(kafka, topic)
    assert [int(headers["semel-osn"]) for _, _, headers in records] == list(range(1, 31))
    assert sorted(ids_in(records)) == list(range(30))
    pipeline.close()


@pytest.mark.rows("O11")
def test_a_log_that_lost_what_it_had_stops_the_pipeline(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True))
    pipeline.minibatch(0, chunk(0, 10).rows.batch)
    kafka.delete_topic(topic)
    kafka.create_topic(topic, partitions=2)
    with pytest.raises(Diverged, match="It has lost events"):
        pipeline.minibatch(1, chunk(10, 12).rows.batch)
    pipeline.close()


def test_nothing_is_repeated_when_the_checkpoint_is_lost_in_the_middle(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    rows = chunk(0, 20).rows.batch

    def dies() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 14)
        raise RuntimeError("the worker dies")

    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(pipeline.open(0), dies())
    pipeline.start()
    pipeline.minibatch(0, rows, query="another checkpoint")
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(20))
    pipeline.close()


def test_a_rejected_event_is_resent_into_the_log_before_what_waited_for_it(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic(max_message_bytes=20_000)
    sink = sink_to(kafka, topic, sequenced=True, value="body", on_reject=OnReject.BLOCK)
    pipeline = KafkaPipeline(tmp_path, sink)
    bodies = ["a", "b" * 30_000, "c", "d", "e"]
    pipeline.minibatch(0, chunk(0, 5, body=bodies).rows.batch)  # entities c0 c1 c2 c0 c1
    assert [value for _, value, _ in consumed(kafka, topic)] == [b"a", b"c", b"d"]
    rows = read_parked(pipeline.client, "out")
    assert [row.state for _, row, _ in rows] == [ParkedState.REJECTED, ParkedState.WAITING]
    kafka_limit = sink_to(
        kafka,
        topic,
        sequenced=True,
        value="body",
        on_reject=OnReject.BLOCK,
        config={"message.max.bytes": 100_000},
    )
    alter(kafka, topic, "max.message.bytes", "100000")
    resolve_parked(
        pipeline.client, "out", rows[0][0], ParkedState.RESEND, "ann", "the limit was raised"
    )
    opening = pipeline.open(1)
    more = chunk(5, 6, body=["f"]).rows.batch
    pipeline.driver.end(opening, pipeline.task(opening, more, kafka_limit))
    records = consumed(kafka, topic)
    assert [(value or b"")[:1] for _, value, _ in records] == [b"a", b"c", b"d", b"b", b"e", b"f"]
    assert [int(headers["semel-osn"]) for _, _, headers in records] == [1, 3, 4, 2, 5, 6]
    pipeline.close()
