"""Where micro-batches of semel's sources end, on a real inbox and a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError, SemelError
from semel.runtime import SystemClock
from semel.spark.sources.kafka_reader import READERS, read_piece
from semel.spark.sources.kafka_stream import KafkaStream
from semel.spark.sources.marking import Marking, TriggerLimits
from semel.spark.sources.options import INBOX, KAFKA, SourceOptions, read_options
from semel.spark.sources.positions import Offset, Piece, clip, count, pieces
from semel.streams import NewEvent
from semel.verify.servers.kafka import KafkaBroker
from support.marked_streams import (
    EARLIEST,
    Ticking,
    kafka_options,
    marking,
    opened,
    put,
    stream,
    through_json,
)
from support.sinks.kafka_inputs import add_partitions, produce

CLOCK = SystemClock()
PAYMENTS_INTERVAL_S = 2.0
"""What the clock chooses for payments while nothing is measured."""


@pytest.mark.rows("O1", "O3")
def test_a_micro_batch_ends_at_a_marker_and_nothing_is_new_before_the_next_is_due(
    tmp_path: Path,
) -> None:
    inbox, time = opened(tmp_path), Ticking()
    put(inbox, 0, 40)
    source = stream(tmp_path)
    marks = marking(source, time)
    start = source.start(EARLIEST, default="earliest")
    first = marks.next(start)
    assert (first.marker, count(start.positions, first.positions)) == (1, 40)
    time.now += 0.1
    assert marks.next(first) is first, "nothing has arrived"
    put(inbox, 40, 50)
    assert marks.next(first) is first, "it is not due"
    time.now += PAYMENTS_INTERVAL_S + 1
    put(inbox, 50, 60)
    marks.next(first)
    time.now += PAYMENTS_INTERVAL_S + 1
    second = marks.next(first)
    assert (second.marker, count(first.positions, second.positions)) == (2, 20)
    row = source.marks.read(2)
    assert row is not None
    assert row.positions == {f"orders/{n}": at for (_, n), at in second.positions.items()}
    assert row.events == 20
    assert "payments" in row.reason


@pytest.mark.rows("A3", "A11")
def test_limits_bound_a_micro_batch_and_a_replay_reads_what_the_offset_says(tmp_path: Path) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 100)
    source = stream(tmp_path)
    at = source.start(EARLIEST, default="earliest")
    taken = []
    marks = marking(source, limits=TriggerLimits(events=30))
    while (end := marks.next(at)) is not at:
        taken.append((at, end))
        at = end
    assert [count(*_positions(each)) for each in taken] == [30, 30, 30, 10]
    assert [end.marker for _, end in taken] == [1, 2, 3, 4]
    # A reader that begins again takes old markers as its own limits allow: several, or a part.
    start = taken[0][0]
    assert marking(source, limits=TriggerLimits(events=65)).next(start).marker == 2
    whole = marking(source).next(start)
    assert (whole.marker, [each.number for each in whole.borders]) == (4, [1, 2, 3])
    part = marking(source, limits=TriggerLimits(events=10)).next(start)
    assert (part.marker, part.into, count(start.positions, part.positions)) == (0, 1, 10)
    by_size = marking(
        source, limits=TriggerLimits(bytes=int(source.bytes_per_event(*_ends(taken)) * 7))
    )
    assert count(start.positions, by_size.next(start).positions) in range(5, 10)
    # What is read follows from the offsets alone, the markers inside included.
    assert pieces(through_json(start), through_json(whole)) == pieces(start, whole)
    replayed = pieces(through_json(start), through_json(whole))
    assert sum(piece.stop - piece.start for piece in replayed) == 100
    assert {number for piece in replayed for _, number in piece.cuts} == {1, 2, 3, 4}


def _positions(pair: tuple[Offset, Offset]) -> tuple[Any, Any]:
    return pair[0].positions, pair[1].positions


def _ends(taken: list[tuple[Offset, Offset]]) -> tuple[Any, Any]:
    return taken[0][0].positions, taken[-1][1].positions


@pytest.mark.rows("O21")
def test_a_silent_partition_holds_nobody_back(tmp_path: Path) -> None:
    inbox = opened(tmp_path, partitions=4)
    source = stream(tmp_path)
    at = source.start(EARLIEST, default="earliest")
    marks = marking(source, paced=False)
    for number in range(3):
        inbox.append([NewEvent(entity="one", value=b"x")])  # the others have nothing
        end = marks.next(at)
        assert (end.marker, count(at.positions, end.positions)) == (number + 1, 1)
        at = end
        marks.time.sleep(1.0)


@pytest.mark.rows("A21")
def test_children_of_an_inbox_partition_start_in_a_micro_batch_after_their_parents(
    tmp_path: Path,
) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 40)
    inbox.repartition(3)
    put(inbox, 40, 80)
    inbox.repartition(1)
    put(inbox, 80, 100)
    source = stream(tmp_path)
    at = source.start(EARLIEST, default="earliest")
    batches = []
    marks = marking(source, limits=TriggerLimits(events=30))
    while (end := marks.next(at)) is not at:
        batches.append({piece.partition for piece in pieces(at, end)})
        at = end
    assert batches == [{0, 1}, {0, 1}, {2, 3, 4}, {2, 3, 4}, {5}]
    again = source.start(EARLIEST, default="earliest")
    first = marking(source).next(again)  # without limits, with the markers that are there
    assert {piece.partition for piece in pieces(again, first)} == {0, 1}
    assert count(again.positions, first.positions) == 40


def test_two_readers_of_a_stream_share_its_markers(tmp_path: Path) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 10)
    one, other = stream(tmp_path), stream(tmp_path)
    at, behind = (each.start(EARLIEST, default="earliest") for each in (one, other))
    setting, following = marking(one, paced=False), marking(other, paced=False)
    for number in range(1, 4):
        at = setting.next(at)
        assert at.marker == number
        put(inbox, 10 * number, 10 * number + 10)
        setting.time.sleep(1.0)
    end = following.next(behind)  # one more: it takes what is there, up to a marker of its own
    assert (end.marker, [each.number for each in end.borders]) == (4, [1, 2, 3])
    assert setting.next(at).marker == 4


def test_readers_say_what_they_completed_and_what_was_pruned_is_refused(tmp_path: Path) -> None:
    inbox = opened(tmp_path, partitions=1)
    put(inbox, 0, 10)
    put(inbox, 10, 20)
    source = stream(tmp_path, reader="charges")
    source.register()
    begin = source.start(EARLIEST, default="earliest")
    end = marking(source).next(begin)
    assert inbox.prune(keep_s=0).events == 0, "the reader has not completed it"
    source.completed(end.positions)
    put(inbox, 20, 21)
    assert inbox.prune(keep_s=0).events > 0
    with pytest.raises(
        SemelError, match=r"events 0 to 20 of orders/0 were pruned.*it has 20 to 21"
    ):
        source.kept(pieces(begin, end))
    loose = stream(tmp_path, failOnDataLoss="false")
    assert loose.kept(pieces(begin, end)) == []
    with pytest.raises(ConfigurationError, match="no marker 9 yet: the newest one is 1"):
        source.start(read_options(INBOX, _inbox(startingMarker="9")).start, default="earliest")
    source.marks.append(source.marks.newest(), source.marks.read(1))  # type: ignore[arg-type]
    source.marks.prune(2)
    with pytest.raises(ConfigurationError, match="no marker 1 any more: it was removed"):
        source.start(read_options(INBOX, _inbox(startingMarker="1")).start, default="earliest")


def ask_twice(marks: Marking, at: Offset) -> None:
    """Ask as Spark does: at the start, and later whether there is anything new."""
    assert marks.next(at) is at
    marks.time.sleep(10)
    marks.next(at)


@pytest.mark.rows("A1")
@pytest.mark.parametrize("trigger", ["default", "available now"])
def test_a_stream_that_ends_before_what_was_read_is_an_error_and_not_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trigger: str
) -> None:
    """A ledger that was restored from a copy: new events would get numbers that were read."""
    for name, events in (("new", 10), ("old", 5)):
        (tmp_path / name).mkdir()
        put(opened(tmp_path / name, partitions=1), 0, events)
    source = stream(tmp_path / "new")
    read = marking(source).next(source.start(EARLIEST, default="earliest"))
    for loose in (False, True):
        restored = stream(tmp_path / "old", failOnDataLoss=str(not loose).lower())
        marks = marking(restored)
        if trigger == "available now":
            marks.target = restored.ends()
        if loose:
            for _ in range(3):
                assert marks.next(read) is read
                marks.time.sleep(10)
            assert len([each for each in caplog.messages if "ends at 5" in each]) == 1
        else:
            with pytest.raises(SemelError, match=r"orders/0 ends at 5, and 10 were read before"):
                ask_twice(marks, read)


def _inbox(**more: str) -> dict[str, str]:
    return {"ledger": "sqlite:///x.db", "stream": "orders", **more}


def _kafka(**more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": "here:9092", "subscribe": "t", **more}


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (INBOX, {"stream": "orders"}, "the option 'ledger' is missing: the URL of the ledger"),
        (INBOX, _inbox(strt="x"), "the option 'strt' is not known; it has application, latency"),
        (INBOX, _inbox(latency="5"), """'latency' must be a time above 0 with its unit.*got '5'"""),
        (INBOX, _inbox(maxBytesPerTrigger="x"), "must be a number of bytes.*got 'x'"),
        (INBOX, _inbox(maxRowsPerTrigger="0"), "must be a whole number of at least 1, got '0'"),
        (INBOX, _inbox(startingOffsets="first"), """must be "earliest", "latest" or JSON"""),
        (
            INBOX,
            _inbox(startingOffsets="latest", startingMarker="1"),
            "or startingMarker, not both",
        ),
        (
            INBOX,
            _inbox(maxRowsPerTrigger="1", maxOffsetsPerTrigger="1"),
            "maxOffsetsPerTrigger and maxRowsPerTrigger are the same limit",
        ),
        (KAFKA, {"subscribe": "t"}, '"kafka.bootstrap.servers" is missing'),
        (KAFKA, {"kafka.bootstrap.servers": "h:1"}, "pass one of subscribe.*got none of them"),
        (KAFKA, _kafka(minPartitions="4"), "reads a partition of a topic in one task: remove it"),
        (KAFKA, {**_kafka(), "kafka.auto.offset.reset": "latest"}, "belongs to the source"),
        (KAFKA, _kafka(includeHeaders="yes"), "'includeHeaders' must be true or false, got 'yes'"),
        (KAFKA, _kafka(subscribePattern="x"), "got subscribe and subscribePattern"),
        (
            KAFKA,
            {"kafka.bootstrap.servers": "h:1", "subscribePattern": "a.*"},
            "with subscribePattern the option markersTopic is needed",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(
    source: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_options(source, options)


def test_a_limit_is_shared_by_what_each_partition_has_waiting() -> None:
    start = {("t", 0): 0, ("t", 1): 5, ("t", 2): 9}
    end = {("t", 0): 100, ("t", 1): 5, ("t", 2): 109}
    assert clip(start, end, 50) == {("t", 0): 25, ("t", 1): 5, ("t", 2): 34}
    assert count(start, clip(start, end, 0)) == 1, "it never stands still"
    assert clip(start, end, 500) == end


# -- Kafka


@pytest.mark.rows("A21")
def test_partitions_added_to_a_topic_follow_the_marker_that_ends_the_others(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create_topic(partitions=1)
    source = KafkaStream(kafka_options(kafka, topic))
    marks = marking(source, paced=False)
    produce(kafka, topic, ["a1", "a2"], 0)
    at = source.start(kafka_options(kafka, topic).start, default="latest")
    read: list[list[tuple[int, int, int]]] = []

    def next_batch() -> bool:
        nonlocal at
        marks.time.sleep(1.0)
        end = marks.next(at)
        if end is at:
            return False
        read.append([(each.partition, each.start, each.stop) for each in pieces(at, end)])
        at = through_json(end)
        return True

    next_batch()
    produce(kafka, topic, ["a3"], 0)
    add_partitions(kafka, topic, 3)
    produce(kafka, topic, ["b1", "b2"], 1)  # a producer that knows them
    produce(kafka, topic, ["a4"], 0)  # and one that does not yet
    while next_batch():
        pass
    assert read == [[(0, 0, 2)], [(0, 2, 4)], [(1, 0, 2)]]
    produce(kafka, topic, ["a5"], 0)
    produce(kafka, topic, ["b3"], 1)
    produce(kafka, topic, ["c1"], 2)
    while next_batch():
        pass
    assert read[3:] == [[(0, 4, 5)], [(1, 2, 3), (2, 0, 1)]]
    marks.time.sleep(1_000.0)  # by now every producer knows them
    next_batch()
    produce(kafka, topic, ["a6"], 0)
    produce(kafka, topic, ["b4"], 1)
    read.clear()
    while next_batch():
        pass
    assert read[-1] == [(0, 5, 6), (1, 3, 4)] or read == [[(0, 5, 6)], [(1, 3, 4)]]
    # A reader that begins again keeps the same order, whatever its limits are.
    other = KafkaStream(kafka_options(kafka, topic))
    again = marking(other, paced=False)
    at = other.start(kafka_options(kafka, topic).start, default="latest")
    places = []
    while (end := again.next(at)) is not at:
        places.append([(each.partition, each.start, each.stop) for each in pieces(at, end)])
        at = end
        again.time.sleep(1.0)
    assert places[:3] == [[(0, 0, 2)], [(0, 2, 4)], [(1, 0, 2)]]


def test_ranges_end_by_position_where_transactions_and_aborts_leave_gaps(
    kafka: KafkaBroker,
) -> None:
    from confluent_kafka import Producer

    topic = kafka.create_topic(partitions=1)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": uuid4().hex})
    producer.init_transactions(30)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 3):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(topic, b"%d" % (number * 3 + each), partition=0)
        producer.flush(30)
        end(30)
    options = kafka_options(kafka, topic)
    source = KafkaStream(options)
    stop = source.ends()[topic, 0]
    assert stop == 24, "18 records and 6 ends of transactions"
    assert values(options, topic, 0, stop) == [0, 1, 2, 6, 7, 8, 12, 13, 14]
    for cut in (2, 5, 8, 19, 22):  # wherever it is cut, each record is in one of the two
        both = values(options, topic, 0, cut) + values(options, topic, cut, stop)
        assert both == [0, 1, 2, 6, 7, 8, 12, 13, 14], cut
    dirty = kafka_options(kafka, topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert values(dirty, topic, 0, stop) == list(range(18))
    assert len(READERS._idle) <= 8


def test_records_that_retention_deleted_are_a_clear_error_or_are_left_out_when_allowed(
    kafka: KafkaBroker,
) -> None:
    from confluent_kafka import TopicPartition

    topic = kafka.create_topic(partitions=1)
    produce(kafka, topic, [str(n) for n in range(20)], 0)
    admin = kafka.admin()
    gone = TopicPartition(topic, 0, 15)
    admin.delete_records([gone])[gone].result(30)
    options = kafka_options(kafka, topic)
    lost = f"{topic}/0 has no offset 0 any more: it has 15 to 20.*failOnDataLoss=false"
    with pytest.raises(SemelError, match=lost):
        KafkaStream(options).kept([Piece(topic, 0, 0, 20, ((20, 1),))])
    with pytest.raises(SemelError, match=lost):
        values(options, topic, 0, 20)
    assert values(kafka_options(kafka, topic, failOnDataLoss="false"), topic, 0, 20) == [
        *range(15, 20)
    ]


@pytest.mark.rows("A1")
def test_a_topic_that_was_recreated_with_fewer_records_is_an_error_and_not_silence(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create_topic()
    produce(kafka, topic, ["1", "2", "3"])
    options = kafka_options(kafka, topic)
    source = KafkaStream(options)
    read = marking(source, paced=False).next(source.start(EARLIEST, default="latest"))
    kafka.delete_topic(topic)
    deadline = CLOCK.monotonic() + 30
    while topic in kafka.admin().list_topics(timeout=10).topics:
        assert CLOCK.monotonic() < deadline
        CLOCK.sleep(0.1)
    kafka.create_topic(topic)
    produce(kafka, topic, ["4"])
    marks = marking(KafkaStream(options), paced=False)
    with pytest.raises(SemelError, match=rf"{topic}/0 ends at 1, and 3 were read before"):
        ask_twice(marks, read)


def test_what_kafka_does_not_have_is_named(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(partitions=1)
    with pytest.raises(ConfigurationError, match="topic 'no-such' does not exist"):
        KafkaStream(kafka_options(kafka, "no-such")).ends()
    options = read_options(KAFKA, _options(kafka, topic, startingMarker="7"))
    with pytest.raises(ConfigurationError, match=f"'{topic}.markers' has no marker 7: it has none"):
        KafkaStream(options).start(options.start, default="latest")
    foreign = kafka.create_topic(partitions=1)
    produce(kafka, foreign, ["hello"], 0)
    options = read_options(KAFKA, _options(kafka, topic, markersTopic=foreign))
    with pytest.raises(ConfigurationError, match="a record that is not a marker: 'hello'"):
        marking(KafkaStream(options)).next(Offset(0, {(topic, 0): 0}))
    wide = kafka.create_topic(partitions=2)
    options = read_options(KAFKA, _options(kafka, topic, markersTopic=wide))
    with pytest.raises(ConfigurationError, match="has 2 partitions; it needs one"):
        marking(KafkaStream(options)).next(Offset(0, {(topic, 0): 0}))


def test_of_two_readers_that_set_the_same_marker_the_first_one_counts(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(partitions=1)
    one, other = (KafkaStream(kafka_options(kafka, topic)) for _ in "12")
    produce(kafka, topic, ["1"], 0)
    begin = one.start(kafka_options(kafka, topic).start, default="latest")
    late: Callable[..., bool] = other.put

    def overtaken(*arguments: Any) -> bool:
        """Between the other one's decision and its record, this one is quicker."""
        other.put = late  # type: ignore[method-assign]
        assert marking(one, paced=False).next(begin).marker == 1
        produce(kafka, topic, ["2"], 0)
        return late(*arguments)

    other.put = overtaken  # type: ignore[method-assign, assignment]
    end = marking(other, paced=False).next(begin)
    assert end.marker == 2, "it saw the first one's, and set the next"
    assert [(each.number, each.positions[topic, 0]) for each in end.borders] == [(1, 1)]
    assert [each.number for each in one.after(0, 10)] == [1, 2]


def _options(kafka: KafkaBroker, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, **more}


SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("marker", pa.int64()),
    ]
)


def values(options: SourceOptions, topic: str, start: int, stop: int) -> list[int]:
    piece = Piece(topic, 0, start, stop, ((stop, 1),))
    found = read_piece(
        options.kafka, piece, SCHEMA, headers=False, fail_on_data_loss=options.fail_on_data_loss
    )
    return [int(value) for batch in found for value in batch.column("value").to_pylist()]
