"""Where a query reads from, as its plan says, and what Kafka says of its topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.spark.version_needs import has, reason

if not has("connect"):
    pytest.skip(reason("connect"), allow_module_level=True)

from pyspark.sql.connect.plan import DataSource, Filter, LogicalPlan, SetOperation
from pyspark.sql.connect.plan import Range as Numbers

from semel.sinks.kafka.topics import Topics
from semel.spark.frames import kafka_topics, plan
from semel.verify.servers.kafka import KafkaBroker


def through_connect(plan: LogicalPlan) -> Any:
    """A frame as Spark Connect has it: an unresolved plan, and nothing of Java."""
    return SimpleNamespace(_plan=plan)


def reading(options: dict[str, str], kind: str = "kafka", *, streaming: bool = True) -> DataSource:
    return DataSource(kind, options=options, is_streaming=streaming)


def filtered(child: LogicalPlan) -> LogicalPlan:
    made = Filter.__new__(Filter)
    LogicalPlan.__init__(made, child)
    return made


SERVED = {"kafka.bootstrap.servers": "here:9092", "subscribe": "t"}


def test_the_kafka_below_other_operators_is_found_with_what_its_client_is_told() -> None:
    found = kafka_topics.find(through_connect(filtered(filtered(reading(SERVED)))))
    assert found is not None
    assert found.config == {"bootstrap.servers": "here:9092"}
    assert "here" not in repr(found), "there may be secrets in it"


@pytest.mark.parametrize(
    "plan",
    [
        reading({}, "rate"),
        reading(SERVED, streaming=False),
        SetOperation(reading(SERVED), reading({}, "rate"), "union"),
        SetOperation(reading(SERVED), reading(SERVED), "union"),
    ],
)
def test_another_source_or_a_second_one_makes_it_unknown_with_the_reason(plan: LogicalPlan) -> None:
    frame = through_connect(plan)
    assert kafka_topics.find(frame) is None
    assert kafka_topics.unknown(frame, None) == kafka_topics.OTHER
    assert kafka_topics.ask(frame, None, ["t"]).ids == {}


def test_a_table_that_is_no_stream_beside_it_does_not_matter() -> None:
    plan = SetOperation(reading(SERVED), Numbers(0, 5, 1), "union")
    assert kafka_topics.find(through_connect(plan)) is not None


HIDDEN = """== Analyzed Logical Plan ==
offset: bigint
Filter (offset#11L > 7)
+- SubqueryAlias spread
   +- ~StreamingRelationV2 KafkaSourceProvider@1, kafka, KafkaTable@2, [{options}], [a#1]

== Optimized Logical Plan ==
org.apache.spark.sql.AnalysisException: Queries with streaming sources must be executed with start()

== Physical Plan ==
org.apache.spark.sql.AnalysisException: Queries with streaming sources must be executed with start()
kafka
"""
"""The plan of a view as a Connect server explains it; the client knows its name alone."""


@pytest.mark.parametrize(
    ("options", "splitting"),
    [
        ("subscribe=a, minPartitions=4", ("minPartitions=4",)),
        ("MAXRECORDSPERPARTITION=9, subscribe=a", ("MAXRECORDSPERPARTITION=9",)),
        ("subscribe=a", ()),
    ],
)
def test_through_connect_the_options_behind_a_view_are_seen(
    options: str, splitting: tuple[str, ...]
) -> None:
    frame = through_connect(filtered(Numbers(0, 5, 1)))
    frame._explain_string = lambda **_: HIDDEN.format(options=options)
    assert plan.route(frame) == plan.Route(1, "", splitting)


@pytest.mark.parametrize("streaming", [True, False])
def test_through_connect_the_options_of_a_source_that_is_named_are_seen(streaming: bool) -> None:
    frame = through_connect(filtered(reading({"minPartitions": "4"}, streaming=streaming)))
    frame._explain_string = lambda **_: ""
    assert plan.route(frame).splitting == ("minPartitions=4",)


def test_through_connect_a_secured_broker_is_unknown_and_not_asked() -> None:
    frame = through_connect(reading({**SERVED, "kafka.sasl.jaas.config": "secret"}))
    found = kafka_topics.find(frame)
    assert kafka_topics.unknown(frame, found) == kafka_topics.JVM_ONLY
    told = kafka_topics.ask(frame, found, ["t"])
    assert (told.ids, told.why) == ({}, kafka_topics.JVM_ONLY)


def test_through_connect_kafka_tells_the_ids_of_the_topics_that_are_there(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create_topic()
    frame = through_connect(reading({"kafka.bootstrap.servers": kafka.servers}))
    told = kafka_topics.ask(frame, kafka_topics.find(frame), [topic, "no-such-topic"])
    assert set(told.ids) == {topic}
    assert "no-such-topic" in told.why
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    again = kafka_topics.ask(frame, kafka_topics.find(frame), [topic])
    assert again.why == ""
    assert again.ids[topic] != told.ids[topic]
    found = Topics({"bootstrap.servers": kafka.servers}, "test").find(topic)
    assert found is not None
    assert again.ids[topic] == found.id.replace("/", "_").replace("+", "-")
