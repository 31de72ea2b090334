"""Rows as Kafka records: keys, values, headers, topics, partitions; and rows that cannot be one."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, Rejected
from semel.events import Position
from semel.events.encoding import json_column
from semel.sinks.kafka.records import RUN_ROWS, STAMPS, Shape, records_of
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_pipeline import PROGRESS, KafkaPipeline, chunk, consumed, ids_in, sink_to


def values(shape: Shape | None = None, **columns: Any) -> list[Any]:
    count = len(next(iter(columns.values())))
    made = records_of(chunk(0, count, **columns), shape or Shape(), "pay")
    return [None if value is None else json.loads(value) for value in made.values.to_pylist()]


def test_a_value_is_the_json_of_all_columns() -> None:
    [first, second] = values(
        text=["a", 'q"\\\n\x00\u2028é😀'],
        whole=pa.array([1, None], pa.int64()),
        real=[0.5, float("nan")],
        flag=[True, None],
        money=pa.array([Decimal("12.30"), None], pa.decimal128(10, 2)),
        raw=pa.array([b"\x00\xff", None], pa.binary()),
        day=[date(2026, 1, 31), None],
        at=pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        many=[[1, None], None],
        deep=[{"a": {"b": "x"}}, None],
    )
    assert first == {
        "c": "c0", "id": 0, "text": "a", "whole": 1, "real": 0.5, "flag": True, "money": 12.3,
        "raw": "AP8=", "day": "2026-01-31", "at": "2026-01-31T12:00:00+00:00", "many": [1, None],
        "deep": {"a": {"b": "x"}},
    }  # fmt: skip
    assert second["text"] == 'q"\\\n\x00\u2028é😀'
    assert second["real"] == "NaN"
    assert {second[name] for name in ("whole", "flag", "money", "raw", "day", "at", "many")} == {
        None
    }


def test_numbers_are_written_as_json_reads_them() -> None:
    numbers = [0.1, 1e300, -1e-300, 1e20, 123456789.123, 0.0, -0.0, 5e-324]
    assert [json.loads(text) for text in json_column(pa.array(numbers)).to_pylist()] == numbers
    large = [2**63 - 1, -(2**63)]
    assert [json.loads(text) for text in json_column(pa.array(large)).to_pylist()] == large


def test_texts_of_all_kinds_survive_json() -> None:
    luck = random.Random(7)
    texts = [
        "".join(chr(luck.choice([luck.randrange(0xD800), luck.randrange(0x80)])) for _ in range(9))
        for _ in range(2000)
    ]
    for some in (texts, [each for each in texts if each.isalnum()]):
        assert [json.loads(text) for text in json_column(pa.array(some)).to_pylist()] == some


def test_a_chosen_column_is_the_value_as_it_is_and_null_is_a_tombstone() -> None:
    shape = Shape(value="v", key="k")
    made = records_of(chunk(0, 3, v=[b"\xff", None, b""], k=["a", None, "é"]), shape, "pay")
    assert made.values.to_pylist() == [b"\xff", None, b""]
    assert made.keys is not None
    assert made.keys.to_pylist() == [b"a", None, "é".encode()]


def test_headers_name_pipeline_entity_event_and_number() -> None:
    shape = Shape(headers=(("trace", "t"),))
    made = records_of(chunk(3, 5, t=["x\r\ny: z", None]), shape, "pay")
    first, second = made.headers()
    assert first == [
        ("semel-pipeline", b"pay"),
        ("semel-osn", b"4"),
        ("semel-entity", b"c0"),
        ("semel-event", b"3"),
        ("trace", b"x\r\ny: z"),  # a header has a length: nothing is injected
    ]
    assert second[-1] == ("trace", None)
    assert records_of(chunk(0, 2), Shape(stamps=()), "pay").bare
    made = records_of(chunk(0, 2), Shape(stamps=("pipeline",)), "pay")
    made.last.append(("end", b"x"))
    assert list(made.headers()) == [
        [("semel-pipeline", b"pay")],
        [("semel-pipeline", b"pay"), ("end", b"x")],
    ]
    made = records_of(chunk(0, 2), Shape(stamps=()), "pay")
    made.last.append(("end", b"x"))
    assert list(made.headers()) == [[], [("end", b"x")]]


@pytest.mark.parametrize("count", [1, RUN_ROWS, RUN_ROWS + 1, 2 * RUN_ROWS])
def test_runs_are_the_records_in_their_order_and_only_the_last_one_ends(count: int) -> None:
    shape = Shape(value="v", topic="t", partition="p")
    numbers = [n % 5 for n in range(count)]
    topics = [f"t{n % 7}" for n in range(count)]
    rows = chunk(0, count, v=[f"{n}" for n in range(count)], t=topics, p=numbers)
    whole = records_of(rows, shape, "pay")
    whole.last.append(("end", b"x"))
    runs = list(whole.runs())
    assert [n for run in runs for n in run.values.to_pylist()] == [b"%d" % n for n in range(count)]
    assert [n for run in runs for n in run.keys or ()] == list(whole.keys or ())
    assert [n for run in runs for n in run.topics or ()] == topics
    assert [n for run in runs for n in run.partitions or ()] == numbers
    headers = [each for run in runs for each in run.headers()]
    assert headers == list(whole.headers())
    assert [n for n, each in enumerate(headers) if ("end", b"x") in each] == [count - 1]
    assert max(map(len, runs)) <= RUN_ROWS


@pytest.mark.parametrize(
    ("shape", "columns", "says"),
    [
        (Shape(value="v"), {"v": [0.5]}, "cast"),
        (Shape(key="k"), {"v": [1]}, "the column 'k' for the key does not exist"),
        (Shape(topic="v"), {"v": [1]}, "a topic name must be text"),
        (Shape(partition="v"), {"v": ["1"]}, "a partition must be an integer"),
    ],
)
def test_columns_that_cannot_be_used_so_stop_the_pipeline(
    shape: Shape, columns: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        records_of(chunk(0, 1, **columns), shape, "pay")


@pytest.mark.parametrize(
    "name", ["", None, "a/b", "../x", "__consumer_offsets", "a\x00", "x" * 250, "."]
)
def test_a_topic_that_cannot_be_is_rejected(name: str | None) -> None:
    with pytest.raises(Rejected, match="not a valid topic name"):
        records_of(chunk(0, 2, t=["good", name]), Shape(topic="t"), "pay")


# -- at a real broker


def test_rows_go_to_the_topic_and_the_partition_that_they_name(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    one, two = kafka.create_topic(partitions=3), kafka.create_topic(partitions=3)
    names = [one, two, one, PROGRESS, "no-such-topic", "__consumer_offsets", one]
    numbers = [0, 1, 2, 0, 0, 0, 7]
    sink = sink_to(kafka, None, topic_column="t", partition="p", chunk_rows=7)
    pipeline = KafkaPipeline(tmp_path, sink)
    pipeline.minibatch(0, chunk(0, 7, t=names, p=pa.array(numbers, pa.int32())).rows.batch)
    assert ids_in(consumed(kafka, one)) == [0, 2]
    assert ids_in(consumed(kafka, two)) == [1]
    parked = {row.event: row.why for row in pipeline.parked()}
    assert sorted(parked) == [3, 4, 5, 6]
    assert "is the progress topic" in parked[3]
    assert "does not exist" in parked[4]
    assert "has no partition 7" in parked[6]
    pipeline.close()


def test_a_key_goes_to_the_partition_where_java_would_send_it(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=8)
    keys = ["21", "foobar", "abc"]
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, key="k", stamps=()))
    pipeline.minibatch(0, chunk(0, 3, k=keys).rows.batch)
    murmur2 = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
    expected = sorted(keys, key=lambda key: (murmur2[key] & 0x7FFFFFFF) % 8)
    assert [key for key, _, _ in consumed(kafka, topic)] == [each.encode() for each in expected]
    pipeline.close()


def test_ten_thousand_strange_records_are_delivered_or_parked_and_order_is_kept(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic(partitions=3, max_message_bytes=50_000)
    luck = random.Random(11)
    count = 10_000
    bodies: list[str | None] = []
    for _ in range(count):
        draw = luck.random()
        if draw < 0.003:
            bodies.append("x" * luck.randrange(50_000, 60_000))
        elif draw < 0.05:
            bodies.append(None)
        else:
            bodies.append("".join(chr(luck.randrange(1, 0xD7FF)) for _ in range(luck.randrange(9))))
    bodies[17] = "'; drop table x; --\x00\"\\"
    rows = chunk(0, count, body=bodies).rows.batch
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, chunk_rows=2_000))
    pipeline.minibatch(0, rows)
    records = consumed(kafka, topic)
    parked = pipeline.parked()
    found = {json.loads(value or b"")["id"]: json.loads(value or b"") for _, value, _ in records}
    large = {n for n, body in enumerate(bodies) if body is not None and len(body) >= 50_000}
    assert len(found) == len(records)
    assert {row.event for row in parked} >= large
    assert {row.event for row in parked}.isdisjoint(found)
    assert len(found) + len(parked) == count
    assert all("too large" in row.why for row in parked)
    assert all(each["body"] == bodies[n] for n, each in found.items())
    last: dict[bytes | None, int] = {}
    for key, _, headers in records:
        osn = int(headers["semel-osn"])
        assert osn > last.get(key, 0)
        last[key] = osn
    pipeline.close()


@pytest.mark.parametrize("stamps", [STAMPS, ()], ids=["headers", "no headers"])
def test_a_chunk_that_is_larger_than_the_queue_of_the_client_arrives_whole_and_in_order(
    kafka: KafkaBroker, tmp_path: Path, stamps: tuple[str, ...]
) -> None:
    topic = kafka.create_topic()
    small = {"queue.buffering.max.messages": 100}
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic, stamps=stamps, config=small))
    pipeline.minibatch(0, chunk(0, 2 * RUN_ROWS + 500).rows.batch)
    assert ids_in(consumed(kafka, topic)) == list(range(2 * RUN_ROWS + 500))
    pipeline.close()


def test_position_identity_without_an_entity_has_no_key(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create_topic()
    pipeline = KafkaPipeline(tmp_path, sink_to(kafka, topic), Position())
    rows = pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * 5,
            "partition": pa.array([0] * 5, pa.int32()),
            "offset": pa.array(range(5), pa.int64()),
            "id": range(5),
        }
    )
    opening = pipeline.open(0)
    pipeline.driver.end(opening, pipeline.task(opening, rows, partition="t/0"))
    records = consumed(kafka, topic)
    assert ids_in(records) == list(range(5))
    assert {key for key, _, _ in records} == {None}
    assert records[0][2]["semel-entity"] == b"t/0"
    pipeline.close()


@pytest.mark.parametrize("stamps", [(), ("osn",)])
def test_records_without_headers_go_in_bulk_and_are_the_same(
    kafka: KafkaBroker, tmp_path: Path, stamps: tuple[str, ...]
) -> None:
    topic = kafka.create_topic(max_message_bytes=20_000)
    bodies = [b"", None, b"\xff\x00", b"x" * 30_000, "é".encode(), None]
    keys = [None, b"k", b"", b"big", b"\xff", None]
    sink = sink_to(kafka, topic, key="k", value="v", stamps=stamps)
    pipeline = KafkaPipeline(tmp_path, sink)
    rows = chunk(0, 6, v=pa.array(bodies, pa.binary()), k=pa.array(keys, pa.binary())).rows.batch
    pipeline.minibatch(0, rows)
    found = [(key, value) for key, value, _ in consumed(kafka, topic)]
    expected = list(zip(keys, bodies, strict=True))
    # The engine's order is by id within an entity, and entities one after the other.
    assert sorted(found, key=repr) == sorted(expected[:3] + expected[4:], key=repr)
    assert [row.event for row in pipeline.parked()] == [3]
    pipeline.close()
