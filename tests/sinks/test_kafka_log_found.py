"""A SEQUENCED log that is not what the sink takes it for, shown against a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.bench.kafka_broker import KafkaBroker
from semel.errors import Fenced, NotDelivered, SemelError
from semel.sinks import Retry, Tail
from semel.sinks.kafka.log import LogSession
from sinks.kafka_world import Pipeline, chunk, consumed, ids_in, progress, proxied, sink_to, target


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic(partitions=1)


def dying(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield rows
    raise RuntimeError("the worker dies")


def test_a_writer_that_was_replaced_while_nobody_answered_is_refused(
    kafka: KafkaBroker, topic: str
) -> None:
    with proxied(kafka) as proxy:
        sink = sink_to(kafka, topic, sequenced=True, servers=kafka.far, deadline_s=1.5)
        zombie = sink.open(target(1, pipeline=topic))
        zombie.take_over()
        proxy.cut_once("add", "before", stay_down=True)
        with pytest.raises(NotDelivered):
            zombie.deliver_with(chunk(0, 3), progress(0, 3))
        later = sink_to(kafka, topic, sequenced=True).open(target(2, pipeline=topic))
        told = later.take_over()
        assert isinstance(told, Tail)
        assert told.osn == 0  # so it is told that nothing was delivered
        proxy.down = False
        with pytest.raises(Fenced):  # it was told to try again, and does
            zombie.deliver_with(chunk(0, 3), progress(0, 3))
    assert ids_in(consumed(kafka, topic)) == []


def test_a_zombie_does_not_stop_the_generation_after_it(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with proxied(kafka) as proxy:
        patient: Any = {"sequenced": True, "deadline_s": 1.5, "retry": Retry(0.2, 0.5, 60.0)}
        pipeline = Pipeline(tmp_path, sink_to(kafka, topic, servers=kafka.far, **patient))
        opening = pipeline.open(0)

        def work() -> Iterator[pa.RecordBatch]:
            proxy.cut_once("add", "before", stay_down=True)
            yield chunk(5, 8).rows.batch

        def attempt() -> None:
            with suppress(SemelError):
                pipeline.task(opening, work())

        zombie = threading.Thread(target=attempt)
        zombie.start()
        while not proxy.down:
            time.sleep(0.1)
        time.sleep(5.0)
        pipeline.sink = sink_to(kafka, topic, **patient)
        pipeline.start()
        later = pipeline.open(0, "another checkpoint")
        proxy.down = False
        zombie.join(60.0)
        assert not zombie.is_alive()
        reports = pipeline.task(later, chunk(4, 8).rows.batch)
        pipeline.driver.end(later, reports)
    assert sorted(ids_in(consumed(kafka, topic))) == [4, 5, 6, 7]
    pipeline.close()


def test_a_lost_checkpoint_repeats_nothing_when_the_topic_has_let_its_oldest_records_go(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition

    pipeline = Pipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    rows = chunk(0, 9).rows.batch
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(pipeline.open(0), dying(rows))
    seen = ids_in(consumed(kafka, topic))
    assert seen == [*range(9)]
    # As `retention.ms` or compaction does: the last record, which tells how far it is, stays.
    admin = kafka.admin()
    [gone] = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    gone.result(10)
    pipeline.start()
    try:
        reports = pipeline.minibatch(0, rows, query="another checkpoint")
    except SemelError:
        return
    assert sum(report.delivered for report in reports) == 0  # all nine had been delivered
    pipeline.close()


def test_a_copy_of_a_record_does_not_turn_the_log_back(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    pipeline = Pipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    rows = chunk(0, 9).rows.batch
    opening = pipeline.open(0)
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(opening, dying(rows))
    before = consumed(kafka, topic)
    assert len(before) >= 6
    # As a tool does that puts dead letters back into the topic they came from.
    key, value, headers = before[2]
    copier = Producer({"bootstrap.servers": kafka.servers})
    copier.produce(topic, value, key, 0, headers=list(headers.items()))
    assert copier.flush(10) == 0
    try:
        pipeline.driver.end(opening, pipeline.task(opening, rows))
    except SemelError:
        return
    assert sorted(ids_in(consumed(kafka, topic))) == sorted([*range(9), 2])
    pipeline.close()


def test_a_resend_that_was_replaced_while_nobody_answered_is_not_made_again(
    kafka: KafkaBroker, topic: str
) -> None:
    with proxied(kafka) as proxy:
        sink = sink_to(kafka, topic, sequenced=True, servers=kafka.far, deadline_s=1.5)
        zombie = sink.open(target(1, pipeline=topic))
        assert isinstance(zombie, LogSession)
        assert zombie.take_over().resent == 0
        proxy.cut_once("add", "before", stay_down=True)
        with pytest.raises(NotDelivered):
            zombie.deliver_again(chunk(0, 1), 1)
        later = sink_to(kafka, topic, sequenced=True).open(target(2, pipeline=topic))
        assert isinstance(later, LogSession)
        assert later.take_over().resent == 0
        later.deliver_again(chunk(0, 1), 2)
        proxy.down = False
        with pytest.raises(Fenced):  # it was told to try again, and does
            zombie.deliver_again(chunk(0, 1), 1)
    assert ids_in(consumed(kafka, topic)) == [0]
