"""A SEQUENCED log whose writer was replaced, that lost records, or that has copies of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Diverged, Fenced, NotDelivered, SemelError
from semel.events import Minibatch
from semel.ledger.verbs.parked import read_parked, resolve_parked
from semel.protocol import OnReject, ParkedState
from semel.sinks import Retry, Tail
from semel.sinks.kafka import Kafka
from semel.sinks.kafka.connection import place_of
from semel.sinks.kafka.sequenced_session import TAIL, LogSession
from semel.sinks.kafka.transactional_session import progress_partition
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import (
    PROGRESS,
    KafkaPipeline,
    alter,
    chunk,
    consumed,
    ids_in,
    progress,
    proxied,
    sink_to,
    target,
)


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic(partitions=1)


def opened(kafka: KafkaBroker, topic: str, task: int) -> LogSession:
    session = sink_to(kafka, topic, sequenced=True).open(target(task, pipeline=topic))
    assert isinstance(session, LogSession)
    return session


def dying(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield rows
    raise RuntimeError("the worker dies")


def let_go(kafka: KafkaBroker, topic: str, upto: int) -> None:
    """Delete the oldest records, as `retention.ms` does."""
    from confluent_kafka import TopicPartition

    client = kafka.admin()
    [gone] = client.delete_records([TopicPartition(topic, 0, upto)]).values()
    gone.result(10)


def copy(kafka: KafkaBroker, topic: str, *numbers: int) -> None:
    """Put records into their topic again, as a tool does that puts dead letters back."""
    from confluent_kafka import Producer

    records = consumed(kafka, topic)
    copier = Producer({"bootstrap.servers": kafka.servers})
    for number in numbers:
        key, value, headers = records[number]
        copier.produce(topic, value, key, 0, headers=list(headers.items()))
    assert copier.flush(10) == 0


def test_a_writer_that_was_replaced_while_nobody_answered_is_refused(
    kafka: KafkaBroker, topic: str
) -> None:
    with proxied(kafka) as proxy:
        sink = sink_to(kafka, topic, sequenced=True, servers=kafka.far, deadline_s=4.0)
        zombie = sink.open(target(1, pipeline=topic))
        zombie.take_over()
        proxy.cut_once("add", "before", stay_down=True)
        with pytest.raises(NotDelivered):
            zombie.deliver_with(chunk(0, 3), progress(0, 3))
        later = sink_to(kafka, topic, sequenced=True).open(target(2, pipeline=topic))
        told = later.take_over()
        assert isinstance(told, Tail)
        assert told.osn == 0  # so it reports that nothing was delivered
        proxy.down = False
        with pytest.raises(Fenced):  # the error says that it may try again, and it does
            zombie.deliver_with(chunk(0, 3), progress(0, 3))
    assert ids_in(consumed(kafka, topic)) == []


def test_a_zombie_does_not_stop_the_generation_after_it(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    with proxied(kafka) as proxy:
        patient: Any = {"sequenced": True, "deadline_s": 1.5, "retry": Retry(0.2, 0.5, 60.0)}
        pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, servers=kafka.far, **patient))
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
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    rows = chunk(0, 9).rows.batch
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(pipeline.open(0), dying(rows))
    seen = ids_in(consumed(kafka, topic))
    assert seen == [*range(9)]
    let_go(kafka, topic, 5)  # the last record, which says how far it is, stays
    pipeline.start()
    with pytest.raises(Diverged, match="9 were delivered, 5 are there"):
        pipeline.minibatch(0, rows, query="another checkpoint")
    let_go(kafka, topic, -1)  # all of them
    pipeline.start()
    with pytest.raises(Diverged, match="no record of this partition is left in it"):
        pipeline.minibatch(0, rows, query="another checkpoint")
    pipeline.close()


def test_a_lost_checkpoint_needs_no_record_of_the_minibatch_before(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    pipeline.minibatch(0, chunk(0, 6).rows.batch)
    rows = chunk(6, 15).rows.batch
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(pipeline.open(1), dying(rows))
    let_go(kafka, topic, 8)  # six records and two commits
    pipeline.start()
    reports = pipeline.minibatch(0, rows, query="another checkpoint")
    assert sum(report.delivered for report in reports) == 0
    assert ids_in(consumed(kafka, topic)) == [*range(6, 15)]
    pipeline.close()


def test_a_compacted_topic_is_refused_as_a_log(kafka: KafkaBroker, topic: str) -> None:
    alter(kafka, topic, "cleanup.policy", "compact,delete")
    with pytest.raises(ConfigurationError, match="so it would forget what was delivered"):
        sink_to(kafka, topic, sequenced=True).open(target(1, pipeline=topic))


def test_a_copy_of_a_record_does_not_turn_the_log_back(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, sequenced=True, chunk_rows=3))
    rows = chunk(0, 9).rows.batch
    opening = pipeline.open(0)
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(opening, dying(rows))
    copy(kafka, topic, 2)
    pipeline.driver.end(opening, pipeline.task(opening, rows))
    assert sorted(ids_in(consumed(kafka, topic))) == sorted([*range(9), 2])
    pipeline.close()


def test_copies_of_many_records_do_not_turn_the_log_back(kafka: KafkaBroker, topic: str) -> None:
    for minibatch, (start, stop) in enumerate([(0, 40), (40, 80)]):
        session = opened(kafka, topic, minibatch + 1)
        session.take_over()
        where = Minibatch(1, minibatch)
        for at in range(start, stop, 20):
            done = progress(at, at + 20, minibatch + 1, where)
            session.deliver_with(chunk(at, at + 20), done)
        session.close()
    again = (19, *range(20, 40), 59, *range(30, 40))
    copy(kafka, topic, *again)
    session = opened(kafka, topic, 3)
    tail = session.take_over()
    assert (tail.osn, tail.minibatch) == (80, Minibatch(1, 1))
    session.deliver_again(chunk(7, 8), 1)
    session.deliver_with(chunk(80, 81), progress(80, 81, 3, Minibatch(1, 1)))
    copy(kafka, topic, 79, 80 + len(again))  # also of the resend
    later = opened(kafka, topic, 4)
    tail = later.take_over()
    assert (tail.osn, tail.resent) == (81, 1)
    told = later.delivered_ids(Minibatch(1, 1))
    assert sorted(event for _, ids in told.items() for event in ids) == [*range(40, 81)]


def test_a_tail_is_found_behind_records_of_others(kafka: KafkaBroker, topic: str) -> None:
    session = opened(kafka, topic, 1)
    session.take_over()
    for at in range(0, 60, 20):
        session.deliver_with(chunk(at, at + 20), progress(at, at + 20))
        other = sink_to(kafka, topic, sequenced=True).open(target(1, pipeline=f"other {topic}"))
        assert isinstance(other, LogSession)
        other.take_over()
        other.deliver_with(chunk(at, at + 1), progress(at, at + 1))
        other.close()
    assert opened(kafka, topic, 2).take_over().osn == 60


def test_a_writer_foresees_where_the_tail_will_stand(kafka: KafkaBroker, topic: str) -> None:
    session = opened(kafka, topic, 1)
    session.take_over()
    session.deliver_with(chunk(0, 5), progress(0, 5))
    session.deliver_with(chunk(5, 7), progress(5, 7))
    session.close()
    session = opened(kafka, topic, 2)
    session.take_over()
    session.deliver_again(chunk(0, 1), 1)
    marks = [json.loads(each["semel-tail"]) for *_, each in consumed(kafka, topic) if TAIL in each]
    assert [mark["at"] for mark in marks] == [4, 7, 9]
    assert [mark["after"] for mark in marks] == [0, 0, 9]


def test_a_resend_that_the_log_has_is_refused(kafka: KafkaBroker, topic: str) -> None:
    session = opened(kafka, topic, 1)
    session.take_over()
    session.deliver_again(chunk(0, 1), 2)
    for number in (1, 2):
        with pytest.raises(Fenced, match="the log has resend 2 already"):
            session.deliver_again(chunk(0, 1), number)
    assert ids_in(consumed(kafka, topic)) == [0]


def test_a_resend_that_was_replaced_while_nobody_answered_is_not_made_again(
    kafka: KafkaBroker, topic: str
) -> None:
    with proxied(kafka) as proxy:
        sink = sink_to(kafka, topic, sequenced=True, servers=kafka.far, deadline_s=4.0)
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
        with pytest.raises(Fenced):  # the error says that it may try again, and it does
            zombie.deliver_again(chunk(0, 1), 1)
    assert ids_in(consumed(kafka, topic)) == [0]


# -- resends through the engine


def with_one_to_resend(kafka: KafkaBroker, tmp_path: Path) -> tuple[KafkaPipeline, str]:
    """A pipeline of which `b` was too large, and now may go; `e` waits behind it."""
    topic = kafka.create_topic(partitions=1, max_message_bytes=20_000)
    pipeline = KafkaPipeline(tmp_path, bodies_to(kafka, topic, kafka.servers))
    bodies = ["a", "b" * 30_000, "c", "d", "e"]
    pipeline.minibatch(0, chunk(0, 5, body=bodies).rows.batch)
    alter(kafka, topic, "max.message.bytes", "100000")
    pipeline.sink = bodies_to(kafka, topic, kafka.servers, config={"message.max.bytes": 100_000})
    first = read_parked(pipeline.client, "out")[0][0]
    resolve_parked(pipeline.client, "out", first, ParkedState.RESEND, "ann", "the limit was raised")
    return pipeline, topic


def bodies_to(kafka: KafkaBroker, topic: str, servers: str, **settings: Any) -> Kafka:
    usual: dict[str, Any] = {"sequenced": True, "value": "body", "on_reject": OnReject.BLOCK}
    return sink_to(kafka, topic, servers=servers, **{**usual, **settings})


def first_letters(kafka: KafkaBroker, topic: str) -> str:
    return "".join((value or b"")[:1].decode() for _, value, _ in consumed(kafka, topic))


def test_a_resend_whose_answer_was_lost_is_not_made_again_when_nobody_can_be_asked(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    pipeline, topic = with_one_to_resend(kafka, tmp_path)
    opening = pipeline.open(1)
    more = chunk(5, 6, body=["f"]).rows.batch
    hasty: Any = {"deadline_s": 1.5, "retry": Retry(0.1, 0.2, 2.0)}
    far = bodies_to(kafka, topic, kafka.far, config=pipeline.sink.config, **hasty)  # type: ignore[attr-defined]
    with proxied(kafka) as proxy:
        proxy.cut_once("end", "after", stay_down=True)
        with pytest.raises(NotDelivered):
            pipeline.task(opening, more, far)
    pipeline.driver.end(opening, pipeline.task(opening, more))
    assert first_letters(kafka, topic) == "acdbef"
    pipeline.close()


def test_a_zombie_that_fences_again_for_its_resend_appends_nothing_of_its_own(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    pipeline, topic = with_one_to_resend(kafka, tmp_path)
    opening = pipeline.open(1)
    more = chunk(5, 7, body=["f", "g"]).rows.batch  # of no entity that waits
    patient: Any = {"deadline_s": 6.0, "config": {"message.max.bytes": 100_000}}
    far = bodies_to(kafka, topic, kafka.far, **patient)
    ended: list[SemelError] = []

    def attempt() -> None:
        try:
            pipeline.task(opening, more, far)
        except SemelError as error:
            ended.append(error)

    with proxied(kafka) as proxy:
        proxy.cut_once("end", "before", stay_down=True)
        zombie = threading.Thread(target=attempt)
        zombie.start()
        while not proxy.down:
            time.sleep(0.05)
        time.sleep(7.0)  # the commit is not answered for 6 s; now it fences, to ask
        pipeline.start()
        later = pipeline.open(0, "another checkpoint")
        proxy.down = False
        zombie.join(60.0)
        assert not zombie.is_alive()
    assert [type(each) for each in ended] == [Fenced]
    assert first_letters(kafka, topic) == "acd"
    pipeline.driver.end(later, pipeline.task(later, more))
    assert first_letters(kafka, topic) == "acdbefg"
    pipeline.close()


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"7", b'{"parts": 1}', b"\xff"])
def test_progress_that_cannot_be_read_is_an_error_that_names_its_topic(
    kafka: KafkaBroker, topic: str, place: str, damage: bytes
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    session.deliver_with(chunk(0, 5), progress(0, 5))
    session.close()
    at = progress_partition(target(pipeline=place), 4)
    write(kafka, PROGRESS, at, damage, key=place_of(target(pipeline=place)))
    with pytest.raises(ConfigurationError, match=f"{PROGRESS}.*cannot be read"):
        sink.open(target(2, pipeline=place)).take_over()


@pytest.mark.parametrize("damage", [b"{", b"[]", b"7", b'{"osn": 1}', b"\xff"])
def test_a_tail_that_cannot_be_read_is_an_error_that_names_its_topic(
    kafka: KafkaBroker, topic: str, place: str, damage: bytes
) -> None:
    sink = sink_to(kafka, topic, sequenced=True)
    log = json.dumps([place_of(target(pipeline=place)), [1, 0]]).encode()
    write(kafka, topic, 0, b"x", headers=[("semel-log", log), ("semel-tail", damage)])
    with pytest.raises(ConfigurationError, match=f"{topic}.*cannot be read"):
        sink.open(target(pipeline=place)).take_over()


def write(kafka: KafkaBroker, topic: str, partition: int, value: bytes, **others: Any) -> None:
    """Another producer writes a record."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.servers})
    producer.produce(topic, value, partition=partition, **others)
    assert producer.flush(30) == 0
