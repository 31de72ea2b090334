"""Kafka on real Spark: drivers and workers are killed, the broker restarts; the topic is the
witness.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from semel.verify.demo.charge_server import ChargeServer
from semel.verify.demo.standalone import SMALL_JVM, spark_environment
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.kafka import KafkaBroker
from support.kafka_fixture import jars_or_skip
from support.sinks.kafka_pipeline import Record, consumed
from support.spark.driver_scripts import Bed, Run, wait_for
from support.spark.reconcile import seed
from support.spark.settings import Settings

STEPS = {
    "claim.before": 6,
    "claim.after": 6,
    "take.before": 2,
    "take.after": 2,
    "session.open": 6,
    "effect.before": 15,
    "effect.after": 15,
}
"""The steps of a task, and how often each is reached at least."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "kafka.py"
GIVEN = {"entity": "customer", "event": "payment_id"}


@pytest.mark.rows("S17", "O6", "O10", "O11", "O23")
def test_workers_are_killed_at_every_step_and_the_topic_has_each_event_once(
    bed: Bed, kafka: KafkaBroker
) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=24, customers=24)
    rounds: list[tuple[Settings, ChargeServer, str]] = []
    for sequenced in (False, True):
        house = bed.house if not rounds else ChargeServer().__enter__()
        topic = kafka.create_topic(partitions=2)
        name = f"{'log' if sequenced else 'rows'}-{uuid4().hex}"
        settings = bed.settings(
            name=name,
            house=house.url,
            checkpoint=str(bed.folder / name),
            master="local[2,12]",
            identity=GIVEN,
            words={"partitions": 2},
            sink_settings={
                "servers": kafka.servers,
                "topic": topic,
                "sequenced": sequenced,
                "chunk_rows": 3,
                "steps": list(STEPS),
            },
        )
        for step, reached in STEPS.items():
            house.arm(step, after=luck.randrange(reached))
        rounds.append((settings, house, topic))
    try:
        run = bed.start(*(settings for settings, _, _ in rounds), script="support.spark.kafka_job")
        run.finished(400)
        for _, house, topic in rounds:
            taken = Counter(each.name for each in house.taken())
            assert taken == dict.fromkeys(STEPS, 1), "not every step was reached"
            assert_payments_once(consumed(kafka, topic), bed)
    finally:
        rounds[1][1].__exit__(None, None, None)


@pytest.mark.rows("S17", "O10")
def test_drivers_and_workers_are_killed_a_checkpoint_is_lost_and_the_broker_restarts(
    bed: Bed, kafka_to_restart: KafkaBroker
) -> None:
    kafka = kafka_to_restart
    luck = random.Random(seed())
    given, taken = (kafka.create_topic(partitions=2) for _ in "12")
    count = 1_500
    produce(kafka, given, count)
    settings = bed.settings(
        name=f"mirror-{uuid4().hex}",
        source="kafka",
        input=given,
        max_files=60,
        identity={"identity": "position"},
        conf={"spark.jars": jars_or_skip("spark")},
        sink_settings={
            "servers": kafka.servers,
            "topic": taken,
            "key": "key",
            "value": "value",
            "chunk_rows": 7,
        },
    )
    restarted = False
    for start in range(6):
        run = bed.start(settings, script="support.spark.kafka_job")
        if start < 2:
            there = len(consumed(kafka, taken))
            wait_for(partial(holds_more, kafka, taken, there + luck.randrange(40, 200)), run)
            kill_a_worker(run, luck)
            time.sleep(luck.uniform(0.1, 1.0))
            run.kill()
            run.wait()
            bed.end_leftovers()
            if start == 1:  # the topic is read from its beginning again
                shutil.rmtree(settings.checkpoint)
            continue
        if not restarted:
            there = len(consumed(kafka, taken))
            wait_for(partial(holds_more, kafka, taken, there + 60), run, 180)
            kafka.restart()
            restarted = len(consumed(kafka, taken)) < count
        if run.wait(240) == 0:
            break
        assert "kafka" in run.said().lower(), run.said()  # Spark's own source may give up
    assert restarted, "it was at its end before the broker was"
    records = consumed(kafka, taken)
    ids = [int(value or b"-1") for _, value, _ in records]
    assert Counter(ids) == Counter(range(count))
    last: dict[bytes | None, int] = {}
    for (key, _, _), number in zip(records, ids, strict=True):
        assert number > last.get(key, -1), "an entity's events are out of order"
        last[key] = number


def test_a_topic_deleted_and_made_anew_under_its_name_stops_the_pipeline_and_loses_nothing(
    bed: Bed, kafka: KafkaBroker
) -> None:
    given, taken = (kafka.create_topic(partitions=1) for _ in "12")
    produce(kafka, given, 20)
    settings = bed.settings(
        name=f"anew-{uuid4().hex}",
        source="kafka",
        input=given,
        max_files=60,
        identity={"identity": "position"},
        conf={"spark.jars": jars_or_skip("spark")},
        sink_settings={"servers": kafka.servers, "topic": taken, "value": "value"},
    )
    bed.start(settings, script="support.spark.kafka_job").finished(200)
    kafka.delete_topic(given)
    assert kafka.create_topic(given, partitions=1) == given
    produce(kafka, given, 5)  # fewer: the event at the watermark never comes again
    shutil.rmtree(settings.checkpoint)
    run = bed.start(settings, script="support.spark.kafka_job")
    assert run.wait(200) != 0
    assert f"topic {given!r} was recreated" in run.said()
    assert len(consumed(kafka, taken)) == 20
    afresh = replace(settings, name=f"{settings.name}-2", checkpoint=f"{settings.checkpoint}-2")
    bed.start(afresh, script="support.spark.kafka_job").finished(200)
    assert len(consumed(kafka, taken)) == 25


def test_what_the_source_spreads_is_refused_and_a_topic_of_the_last_micro_batch_is_known(
    bed: Bed, kafka: KafkaBroker
) -> None:
    settings = bed.settings(
        name="sources",
        source="kafka",
        input=kafka.create_topic(partitions=1),
        conf={"spark.jars": jars_or_skip("spark")},
        sink_settings={"servers": kafka.servers, "notes": str(bed.folder / "notes")},
    )
    run = bed.start(settings, script="support.spark.kafka_sources_job")
    run.finished(200)
    refused = dict(re.findall(r"^refused ([^:]*): (.*)$", run.said(), re.MULTILINE))
    for case in ("minPartitions", "behind a view", "a batch", "a batch by V2"):
        assert "Kafka source has minpartitions=4, with which" in refused[case].replace("P", "p")
    assert "axRecordsPerPartition=100" in refused["maxRecordsPerPartition"]
    for case in ("two sources", "twice"):
        assert "reads 2 streaming sources, and positions" in refused[case]
    assert all(text.startswith("pipeline 'sources") for text in refused.values())
    assert "given ids may be spread" in run.said()
    assert re.findall(r"^delivered (\d+)$", run.said(), re.MULTILINE) == ["3", "8"]
    assert f"topic '{settings.input}-second' was recreated" in run.said()
    assert len((bed.folder / "notes").read_text().splitlines()) == 8


def assert_payments_once(records: list[Record], bed: Bed) -> None:
    """Each payment is there once, and those of a customer stand in their order."""
    found = [json.loads(value or b"") for _, value, _ in records]
    names = Counter((each["customer"], each["payment_id"]) for each in found)
    assert names == Counter(bed.expected)
    last: dict[str, int] = {}
    for each in found:
        assert each["payment_id"] > last.get(each["customer"], -1)
        last[each["customer"]] = each["payment_id"]


def holds_more(kafka: KafkaBroker, topic: str, count: int) -> bool:
    return len(consumed(kafka, topic)) > count


def produce(kafka: KafkaBroker, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": kafka.servers, "partitioner": "murmur2"}
    producer = Producer(settings)
    for number in range(count):
        producer.produce(topic, str(number).encode(), f"k{number % 9}".encode())
    assert producer.flush(30) == 0


def kill_a_worker(run: Run, luck: random.Random) -> None:
    workers = run.workers()
    if workers:
        with suppress(ProcessLookupError):
            os.kill(luck.choice(workers), signal.SIGKILL)


def test_the_example_sends_each_payment_once(kafka: KafkaBroker, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLE), kafka.servers, str(tmp_path / "out")]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "12 payments: 12 records" in said
    assert "checkpoint lost, read again: 12 records, 12 of them different" in said
    assert "c1: payments [1, 4, 7, 10]" in said
