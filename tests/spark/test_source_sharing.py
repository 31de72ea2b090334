"""Several queries share the markers of one stream, on real inboxes and brokers, without Spark.

The query that sets a marker may stand elsewhere than one that takes it: it may have begun later,
know partitions that the other has not met yet, or read other topics.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from semel.errors import ConfigurationError
from semel.spark.sources.kafka_stream import KafkaStream
from semel.spark.sources.options import ReadingPlace as Start
from semel.spark.sources.positions import Offset, pieces
from semel.verify.servers.kafka import KafkaBroker
from support.marked_streams import (
    EARLIEST,
    kafka_options,
    marking,
    opened,
    put,
    stream,
    through_json,
)
from support.sinks.kafka_inputs import add_partitions, produce
from support.spark.driver_scripts import wait_for

if TYPE_CHECKING:
    from semel.spark.sources.data_sources import StreamReader

LATEST = Start(word="latest")

Ranges = list[list[tuple[str, int, int, int]]]


def read_on(marks: Any, at: Offset) -> tuple[Ranges, Offset]:
    """Take micro-batches until there is nothing new; return what each reads, and the end."""
    found: Ranges = []
    marks.time.sleep(1.0)
    while (end := marks.next(at)) is not at:
        found.append([(p.topic, p.partition, p.start, p.stop) for p in pieces(at, end)])
        at = through_json(end)
        marks.time.sleep(1.0)
    return found, at


@pytest.mark.rows("A21")
def test_a_query_that_began_after_a_repartition_makes_no_other_lose_the_children(
    tmp_path: Path,
) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 40)
    one, other = stream(tmp_path), stream(tmp_path)
    behind = marking(one, paced=False)
    _, at = read_on(behind, one.start(EARLIEST, default="earliest"))
    put(inbox, 40, 60)
    inbox.repartition(3)
    put(inbox, 60, 80)
    ahead = marking(other, paced=False)
    newer = other.start(LATEST, default="earliest")
    put(inbox, 80, 100)
    taken, _ = read_on(ahead, newer)
    assert sum(stop - start for batch in taken for *_, start, stop in batch) == 20
    found, _ = read_on(behind, at)
    parents, children = ({p for _, p, *_ in batch} for batch in [b for b in found if b])
    assert (parents, children) == ({0, 1}, {2, 3, 4})
    assert sum(stop - start for batch in found for *_, start, stop in batch) == 60


@pytest.mark.rows("A21")
def test_a_query_that_begins_at_the_first_event_takes_parents_first_from_markers_of_a_later_one(
    tmp_path: Path,
) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 40)
    inbox.repartition(3)
    put(inbox, 40, 80)
    one, other = stream(tmp_path), stream(tmp_path)
    newer = other.start(LATEST, default="earliest")
    put(inbox, 80, 100)
    read_on(marking(other, paced=False), newer)
    found, _ = read_on(marking(one, paced=False), one.start(EARLIEST, default="earliest"))
    assert [{p for _, p, *_ in batch} for batch in found if batch] == [{0, 1}, {2, 3, 4}]
    assert sum(stop - start for batch in found for *_, start, stop in batch) == 100


@pytest.mark.rows("A21")
def test_a_query_of_a_topic_loses_nothing_of_partitions_that_a_later_query_knew_first(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create_topic(partitions=1)
    one, other = (KafkaStream(kafka_options(kafka, topic)) for _ in "12")
    behind = marking(one, paced=False)
    produce(kafka, topic, ["a1", "a2"], 0)
    _, at = read_on(behind, one.start(EARLIEST, default="latest"))
    produce(kafka, topic, ["a3"], 0)
    add_partitions(kafka, topic, 2)
    produce(kafka, topic, ["b1", "b2"], 1)
    newer = other.start(LATEST, default="latest")
    produce(kafka, topic, ["a4"], 0)
    produce(kafka, topic, ["b3"], 1)
    taken, _ = read_on(marking(other, paced=False), newer)
    assert sorted(each for batch in taken for each in batch) == [(topic, 0, 3, 4), (topic, 1, 2, 3)]
    found, _ = read_on(behind, at)
    every = [each for batch in found for each in batch]
    assert sum(stop - start for *_, start, stop in every) == 5
    first = next(number for number, batch in enumerate(found) if any(p == 1 for _, p, *_ in batch))
    assert all(p == 1 for _, p, *_ in found[first]), "what the others had by then comes first"
    assert max(stop for batch in found[:first] for _, p, _, stop in batch if p == 0) >= 3


def test_queries_of_other_topics_with_the_same_companion_topic_read_only_their_own(
    kafka: KafkaBroker,
) -> None:
    topic, more = kafka.create_topic(partitions=1), kafka.create_topic(partitions=1)
    markers = f"{topic}.markers"
    both = KafkaStream(kafka_options(kafka, f"{topic},{more}", markersTopic=markers))
    only = KafkaStream(kafka_options(kafka, topic, markersTopic=markers))
    for each in (topic, more):
        produce(kafka, each, ["1", "2"], 0)
    setting, following = marking(both, paced=False), marking(only, paced=False)
    wide, at = both.start(EARLIEST, default="latest"), only.start(EARLIEST, default="latest")
    for number in range(3):
        _, wide = read_on(setting, wide)
        found, at = read_on(following, at)
        assert {name for batch in found for name, *_ in batch} == {topic}
        assert at.positions == {(topic, 0): 2 * number + 2}
        for each in (topic, more):
            produce(kafka, each, ["1", "2"], 0)
    found, wide = read_on(setting, wide)
    assert {name for batch in found for name, *_ in batch} == {topic, more}
    assert wide.positions == {(topic, 0): 8, (more, 0): 8}


def test_a_companion_topic_that_was_deleted_begins_again_and_nothing_is_lost_or_repeated(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.create_topic(partitions=2)
    options = kafka_options(kafka, topic)
    source = KafkaStream(options)
    marks = marking(source, paced=False)
    produce(kafka, topic, ["1", "2"], 0)
    _, at = read_on(marks, source.start(EARLIEST, default="latest"))
    produce(kafka, topic, ["3"], 1)
    found, at = read_on(marks, at)
    assert (found, at.marker) == ([[(topic, 1, 0, 1)]], 2)
    marker_topic = f"{topic}.markers"
    admin = kafka.admin()  # it has to live until the answer is there
    admin.delete_topics([marker_topic])[marker_topic].result(30)
    wait_for(lambda: marker_topic not in admin.list_topics(timeout=10).topics)
    produce(kafka, topic, ["4", "5"], 0)
    restarted = marking(KafkaStream(options), paced=False)  # it creates the topic again
    found, at = read_on(restarted, at)
    assert (found, at.marker) == ([[(topic, 0, 2, 4)]], 3)
    produce(kafka, topic, ["6"], 1)
    later, _ = read_on(marking(KafkaStream(options), paced=False), at)
    assert later == [[(topic, 1, 1, 2)]]
    with pytest.raises(ConfigurationError, match="has no marker 1: it has 3 to 4"):
        KafkaStream(options).start(Start(marker=1), default="latest")


@pytest.mark.rows("A21")
def test_a_producer_that_learns_of_a_partition_late_stays_in_order_also_with_long_intervals(
    kafka: KafkaBroker,
) -> None:
    """With a marker every ten minutes the producer learns of the partition between two markers."""
    topic = kafka.create_topic(partitions=1)
    source = KafkaStream(kafka_options(kafka, topic))
    marks = marking(source, paced=False)
    produce(kafka, topic, ["x1"], 0)
    _, at = read_on(marks, source.start(EARLIEST, default="latest"))
    add_partitions(kafka, topic, 2)
    marks.time.sleep(1.0)
    at = through_json(marks.next(at))
    marks.time.sleep(600.0)
    produce(kafka, topic, ["x2"], 0)  # it does not know yet
    produce(kafka, topic, ["x3"], 1)  # and now it does
    found, _ = read_on(marks, at)
    assert [batch for batch in found if batch] == [[(topic, 0, 1, 2)], [(topic, 1, 0, 1)]]


@pytest.mark.needs("sources")
def test_before_spark_4_2_a_restart_reads_partitions_that_another_query_met_first(
    tmp_path: Path,
) -> None:
    """There `latestOffset` gets no start: the newest marker is taken for it."""
    inbox = opened(tmp_path)
    put(inbox, 0, 40)
    options = {"ledger": f"sqlite:///{tmp_path / 'inbox.db'}", "stream": "orders"}
    begin, end = first_of(old_reader(options))
    assert ranges(old_reader(options), begin, end) == 40
    put(inbox, 40, 60)
    inbox.repartition(3)
    other = stream(tmp_path)
    ahead = marking(other, paced=False)
    _, at = read_on(ahead, other.start(EARLIEST, default="earliest"))
    put(inbox, 60, 80)
    read_on(ahead, at)
    again = old_reader(options)  # its checkpoint has `end`
    stop = again.latestOffset()
    assert ranges(again, end, stop) == 40
    assert again.latestOffset() == stop, "nothing is new"


@pytest.mark.needs("sources")
def test_before_spark_4_2_a_first_micro_batch_that_is_replayed_begins_where_it_began(
    tmp_path: Path,
) -> None:
    inbox = opened(tmp_path)
    put(inbox, 0, 40)
    other = stream(tmp_path)
    read_on(marking(other, paced=False), other.start(EARLIEST, default="earliest"))
    options = {
        "ledger": f"sqlite:///{tmp_path / 'inbox.db'}",
        "stream": "orders",
        "startingOffsets": "latest",
    }
    put(inbox, 40, 60)
    begin, end = first_of(old_reader(options))
    assert ranges(old_reader(options), begin, end) == 0
    reader = old_reader(options)
    begin = reader.initialOffset()
    put(inbox, 60, 70)
    end = reader.latestOffset()
    read = ranges(reader, begin, end)
    put(inbox, 70, 90)
    again = old_reader(options)  # it was killed: Spark asks again where the query begins
    assert ranges(again, again.initialOffset(), end) == read == 0
    assert ranges(again, end, again.latestOffset()) == 20


def old_reader(options: dict[str, str]) -> StreamReader:
    from semel.spark.sources.data_sources import InboxSource  # PySpark 3.5 has no such sources

    return InboxSource(options).streamReader(StructType())


def first_of(reader: StreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    """The offsets of the first micro-batch, in the order in which Spark 4.0 asks for them."""
    end = reader.latestOffset()
    return reader.initialOffset(), end


def ranges(reader: StreamReader, begin: dict[str, Any], end: dict[str, Any]) -> int:
    """How many events a micro-batch reads."""
    from semel.spark.sources.data_sources import Range

    found = [each.piece for each in reader.partitions(begin, end) if isinstance(each, Range)]
    return sum(piece.stop - piece.start for piece in found)
