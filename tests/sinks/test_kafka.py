"""Kafka as a TRANSACTIONAL sink: the fence, the progress row, and what consumers see of it."""

from __future__ import annotations

import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Fenced
from semel.events import Attempt, EntityIds, IdSet, Minibatch
from semel.protocol import Capability
from semel.sinks import Progress
from semel.sinks.kafka import Kafka
from semel.sinks.kafka import transactional_session as rows
from semel.sinks.kafka.transactional_session import PART_BYTES_MAX, progress_partition
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import (
    FIRST,
    PROGRESS,
    SECOND,
    KafkaPipeline,
    chunk,
    consumed,
    ids_in,
    progress,
    sink_to,
    target,
)


@pytest.mark.rows("S17", "O23")
def test_progress_and_records_are_one_transaction(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    assert session.take_over() is None
    session.deliver_with(chunk(0, 5), progress(0, 5))
    session.deliver_with(chunk(5, 7), progress(5, 7))
    rows._kept.clear()

    later = sink.open(target(2, pipeline=place))
    told = later.take_over()

    assert isinstance(told, Progress)
    assert (told.done, told.osn, told.digest, told.sort_key) == (7, 7, "d7", ["c", 6])
    assert told.attempt == Attempt(1, 1)
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(7))
    later.close()


def test_the_row_names_who_took_it_over(kafka: KafkaBroker, topic: str, place: str) -> None:
    sink = sink_to(kafka, topic)
    for task in (1, 2):
        session = sink.open(target(task, pipeline=place))
        session.take_over()
        session.close()
        rows._kept.clear()
    told = sink.open(target(3, pipeline=place)).take_over()
    assert isinstance(told, Progress)
    assert (told.attempt, told.done) == (Attempt(1, 2), 0)


def test_an_attempt_that_was_replaced_is_refused(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    zombie = sink.open(target(1, pipeline=place))
    zombie.take_over()
    zombie.deliver_with(chunk(0, 2), progress(0, 2))
    later = sink.open(target(2, pipeline=place))
    later.take_over()

    with pytest.raises(Fenced):
        zombie.deliver_with(chunk(2, 4), progress(2, 4))

    later.deliver_with(chunk(2, 4), progress(2, 4, 2))
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2, 3]


def test_a_zombie_that_opens_again_finds_a_later_attempt(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    sink.open(target(2, pipeline=place)).take_over()
    with pytest.raises(Fenced, match=r"progress names attempt 1\.2"):
        sink.open(target(1, pipeline=place)).take_over()


def test_a_later_minibatch_refuses_an_earlier_one(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    sink.open(target(1, SECOND, pipeline=place)).take_over()
    with pytest.raises(Fenced):
        sink.open(target(2, FIRST, pipeline=place)).take_over()


def test_a_chunk_that_is_there_already_is_refused(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    session.deliver_with(chunk(0, 4), progress(0, 4))
    with pytest.raises(Fenced, match="4 events are done"):
        session.deliver_with(chunk(2, 6), progress(2, 6))
    assert len(consumed(kafka, topic)) == 4


def test_a_new_minibatch_starts_from_nothing_and_keeps_the_number(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    session.deliver_with(chunk(0, 4), progress(0, 4))
    session.close()
    sink.open(target(2, SECOND, pipeline=place)).take_over()
    rows._kept.clear()
    told = sink.open(target(3, SECOND, pipeline=place)).take_over()
    assert isinstance(told, Progress)
    assert (told.minibatch, told.done, told.osn) == (SECOND, 0, 4)


# -- ids


def test_ids_of_a_minibatch_are_put_together_from_its_chunks(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    many = EntityIds.of({"a": IdSet.of([f"{n:040}" for n in range(PART_BYTES_MAX // 20)])})
    few = EntityIds.of({"a": IdSet.of(["x"]), "b": IdSet.of(["y"])})
    session.deliver_with(chunk(0, 2), progress(0, 2, ids=many))
    session.deliver_with(chunk(2, 4), progress(2, 4, ids=few))
    told = session.take_over()
    assert isinstance(told, Progress)
    assert told.ids == many | few
    later = sink.open(target(2, pipeline=place))
    told = later.take_over()
    assert isinstance(told, Progress)
    assert told.ids == many | few

    later.deliver_with(chunk(4, 5), progress(4, 5, 2, ids=EntityIds.of({"c": IdSet.of(["z"])})))
    later.close()
    after = sink.open(target(3, SECOND, pipeline=place))
    after.take_over()
    after.deliver_with(chunk(5, 6), progress(0, 1, 3, SECOND, ids=few))
    told = sink.open(target(4, SECOND, pipeline=place)).take_over()
    assert isinstance(told, Progress)
    assert told.ids == few
    keys = [key for key, value, _ in consumed(kafka, PROGRESS) if value is None]
    assert len(keys) >= 3  # the parts of the minibatch before are gone when the log is compacted


# -- the fence between minibatches


def test_a_fence_that_is_still_held_is_not_taken_again(
    kafka: KafkaBroker, topic: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    session.deliver_with(chunk(0, 4), progress(0, 4))
    session.close()
    later = sink.open(target(2, SECOND, pipeline=place))

    def never() -> Any:
        raise AssertionError("the fence was taken again")

    monkeypatch.setattr(later._outlet, "writer", never)
    told = later.take_over()
    assert isinstance(told, Progress)
    assert told.done == 4
    later.deliver_with(chunk(4, 6), progress(0, 2, 2, SECOND))
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(6))


def test_a_fence_that_somebody_took_meanwhile_is_taken_anew_and_asked(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    session.deliver_with(chunk(0, 4), progress(0, 4))
    session.close()
    [kept] = [key for key in rows._kept if key[-1] == f"{place}/out/0"]
    held = rows._kept.pop(kept)
    other = sink.open(target(2, SECOND, pipeline=place))
    other.take_over()
    other.deliver_with(chunk(4, 7), progress(0, 3, 2, SECOND))
    rows._kept[kept] = held  # the process that had the first minibatch gets the third

    told = sink.open(target(3, Minibatch(1, 2), pipeline=place)).take_over()

    assert isinstance(told, Progress)
    assert (told.minibatch, told.done) == (SECOND, 3)


# -- other writers of the progress topic


def test_progress_behind_an_open_transaction_of_somebody_else_is_waited_for(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    from confluent_kafka import Producer

    sink = sink_to(kafka, topic)
    session = sink.open(target(pipeline=place))
    session.take_over()
    other = Producer(
        {"bootstrap.servers": kafka.servers, "transactional.id": uuid4().hex, "log_level": 0}
    )
    other.init_transactions(20)
    other.begin_transaction()
    number = progress_partition(target(pipeline=place), sink.progress_partitions)
    other.produce(PROGRESS, b"{}", b"another", number)
    other.flush()
    session.deliver_with(chunk(0, 4), progress(0, 4))
    ended: list[float] = []

    def end() -> None:
        time.sleep(0.7)
        ended.append(time.monotonic())
        other.commit_transaction(20)

    thread = threading.Thread(target=end)
    thread.start()
    told = sink.open(target(2, pipeline=place)).take_over()
    assert ended, "it did not wait"
    thread.join()
    assert isinstance(told, Progress)
    assert told.done == 4


def test_neighbours_do_not_share_a_partition_of_the_progress_topic() -> None:
    for form in ("{}of8", "payments/{}", "{}"):
        names = [form.format(number) for number in range(8)]
        taken = {progress_partition(target(partition=name), 8) for name in names}
        assert taken == set(range(8))


# -- through the engine


@pytest.mark.rows("S17", "O10")
def test_a_replay_after_a_crash_goes_on_at_the_exact_record(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, chunk_rows=3))
    rows = chunk(0, 20).rows.batch

    def dies() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 11)
        raise RuntimeError("the worker dies")

    opening = pipeline.open(0)
    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(opening, dies())
    done = len(consumed(kafka, topic))
    assert 0 < done < 20
    [report] = pipeline.task(opening, rows)
    pipeline.driver.end(opening, [report])
    records = consumed(kafka, topic)
    assert sorted(ids_in(records)) == list(range(20))
    assert sorted(int(headers["semel-osn"]) for _, _, headers in records) == list(range(1, 21))
    pipeline.close()


def test_a_live_attempt_that_a_zombie_fenced_opens_again_and_asks(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    sink = sink_to(kafka, topic, chunk_rows=4)
    pipeline = KafkaPipeline(tmp_path, sink)
    rows = chunk(0, 40).rows.batch

    def disturbed() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 20)
        with pytest.raises(Fenced):  # a zombie wakes up and opens: it takes Kafka's epoch
            sink.open(target(0, pipeline=pipeline.name)).take_over()
        yield rows.slice(20)

    opening = pipeline.open(0)
    pipeline.driver.end(opening, pipeline.task(opening, disturbed()))
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(40))
    pipeline.close()


def test_nothing_is_repeated_when_the_checkpoint_is_lost_in_the_middle(
    kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, chunk_rows=3))
    rows = chunk(0, 20).rows.batch

    def dies() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 14)
        raise RuntimeError("the worker dies")

    with pytest.raises(RuntimeError, match="the worker dies"):
        pipeline.task(pipeline.open(0), dies())
    assert 0 < len(consumed(kafka, topic)) < 20
    pipeline.start()
    pipeline.minibatch(0, rows, query="another checkpoint")
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(20))
    pipeline.close()


@pytest.mark.rows("S17")
def test_a_broker_that_is_restarted_half_way_loses_and_repeats_nothing(
    kafka_to_restart: KafkaBroker, tmp_path: Path
) -> None:
    kafka, topic = kafka_to_restart, kafka_to_restart.create_topic(partitions=2)
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, chunk_rows=5))
    rows = chunk(0, 30).rows.batch

    def restarted() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 15)
        kafka.restart()
        yield rows.slice(15)

    opening = pipeline.open(0)
    pipeline.driver.end(opening, pipeline.task(opening, restarted()))
    pipeline.minibatch(1, chunk(30, 40).rows.batch)
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(40))
    pipeline.close()


# -- the description


def test_a_sink_says_what_it_can_and_shows_no_secret() -> None:
    sink = Kafka(
        name="out",
        servers="h:1",
        topic="t",
        config={"sasl.username": "ann", "sasl.password": "hunter2", "ssl.key.password": "hunter3"},
    )
    assert sink.capability is Capability.TRANSACTIONAL
    assert sink.last_opener_wins
    assert "hunter" not in f"{sink!r} {sink.describe()}"
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.parametrize("sequenced", [False, True])
def test_a_secret_that_the_client_repeats_in_its_errors_is_not_shown(sequenced: bool) -> None:
    own = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
        "sasl.oauthbearer.config": "principal=ann extension_key=hunter2 oops=hunter3",
    }
    sink = Kafka(name="out", servers="127.0.0.1:1", topic="t", config=own, deadline_s=5.0,
                 sequenced=sequenced)  # fmt: skip
    with pytest.raises(ConfigurationError, match="OAUTHBEARER") as told:
        sink.open(target()).take_over()
    assert "hunter" not in "".join(traceback.format_exception(told.value))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "either topic or topic_column"),
        ({"topic": "t", "topic_column": "c"}, "either topic or topic_column"),
        ({"topic": "semel-progress"}, "is the progress topic"),
        ({"topic": "t", "config": {"transactional.id": "x"}}, "cannot be in config"),
        ({"topic": "t", "config": {"acks": 1}}, "cannot be in config"),
        ({"topic": "t", "stamps": ("offset",)}, "unknown stamp 'offset'"),
        ({"topic": "t", "headers": {"semel-osn": "id"}}, "semel- are reserved"),
        ({"topic": "t", "last_opener_wins": False}, "unknown setting 'last_opener_wins'"),
        ({"topic": "t", "progress_partitions": 0}, "at least 1"),
        ({"topic": "t", "sequenced": True, "stamps": ()}, "all stamps are needed"),
        ({"topic": "t", "sequenced": True, "partition": "p"}, "pass topic, not partition"),
        ({"topic": "t", "servers": ""}, "servers must be a string"),
    ],
)
def test_a_sink_that_cannot_keep_its_promise_is_refused(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Kafka(**{"name": "out", "servers": "h:1", **settings})
