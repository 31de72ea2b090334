"""A session without progress outside the log: it reads the tail of its partition's log.

Always true:
- partition 3 is written to partition 3 of the topic, only by the holder of its `transactional.id`;
- the last record of each transaction has the tail at that time, in the header `semel-tail`;
- a session takes the fence in `take_over` and nowhere else: after a failure the caller first checks
  whether it may still write;
- the OSN and the number of the last resend only rise, so of several tails the highest is the log's;
- records of other pipelines and sinks in the same partition are skipped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import EntityIds, IdSet, Minibatch
from semel.events.encoding import ascii_json
from semel.sinks.kafka.connection import KafkaConnection, need_number, place_of
from semel.sinks.progress import UNREADABLE, Progress, Tail, unreadable
from semel.sinks.sink import DELIVERED, Receipt

if TYPE_CHECKING:
    from semel.events import Chunk
    from semel.sinks.kafka.producer import Writer
    from semel.sinks.kafka.sink import Kafka
    from semel.sinks.sink import Target

TAIL, LOG, RESENT = "semel-tail", "semel-log", "semel-resent"


@dataclass(frozen=True, slots=True)
class TailHeader:
    """What the header of the tail has besides the tail itself.

    Attributes:
        events: how many events of the tail's minibatch are in the log.
        after: where the log ended when its writer took the fence.
        at: the offset of the record with this header, as its writer predicted it; None if it could
            not. A copy of the record has another offset.
        topic: the identity of the topic, as its writer knew it; None if it did not.
    """

    events: int = 0
    after: int = 0
    at: int | None = None
    topic: list[str] | None = None


@dataclass(slots=True)
class HeldLog:
    """A fence that is held, and the log behind it.

    Attributes:
        after: where the log ended when the fence was taken.
        end: where it ends now, if there is no other writer; None if that is not known.
        topic: the identity of the topic, as the tail has it.
    """

    writer: Writer
    tail: Tail = field(default_factory=Tail)
    events: int = 0
    after: int = 0
    end: int | None = None
    topic: list[str] | None = None


class LogSession:
    """One attempt at the log of one partition."""

    def __init__(self, sink: Kafka, target: Target) -> None:
        self._sink, self._target = sink, target
        self._place = place_of(target).encode()
        self._outlet = KafkaConnection(sink, target)
        self._outlet.look()
        self._topic = str(sink.topic)
        self._partition = need_number(target.partition, self._outlet.where)
        self._refuse_compacted()
        count = self._outlet.topic(self._topic).partitions
        if self._partition >= count:
            raise ConfigurationError(
                f"{self._outlet.where}: topic {self._topic!r} has {count} partitions, but each "
                "partition of the delivery needs a log of its own. Give the topic at least "
                f"{self._partition + 1}, or deliver with fewer partitions"
            )
        self._held: HeldLog | None = None

    def take_over(self) -> Tail:
        """Fence the writer before this one, then read the tail."""
        tail = self._fenced().tail
        stamp = tail.stamp
        if stamp is not None and stamp.attempt > self._target.attempt:
            raise Fenced(f"{self._outlet.where}: the log names the later attempt {stamp.attempt}")
        return tail

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk in one transaction; its last record carries the tail."""
        held = self._claim()
        osns = chunk.osns()
        if int(osns[0]) <= held.tail.osn:
            raise Fenced(f"{self._outlet.where}: the log is at {held.tail.osn} already")
        stamp = held.tail.stamp
        if stamp is not None and stamp.attempt > progress.attempt:
            raise Fenced(f"{self._outlet.where}: the log names the later attempt {stamp.attempt}")
        last = len(chunk) - 1
        tail = Tail(
            osn=int(osns[last]),
            minibatch=progress.minibatch,
            sort_key=chunk.rows.sort_key(last),
            stamp=replace(progress, ids=EntityIds.EMPTY),
            resent=held.tail.resent,
        )
        before = held.events if held.tail.minibatch == progress.minibatch else 0
        return self._append(held, chunk, tail, before + len(chunk), progress.minibatch)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend under its old number; the tail is as it was, but for the resend."""
        held = self._claim()
        if number <= held.tail.resent:
            raise Fenced(f"{self._outlet.where}: the log has resend {held.tail.resent} already")
        return self._append(held, chunk, replace(held.tail, resent=number), held.events, None)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Read the ids of a minibatch back from the log.

        Raises `Diverged` where the topic has let some of its records go.
        """
        held = self._claim()
        last_seen = held.tail.minibatch
        if last_seen is not None and last_seen < minibatch:
            return EntityIds.EMPTY
        ending = self._outlet.ending(self._topic, self._partition)

        def enough(seen: list[Any]) -> bool:
            return last_seen == minibatch and len(self._events(seen, minibatch)) >= held.events

        try:
            found = self._events(ending.back_until(enough), minibatch)
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        finally:
            ending.close()
        if held.tail == Tail() and ending.low > 0:
            raise self._gone(minibatch, "no record of this partition is left in it")
        if last_seen == minibatch and len(found) != held.events:
            raise self._gone(minibatch, f"{held.events} were delivered, {len(found)} are there")
        ids: dict[str, list[Any]] = {}
        for scope, event in found.values():
            ids.setdefault(scope, []).append(event)
        return EntityIds.of({scope: IdSet.of(each) for scope, each in ids.items()})

    def close(self) -> None:
        """Close the connection."""
        held, self._held = self._held, None
        if held is not None:
            held.writer.close()

    def _claim(self) -> HeldLog:
        """Return the fence. Raises `Fenced` if it is not held after a clean commit: only a caller
        that may write takes it again.
        """
        if self._held is None or not self._held.writer.usable:
            raise Fenced(f"{self._outlet.where}: take_over() must be called first")
        return self._held

    def _fenced(self) -> HeldLog:
        """Take the fence and read the tail, unless it is held after a clean commit."""
        if self._held is not None and self._held.writer.usable:
            return self._held
        self.close()
        writer = self._outlet.writer()
        try:
            self._held = self._read(writer)
        except BaseException:
            writer.close()
            raise
        return self._held

    def _append(
        self, held: HeldLog, chunk: Chunk, tail: Tail, events: int, minibatch: Minibatch | None
    ) -> Receipt:
        """Append records in one transaction. A resend has no minibatch of its own."""
        self._outlet.require_same(self._topic, held.topic)
        records = self._outlet.records(chunk)
        count = len(records)
        records.partitions = [self._partition] * count
        mark = ascii_json([self._place.decode(), _numbers(minibatch) if minibatch else None])
        records.constant.append((LOG, mark.encode()))
        if minibatch is None:
            records.last.append((RESENT, str(tail.resent).encode()))
        end, held.end = held.end, None  # where it ends is not known after a transaction that failed
        topic = self._outlet.topic(self._topic).identity
        header = TailHeader(events, held.after, None if end is None else end + count - 1, topic)
        records.last.append((TAIL, ascii_json(_written(tail, header)).encode()))
        try:
            held.writer.transact(lambda writer: writer.send(records, self._topic))
        except ConfigurationError:
            self._outlet.forget()
            raise
        held.end = None if end is None else end + count + 1  # Kafka's commit marker follows it
        held.tail, held.events, held.topic = tail, events, topic
        return DELIVERED

    def _read(self, writer: Writer) -> HeldLog:
        """Find the highest tail of this place. It is the last one, unless a record was copied."""
        ending = self._outlet.ending(self._topic, self._partition)
        try:
            found = ending.back_until(lambda seen: any(map(self._tail, seen)))
            last = next((each for each in reversed(found) if self._tail(each)), None)
            if last is None:
                return HeldLog(writer, after=ending.end, end=ending.end)
            tail, mark = _read_tail(self._tail(last))
            if last.offset() != mark.at:  # what it was copied from, and all behind it, is after it
                found = ending.read(max(ending.low, min(mark.after, last.offset())))
                tails = [_read_tail(text) for text in map(self._tail, found) if text]
                tail, mark = max(tails, key=lambda each: (each[0].osn, each[0].resent))
            return HeldLog(writer, tail, mark.events, ending.end, ending.end, mark.topic)
        except UNREADABLE as error:
            raise self._unreadable(error) from error
        finally:
            ending.close()

    def _refuse_compacted(self) -> None:
        """A log that is compacted loses events from its middle."""
        policy = self._outlet.topic(self._topic).policy
        if policy is not None and "compact" in policy:
            raise ConfigurationError(
                f"{self._outlet.where}: topic {self._topic!r} has cleanup.policy={policy}, so it "
                "would forget what was delivered. With sequenced=True set cleanup.policy=delete "
                "on it; without sequenced, progress is kept in a topic of its own"
            )

    def _unreadable(self, error: Exception) -> ConfigurationError:
        what = f"semel's headers of a record in topic {self._topic!r}"
        return unreadable(self._outlet.where, what, error)

    def _gone(self, minibatch: Minibatch, why: str) -> Diverged:
        return Diverged(
            f"{self._outlet.where}: topic {self._topic!r} no longer has all events of minibatch "
            f"{minibatch} ({why}), so semel cannot find out which were delivered. Nothing was "
            "sent; restore the records, or start under a new name after the events that were "
            "delivered"
        )

    def _events(self, messages: list[Any], minibatch: Minibatch) -> dict[int, tuple[str, Any]]:
        """Entity and id of each event of a minibatch, by OSN: a copy of a record adds none."""
        wanted = _numbers(minibatch)
        found: dict[int, tuple[str, Any]] = {}
        for headers in map(self._ours, messages):
            if headers is None or RESENT in headers or json.loads(headers[LOG])[1] != wanted:
                continue
            event = json.loads(headers["semel-event"])
            event = tuple(event) if isinstance(event, list) else event
            found[int(headers["semel-osn"])] = (headers["semel-entity"].decode(), event)
        return found

    def _tail(self, message: Any) -> bytes | None:
        headers = self._ours(message)
        return None if headers is None else headers.get(TAIL)

    def _ours(self, message: Any) -> dict[str, bytes] | None:
        """The headers of a record of this place; None for any other record."""
        headers = dict(message.headers() or ())
        if LOG not in headers:
            return None
        try:
            place = json.loads(headers[LOG])[0]
        except (ValueError, LookupError, TypeError):
            return None
        return headers if place == self._place.decode() else None


def _numbers(minibatch: Minibatch) -> list[int]:
    return [minibatch.generation, minibatch.batch]


def _written(tail: Tail, mark: TailHeader) -> dict[str, Any]:
    """The tail as JSON, and what the header has besides it."""
    return {
        "osn": tail.osn,
        "minibatch": None if tail.minibatch is None else _numbers(tail.minibatch),
        "sort_key": tail.sort_key,
        "stamp": None if tail.stamp is None else tail.stamp.to_json(),
        "resent": tail.resent,
        "events": mark.events,
        "after": mark.after,
        "at": mark.at,
        "topic": mark.topic,
    }


def _read_tail(text: bytes | None) -> tuple[Tail, TailHeader]:
    value = json.loads(text or b"")
    tail = Tail(
        osn=value["osn"],
        minibatch=None if value["minibatch"] is None else Minibatch(*value["minibatch"]),
        sort_key=value["sort_key"],
        stamp=None if value["stamp"] is None else Progress.from_json(value["stamp"]),
        resent=value["resent"],
    )
    return tail, TailHeader(value["events"], value["after"], value["at"], value.get("topic"))
