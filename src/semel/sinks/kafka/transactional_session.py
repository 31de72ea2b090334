"""A session that keeps its progress in a compacted topic, in the transaction of each chunk.

Always true:
- the last committed record of a place's key is its progress row; only the holder of the place's
  `transactional.id` writes it;
- while a session holds the fence, the row it wrote last is the current row;
- the row has the id of the topic that was written to: a topic that was deleted and recreated is
  detected before a further event is sent to it;
- ids of a minibatch are separate records next to the row, one or more for each chunk, so that a
  transaction carries the ids of its own chunk and not all ids before it.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

from semel.errors import ConfigurationError, Fenced, Rejected, SemelError
from semel.events import EntityIds
from semel.events.encoding import ascii_json
from semel.sinks.kafka.connection import KafkaConnection, number_of, place_of
from semel.sinks.kafka.producer import PARTITION_AT_FAULT, TOPIC_AT_FAULT
from semel.sinks.kafka.records import BYTES_MAX, OVERHEAD_MAX
from semel.sinks.progress import UNREADABLE, Progress, unreadable
from semel.sinks.sink import DELIVERED, Receipt

if TYPE_CHECKING:
    from semel.events import Chunk, Minibatch
    from semel.sinks.kafka.producer import Writer
    from semel.sinks.kafka.sink import Kafka
    from semel.sinks.sink import Target

PART_BYTES_MAX = 400_000
"""How many bytes of ids one record has."""

KEPT_MAX = 16
"""So many fences are kept between minibatches in a process."""


@dataclass(slots=True)
class HeldRow:
    """A fence that is held, and the row behind it.

    Attributes:
        topic: the identity of the topic that the row was written with; None if there is none.
        kept_in: the identity of the progress topic.
    """

    writer: Writer
    row: Progress | None
    parts: int
    topic: list[str] | None = None
    kept_in: list[str] | None = None


_kept: OrderedDict[tuple[object, ...], HeldRow] = OrderedDict()
"""Fences that sessions of this process closed cleanly: the next minibatch continues with them."""


class ProgressSession:
    """One attempt at one partition."""

    def __init__(self, sink: Kafka, target: Target) -> None:
        self._sink, self._target = sink, target
        self._place = place_of(target)
        self._partition = progress_partition(target, sink.progress_partitions)
        self._outlet = KafkaConnection(sink, target)
        self._outlet.look()
        client = (os.getpid(), sink.servers, sink.secret_key, self._outlet.bytes_max())
        self._key = (*client, sink.progress_topic, sink.transaction_timeout_s, self._place)
        self._held: HeldRow | None = None

    def take_over(self) -> Progress | None:
        """Fence the writer before this one, read the row, write this attempt into it."""
        if self._held is None:
            kept = _kept.pop(self._key, None)
            if kept is not None:
                row = self._go_on(kept)
                if row is not None:
                    return row
        held = self._claim()
        stood = held.row
        self._take(held)
        if stood is not None and stood.minibatch == self._target.minibatch and held.parts:
            stood = replace(stood, ids=self._all_ids())
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """One transaction: the chunk's records, and the row with its progress."""
        held = self._claim()
        self._refuse(held, progress)
        records = self._outlet.records(chunk)
        topic = self._sink.topic or ""

        def fill(writer: Writer) -> None:
            writer.send(records, topic)

        try:
            self._write(held, progress, fill)
        except Rejected:
            if held.writer.usable and held.row is not None:
                self._write(held, held.row)  # if that is refused, no event is at fault
            raise
        return DELIVERED

    def close(self) -> None:
        """Keep the fence for the next minibatch, where all is in order."""
        held, self._held = self._held, None
        if held is None:
            return
        if not held.writer.usable:
            held.writer.close()
            return
        _kept[self._key] = held
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)[1].writer.close()

    # -- the fence

    def _go_on(self, kept: HeldRow) -> Progress | None:
        """Continue with a fence of this process: writing the row shows whether it is still held.
        None if it is not, or if more than the row is needed.
        """
        stood = kept.row
        progress = self._outlet.topic(self._sink.progress_topic)
        again = stood is None or stood.minibatch == self._target.minibatch
        if stood is None or again or progress.is_another(kept.kept_in):
            kept.writer.close()
            return None
        try:
            self._take(kept)
        except SemelError:
            kept.writer.close()
            return None
        self._held = kept
        return stood

    def _claim(self) -> HeldRow:
        """Return the fence; take it and read the row, unless it is held after a clean commit."""
        if self._held is not None and self._held.writer.usable:
            return self._held
        if self._held is not None:
            self._held.writer.close()
            self._held = None
        writer = self._outlet.writer()
        try:
            self._held = self._read(writer)
        except BaseException:
            writer.close()
            raise
        return self._held

    def _take(self, held: HeldRow) -> None:
        """Write this attempt into the row. Raises `Fenced` if the row has a later one."""
        minibatch, attempt = self._target.minibatch, self._target.attempt
        taken = (held.row or Progress(minibatch, attempt)).taken_by(minibatch, attempt)
        self._refuse_later(held, taken)
        if held.row is None or (held.row.attempt, held.row.minibatch) != (attempt, minibatch):
            self._write(held, replace(taken, ids=EntityIds.EMPTY))

    def _refuse(self, held: HeldRow, progress: Progress) -> None:
        """Refuse a chunk that is not beyond the row, because an earlier call of this attempt has
        arrived after all; and a row that is not what was acknowledged.
        """
        self._refuse_later(held, progress)
        if self._sink.topic is not None:
            self._outlet.require_same(self._sink.topic, held.topic)
        row = held.row
        if row is not None and row.minibatch == progress.minibatch and row.done > progress.start:
            raise Fenced(
                f"{self._outlet.where}: {row.done} events are done, but this chunk starts at "
                f"{progress.start}"
            )
        progress.require_kept(row, self._outlet.where)

    def _refuse_later(self, held: HeldRow, progress: Progress) -> None:
        row = held.row
        if row is None:
            return
        if row.attempt > progress.attempt or row.minibatch > progress.minibatch:
            raise Fenced(
                f"{self._outlet.where}: progress names attempt {row.attempt} in minibatch "
                f"{row.minibatch}"
            )

    # -- the row

    def _write(self, held: HeldRow, row: Progress, fill: Any = None) -> None:
        """Commit the row, with what `fill` produces and with the ids of the chunk. The row has the
        id of the topic that `fill` writes to, otherwise the one that it had.
        """
        same = held.row is not None and held.row.minibatch == row.minibatch
        first = held.parts if same else 0
        pieces = _pieces(row)
        parts = first + len(pieces)
        bare = replace(row, ids=EntityIds.EMPTY)
        topic = held.topic
        if fill is not None and self._sink.topic is not None:
            topic = self._outlet.topic(self._sink.topic).identity
        text = ascii_json({**bare.to_json(), "parts": parts, "topic": topic}).encode()

        def produce(writer: Writer) -> None:
            if fill is not None:
                fill(writer)
            if not same:
                for part in range(held.parts):
                    self._put(writer, self._part_key(part), None)
            for part, piece in enumerate(pieces, first):
                self._put(writer, self._part_key(part), piece)
            self._put(writer, self._place.encode(), text)

        try:
            held.writer.transact(produce, chosen=frozenset() if fill is None else self._chosen())
        except Rejected as error:
            if fill is not None:
                raise
            raise ConfigurationError(
                f"{self._outlet.where}: the progress topic {self._sink.progress_topic!r} does not "
                f"accept progress: {error}. Nothing was sent; check its settings"
            ) from error
        except ConfigurationError:
            self._outlet.forget()
            raise
        held.row, held.parts, held.topic = bare, parts, topic

    def _chosen(self) -> frozenset[str]:
        """Return the errors about topics and partitions that the rows name, if the sink
        lets them.
        """
        topics = TOPIC_AT_FAULT if self._sink.topic is None else frozenset()
        return topics if self._sink.partition is None else topics | PARTITION_AT_FAULT

    def _put(self, writer: Writer, key: bytes, value: bytes | None) -> None:
        limit = self._outlet.topic(self._sink.progress_topic).bytes_max or BYTES_MAX
        if value is not None and len(value) + len(key) + OVERHEAD_MAX > limit:
            raise ConfigurationError(
                f"{self._outlet.where}: progress of {len(value):,} bytes does not fit into the "
                f"progress topic {self._sink.progress_topic!r}. Raise its max.message.bytes "
                f"({limit:,}), or order by a shorter column"
            )
        writer.put(self._sink.progress_topic, value, key, self._partition)

    def _part_key(self, part: int) -> bytes:
        return f"{self._place}\x1f{part}".encode()

    def _read(self, writer: Writer) -> HeldRow:
        """Find the committed row behind the fence, and how many parts of ids it has."""
        place = self._place.encode()
        ending = self._outlet.ending(self._sink.progress_topic, self._partition)
        try:
            found = ending.back_until(lambda seen: any(each.key() == place for each in seen))
        finally:
            ending.close()
        rows = [each.value() for each in found if each.key() == place]
        kept_in = self._outlet.topic(self._sink.progress_topic).identity
        if not rows or rows[-1] is None:
            return HeldRow(writer, None, 0, kept_in=kept_in)
        try:
            value = json.loads(rows[-1])
            row = Progress.from_json(value)
            return HeldRow(writer, row, int(value["parts"]), value.get("topic"), kept_in)
        except UNREADABLE as error:
            raise self._unreadable(error) from error

    def _all_ids(self) -> EntityIds:
        """Read the ids of the minibatch back; called only if it was begun before."""
        held = self._claim()
        ending = self._outlet.ending(self._sink.progress_topic, self._partition)
        try:
            return self._ids(ending.read(), held.parts, self._target.minibatch)
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        finally:
            ending.close()

    def _unreadable(self, error: Exception) -> ConfigurationError:
        what = f"progress in topic {self._sink.progress_topic!r}, key {self._place!r},"
        return unreadable(self._outlet.where, what, error)

    def _ids(self, records: list[Any], parts: int, minibatch: Minibatch) -> EntityIds:
        """Put the ids of a minibatch together from its parts."""
        last = {each.key(): each.value() for each in records if each.value() is not None}
        whole: list[EntityIds] = []
        text = b""
        for part in range(parts):
            head, _, piece = last.get(self._part_key(part), b"{}").partition(b"\n")
            header = json.loads(head)
            if header.get("minibatch") != [minibatch.generation, minibatch.batch]:
                raise ConfigurationError(
                    f"{self._outlet.where}: the progress topic {self._sink.progress_topic!r} has "
                    f"lost ids of minibatch {minibatch}. It must be compacted, never deleted"
                )
            text += piece
            if header["last"]:
                whole.append(EntityIds.from_json(json.loads(text)))
                text = b""
        return EntityIds.union(whole)


def _pieces(row: Progress) -> list[bytes]:
    """The ids of a row, in records that Kafka takes."""
    if not row.ids:
        return []
    text = row.ids.written().content
    cuts = range(0, len(text), PART_BYTES_MAX)
    place = [row.minibatch.generation, row.minibatch.batch]
    return [
        ascii_json({"minibatch": place, "last": cut == cuts[-1]}).encode()
        + b"\n"
        + text[cut : cut + PART_BYTES_MAX]
        for cut in cuts
    ]


def progress_partition(target: Target, count: int) -> int:
    """The partition of the row of a place. Neighbouring partitions of a pipeline do not share one,
    as long as there are no more of them than partitions: an open transaction hides records after
    it.
    """
    stem, number = number_of(target.partition)
    names = ascii_json([target.pipeline, target.sink, stem])
    return (crc32(names.encode()) + (number or 0)) % count
