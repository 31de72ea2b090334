"""Kafka in trouble: what each error becomes, and that unknown is never taken for an outcome."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import (
    ConfigurationError,
    Fenced,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.events import EntityIds, IdSet
from semel.sinks import Progress, Retry
from semel.sinks.kafka.connection import KafkaConnection
from semel.sinks.kafka.producer import (
    AT_FAULT,
    FENCED,
    PARTITION_AT_FAULT,
    PURGED,
    RIGHTS,
    TOPIC_AT_FAULT,
    WRONG,
    Writer,
)
from semel.sinks.kafka.transactional_session import ProgressSession
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import (
    APIS,
    KafkaPipeline,
    KafkaProxy,
    alter,
    chunk,
    consumed,
    ids_in,
    progress,
    proxied,
    sink_to,
    target,
)

SECRET = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}


def opened(sink: Any, place: str, task: int = 1) -> ProgressSession:
    session = sink.open(target(task, pipeline=place))
    assert isinstance(session, ProgressSession)
    return session


# -- replies lost


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_without_an_answer_is_unknown_and_kafka_is_asked(
    kafka: KafkaBroker, topic: str, place: str, proxy: KafkaProxy, when: str
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, deadline_s=2.0)
    session = opened(sink, place)
    session.take_over()
    session.deliver_with(chunk(0, 3), progress(0, 3))
    proxy.cut_once("end", when, stay_down=True)

    with pytest.raises(OutcomeUnknown):
        session.deliver_with(chunk(3, 6), progress(3, 6))

    session.close()
    proxy.down = False
    later = opened(sink, place, 2)
    told = later.take_over()
    assert isinstance(told, Progress)
    assert told.done == (6 if when == "after" else 3)
    if told.done == 3:
        later.deliver_with(chunk(3, 6), progress(3, 6, 2))
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(6))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("api", ["produce", "add", "end"])
def test_a_connection_that_is_cut_once_loses_and_repeats_nothing(
    kafka: KafkaBroker, topic: str, proxy: KafkaProxy, tmp_path: Path, api: str, when: str
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, chunk_rows=10)
    pipeline = KafkaPipeline(tmp_path, sink)
    rows = chunk(0, 40).rows.batch

    def cut() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 20)
        proxy.cut_once(api, when)
        yield rows.slice(20)

    opening = pipeline.open(0)
    pipeline.driver.end(opening, pipeline.task(opening, cut()))
    assert sorted(ids_in(consumed(kafka, topic))) == list(range(40))
    pipeline.close()


def test_brokers_that_go_away_in_the_middle_of_a_chunk_mean_not_delivered(
    kafka: KafkaBroker, topic: str, place: str, proxy: KafkaProxy
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, deadline_s=1.5)
    session = opened(sink, place)
    session.take_over()
    proxy.cut_once("add", "before", stay_down=True)
    with pytest.raises(NotDelivered):
        session.deliver_with(chunk(0, 3), progress(0, 3))
    with pytest.raises(NotDelivered):  # it fences and asks again, and no broker answers
        session.deliver_with(chunk(0, 3), progress(0, 3))
    proxy.down = False
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with suppress(NotDelivered):
            session.deliver_with(chunk(0, 3), progress(0, 3))
            break
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2]


def test_a_transaction_that_expires_is_never_taken_for_success(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic, transaction_timeout_s=1.0)
    session = opened(sink, place)
    session.take_over()
    send = Writer.send

    def slow(writer: Writer, *arguments: Any) -> None:
        send(writer, *arguments)
        writer._producer.flush()
        time.sleep(3.0)  # the brokers abort it meanwhile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "send", slow)
        with pytest.raises((OutcomeUnknown, Fenced, NotDelivered)):
            session.deliver_with(chunk(0, 3), progress(0, 3))
    assert consumed(kafka, topic) == []
    session.close()
    later = opened(sink, place, 2)
    told = later.take_over()
    assert isinstance(told, Progress)
    assert told.done == 0
    later.deliver_with(chunk(0, 3), progress(0, 3, 2))
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2]


def test_a_crash_in_the_middle_of_a_transaction_leaves_nothing_to_see(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    sink = sink_to(kafka, topic)
    session = opened(sink, place)
    session.take_over()
    writer = session._claim().writer
    writer._producer.begin_transaction()
    writer.put(topic, b'{"id":0}', b"k")
    writer._producer.flush()
    assert consumed(kafka, topic, isolation="read_uncommitted")
    told = opened(sink, place, 2).take_over()  # its fence aborts what was open
    assert isinstance(told, Progress)
    assert told.done == 0
    assert consumed(kafka, topic) == []


# -- configuration, rights and sizes


def test_nobody_there_means_not_delivered(kafka: KafkaBroker, topic: str) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, config={"socket.timeout.ms": 500})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semel.sinks.kafka.topics.PATIENCE_S", 0.5)
        with pytest.raises(NotDelivered, match=kafka.far):
            sink.open(target())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topic": "there-is-none"}, "topic 'there-is-none' does not exist"),
        ({"config": {"no.such.setting": 1}}, "does not know 'no.such.setting'"),
        ({"config": {"batch.size": "much"}}, "refuses the value of 'batch.size'"),
        ({"config": {"security.protocol": "hunter2"}}, "of 'security.protocol' in the sink's"),
    ],
)
def test_what_a_person_has_to_mend_stops_the_pipeline(
    kafka: KafkaBroker, topic: str, place: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        opened(sink_to(kafka, **{"topic": topic, **settings}), place).take_over()


def test_a_progress_topic_that_forgets_or_is_too_small_is_refused(
    kafka: KafkaBroker, topic: str
) -> None:
    forgets = kafka.create_topic(partitions=4, cleanup_policy="delete")
    with pytest.raises(ConfigurationError, match="it would forget what was delivered"):
        sink_to(kafka, topic, progress_topic=forgets).open(target())
    small = kafka.create_topic(partitions=1, cleanup_policy="compact")
    with pytest.raises(ConfigurationError, match="has 1 partitions"):
        sink_to(kafka, topic, progress_topic=small).open(target())


def test_a_wrong_password_is_told_at_once_and_never_shown(kafka: KafkaBroker, topic: str) -> None:
    secret = {**SECRET, "sasl.username": kafka.user, "sasl.password": "hunter2"}
    sink = sink_to(kafka, topic, servers=kafka.guarded, config=secret)
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="uthentication") as caught:
        sink.open(target())
    assert time.monotonic() - began < 9
    assert "hunter2" not in f"{caught.value!r}{sink!r}"


def test_what_the_user_may_not_do_is_told_and_mended_by_a_right(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    secret = {**SECRET, "sasl.username": kafka.user, "sasl.password": kafka.password}
    own = kafka.create_topic(partitions=4, cleanup_policy="compact")
    sink = sink_to(kafka, topic, servers=kafka.guarded, config=secret, progress_topic=own)
    with pytest.raises(ConfigurationError, match="does not exist"):
        sink.open(target())
    allow(kafka, "TOPIC", topic, "DESCRIBE")
    allow(kafka, "TOPIC", own, "DESCRIBE", "READ", "WRITE")
    with pytest.raises(ConfigurationError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        opened(sink, place).take_over()
    allow(kafka, "TRANSACTIONAL_ID", f"semel/{place}/out/0", "DESCRIBE", "WRITE")
    session = opened(sink, place)
    session.take_over()
    with pytest.raises(ConfigurationError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
        session.deliver_with(chunk(0, 3), progress(0, 3))
    assert kafka.password not in str(caught.value)
    allow(kafka, "TOPIC", topic, "WRITE")
    session.deliver_with(chunk(0, 3), progress(0, 3))
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2]


def test_a_right_that_is_missing_for_a_topic_by_column_is_no_fault_of_an_event(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    secret = {**SECRET, "sasl.username": kafka.user, "sasl.password": kafka.password}
    own = kafka.create_topic(partitions=4, cleanup_policy="compact")
    words: dict[str, Any] = {"servers": kafka.guarded, "config": secret, "progress_topic": own}
    allow(kafka, "TOPIC", topic, "DESCRIBE")
    allow(kafka, "TOPIC", own, "DESCRIBE", "READ", "WRITE")
    allow(kafka, "TRANSACTIONAL_ID", f"semel/{place}/out/0", "DESCRIBE", "WRITE")
    session = opened(sink_to(kafka, None, topic_column="t", **words), place)
    session.take_over()
    with pytest.raises(ConfigurationError, match="TOPIC_AUTHORIZATION_FAILED"):
        session.deliver_with(chunk(0, 3, t=[topic] * 3), progress(0, 3))
    allow(kafka, "TOPIC", topic, "WRITE")
    session.deliver_with(chunk(0, 3, t=[topic] * 3), progress(0, 3))
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2]


@pytest.mark.parametrize("sequenced", [False, True])
def test_a_time_that_the_broker_refuses_is_no_fault_of_an_event(
    kafka: KafkaBroker, tmp_path: Path, sequenced: bool
) -> None:
    # Records that travel for longer than the topic takes: a limit of 1 ms would refuse the broker's
    # own markers too, and the transaction would stay open.
    topic = kafka.create_topic(message_timestamp_before_max_ms=200)
    with proxied(kafka) as proxy:
        proxy.delays_s[APIS["produce"]] = 0.4
        pipeline = KafkaPipeline(
            tmp_path, sink_to(kafka, topic, servers=kafka.far, sequenced=sequenced)
        )
        with pytest.raises(ConfigurationError, match=r"INVALID_TIMESTAMP.*message\.timestamp\."):
            pipeline.minibatch(0, chunk(0, 5).rows.batch)
        assert pipeline.parked() == []
        assert consumed(kafka, topic) == []
        alter(kafka, topic, "message.timestamp.before.max.ms", "86400000")
        pipeline.start()
        pipeline.minibatch(0, chunk(0, 5).rows.batch)
        assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2, 3, 4]
        pipeline.close()


def test_a_partition_that_is_not_there_is_an_events_fault_only_where_the_event_chose_it(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    writer = KafkaConnection(sink_to(kafka, topic), target(pipeline=place))
    writer.look()
    made = writer.writer()
    with pytest.raises(ConfigurationError, match="_UNKNOWN_PARTITION"):
        made.transact(lambda each: each.put(topic, b"x", b"k", 7))
    with pytest.raises(Rejected, match="partition"):
        made.transact(lambda each: each.put(topic, b"x", b"k", 7), chosen=PARTITION_AT_FAULT)
    made.close()


ABOUT_THE_CLUSTER = [
    "INVALID_TIMESTAMP",
    "INVALID_MSG",
    "INVALID_MSG_SIZE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "INVALID_REQUIRED_ACKS",
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "KAFKA_STORAGE_ERROR",
    "POLICY_VIOLATION",
    "THROTTLING_QUOTA_EXCEEDED",
    "INVALID_TXN_STATE",
    "UNKNOWN_SERVER_ERROR",
    "UNKNOWN",
]


def test_no_error_about_topic_cluster_or_rights_makes_a_dead_letter(
    kafka: KafkaBroker, topic: str, place: str
) -> None:
    from confluent_kafka import KafkaError

    outlet = KafkaConnection(sink_to(kafka, topic), target(pipeline=place))
    outlet.look()
    writer = outlet.writer()
    codes: Mapping[str, Any] = vars(KafkaError)
    for name in ABOUT_THE_CLUSTER:
        if name in codes:
            found = writer._before_commit(KafkaError(codes[name]), frozenset())
            assert isinstance(found, ConfigurationError | NotDelivered), name
    assert sum(name in codes for name in ABOUT_THE_CLUSTER) > 15
    tables = AT_FAULT | TOPIC_AT_FAULT | PARTITION_AT_FAULT | RIGHTS | WRONG | FENCED | PURGED
    assert {name for name in tables if name not in codes} <= {"PRODUCER_FENCED"}
    writer.close()


def allow(kafka: KafkaBroker, kind: str, name: str, *operations: str) -> None:
    from confluent_kafka import admin

    api: Any = admin
    kinds = {"TOPIC": api.ResourceType.TOPIC, "TRANSACTIONAL_ID": api.ResourceType.TRANSACTIONAL_ID}
    rights = [
        api.AclBinding(
            kinds[kind],
            name,
            api.ResourcePatternType.LITERAL,
            f"User:{kafka.user}",
            "*",
            api.AclOperation[operation],
            api.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    client = kafka.admin()
    for done in client.create_acls(rights).values():
        done.result(20)
    time.sleep(0.2)


def test_a_record_that_is_too_large_is_rejected_before_it_is_sent(
    kafka: KafkaBroker, place: str
) -> None:
    topic = kafka.create_topic(max_message_bytes=20_000)
    session = opened(sink_to(kafka, topic, value="body"), place)
    session.take_over()
    with pytest.raises(Rejected, match="the limit is 20,000"):
        session.deliver_with(chunk(0, 2, body=["a", "b" * 20_000]), progress(0, 2))
    session.deliver_with(chunk(0, 200, body=["b" * 15_000] * 200), progress(0, 200))
    assert len(consumed(kafka, topic)) == 200


def test_a_record_that_the_broker_refuses_is_found_and_parked_alone(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic(cleanup_policy="compact")  # takes no record without a key
    keys: list[str | None] = [None if n in (5, 13) else f"k{n}" for n in range(20)]
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, key="k", chunk_rows=20))
    pipeline.minibatch(0, chunk(0, 20, k=keys).rows.batch)
    assert sorted(ids_in(consumed(kafka, topic))) == [n for n in range(20) if n not in (5, 13)]
    assert [row.event for row in pipeline.parked()] == [5, 13]
    assert all("Kafka rejected the record" in row.why for row in pipeline.parked())
    pipeline.close()


def test_progress_that_does_not_fit_its_topic_is_no_fault_of_an_event(
    kafka: KafkaBroker, place: str
) -> None:
    narrow = kafka.create_topic(max_message_bytes=20_000)  # for events, not for progress
    few = kafka.create_topic(partitions=4, cleanup_policy="compact", max_message_bytes=30_000)
    luck = random.Random(3)
    ids = EntityIds.of({"a": IdSet.of([f"{luck.getrandbits(128):032x}" for _ in range(5_000)])})
    session = opened(sink_to(kafka, narrow), place)
    session.take_over()
    session.deliver_with(chunk(0, 2), progress(0, 2, ids=ids))
    told = session.take_over()
    assert isinstance(told, Progress)
    assert told.ids == ids
    session = opened(sink_to(kafka, narrow, progress_topic=few), place)
    session.take_over()
    with pytest.raises(ConfigurationError, match="does not fit into the progress topic"):
        session.deliver_with(chunk(2, 4), progress(2, 4, ids=ids))
    session.deliver_with(chunk(2, 4), progress(2, 4))
    assert sorted(ids_in(consumed(kafka, narrow))) == [0, 1, 2, 3]


def test_every_error_of_a_session_is_one_of_semels(
    kafka: KafkaBroker, topic: str, place: str, proxy: KafkaProxy
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, deadline_s=1.0, retry=Retry(for_s=1.0))
    for api in ("init", "add"):
        proxy.down = False
        session = None
        with suppress(SemelError):
            session = opened(sink, f"{place}-{api}")
            if api == "init":
                proxy.cut_once(api, "before", stay_down=True)
            session.take_over()
            proxy.cut_once(api, "before", stay_down=True)
            session.deliver_with(chunk(0, 3), progress(0, 3))
        if session is not None:
            session.close()
    assert all(key is not None for key, _, _ in consumed(kafka, topic))
