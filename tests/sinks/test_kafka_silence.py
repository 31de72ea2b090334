"""Brokers that are reached and stay silent: every wait ends, in the right error, in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from semel.errors import NotDelivered, OutcomeUnknown, SemelError
from semel.sinks.kafka import Kafka
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import (
    KafkaProxy,
    chunk,
    consumed,
    ids_in,
    progress,
    sink_to,
    target,
)

DEADLINE_S = 2.0
SLACK_S = 1.5
"""For a busy machine."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + SLACK_S


@pytest.mark.parametrize("sequenced", [False, True])
@pytest.mark.parametrize(
    ("api", "when", "raised"),
    [
        ("init", "before", NotDelivered),
        ("init", "after", NotDelivered),
        ("add", "before", NotDelivered),
        ("produce", "after", NotDelivered),
        ("end", "before", OutcomeUnknown),
        ("end", "after", OutcomeUnknown),
    ],
)
def test_silence_ends_a_call_within_its_deadline_and_nothing_is_lost_or_repeated(
    kafka: KafkaBroker,
    topic: str,
    place: str,
    proxy: KafkaProxy,
    api: str,
    when: str,
    raised: type[SemelError],
    sequenced: bool,
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, deadline_s=DEADLINE_S, sequenced=sequenced)
    session = sink.open(target(pipeline=place))
    if api != "init":
        session.take_over()
    proxy.silence(api, when)
    call: Callable[[], object] = partial(session.deliver_with, chunk(0, 3), progress(0, 3))
    if api == "init" and sequenced:
        call = session.take_over  # a log is fenced there, and nowhere else
    with within(DEADLINE_S), pytest.raises(raised):
        call()
    with within(0):
        session.close()

    proxy.speak()
    later = patient(sink).open(target(2, pipeline=place))
    told = later.take_over()
    osn = 0 if told is None else told.osn
    assert osn == (3 if (api, when) == ("end", "after") else 0)
    if not osn:
        later.deliver_with(chunk(0, 3), progress(0, 3, 2))
    later.close()
    assert sorted(ids_in(consumed(kafka, topic))) == [0, 1, 2]


@pytest.mark.parametrize("sequenced", [False, True])
@pytest.mark.parametrize("api", ["offsets", "fetch"])
def test_silence_ends_what_is_read_within_the_deadline(
    kafka: KafkaBroker, topic: str, place: str, proxy: KafkaProxy, api: str, sequenced: bool
) -> None:
    sink = sink_to(kafka, topic, servers=kafka.far, deadline_s=DEADLINE_S, sequenced=sequenced)
    before = sink.open(target(pipeline=place))
    before.take_over()
    before.deliver_with(chunk(0, 3), progress(0, 3))
    before.close()
    session = sink.open(target(2, pipeline=place))
    proxy.silence(api, "before")
    with within(2 * DEADLINE_S), pytest.raises(NotDelivered):  # its fence, and then the question
        session.take_over()
    with within(0):
        session.close()

    proxy.speak()
    told = patient(sink).open(target(3, pipeline=place)).take_over()
    assert told is not None
    assert told.osn == 3


def test_silence_ends_the_look_at_topics_within_the_deadline(
    kafka: KafkaBroker, topic: str, proxy: KafkaProxy
) -> None:
    settings: dict[str, Any] = {"servers": kafka.far, "deadline_s": DEADLINE_S}
    sink = sink_to(kafka, topic, config={"client.id": uuid4().hex}, **settings)
    proxy.silent = True
    with within(DEADLINE_S), pytest.raises(NotDelivered, match=kafka.far):
        sink.open(target())


def patient(sink: Kafka) -> Kafka:
    return replace(sink, deadline_s=20.0)
