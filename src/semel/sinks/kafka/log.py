"""A session that keeps no progress beside the log: the log of its partition is asked for its tail.

Always true:
- partition 3 is written to partition 3 of the topic, by the holder of its `transactional.id` alone;
- the last record of each transaction carries the tail as it is then, in the header `semel-tail`;
- records of other places in the same partition are passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Fenced
from semel.events import EntityIds, IdSet
from semel.events.ids import Minibatch
from semel.sinks.kafka.outlet import Outlet, need_number, place_of
from semel.sinks.progress import Progress, Tail
from semel.sinks.sink import DELIVERED, Receipt

if TYPE_CHECKING:
    from semel.events import Chunk
    from semel.sinks.kafka.sink import Kafka
    from semel.sinks.kafka.writer import Writer
    from semel.sinks.sink import Target

TAIL, LOG, RESENT = "semel-tail", "semel-log", "semel-resent"


@dataclass(slots=True)
class Held:
    """A fence that is held, and the tail that stands behind it."""

    writer: Writer
    tail: Tail


class LogSession:
    """One attempt at the log of one partition."""

    def __init__(self, sink: Kafka, target: Target) -> None:
        self._sink, self._target = sink, target
        self._place = place_of(target).encode()
        self._outlet = Outlet(sink, target)
        self._outlet.look()
        self._topic = str(sink.topic)
        self._partition = need_number(target.partition, self._outlet.where)
        count = self._outlet.topic(self._topic).partitions
        if self._partition >= count:
            raise ConfigurationError(
                f"{self._outlet.where}: topic {self._topic!r} has {count} partitions, and each "
                f"partition needs a log of its own. Give it at least {self._partition + 1}, or "
                "deliver with fewer partitions"
            )
        self._held: Held | None = None

    def take_over(self) -> Tail:
        """Fence whoever was before us, then read the tail."""
        tail = self._holding().tail
        stamp = tail.stamp
        if stamp is not None and stamp.attempt > self._target.attempt:
            raise Fenced(f"{self._outlet.where}: the log names {stamp.attempt}")
        return tail

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk in one transaction; its last record carries the tail."""
        held = self._holding()
        osns = chunk.osns()
        if int(osns[0]) <= held.tail.osn:
            raise Fenced(f"{self._outlet.where}: the log stands at {held.tail.osn} already")
        stamp = held.tail.stamp
        if stamp is not None and stamp.attempt > progress.attempt:
            raise Fenced(f"{self._outlet.where}: the log names {stamp.attempt}")
        last = len(chunk) - 1
        tail = Tail(
            osn=int(osns[last]),
            minibatch=progress.minibatch,
            sort_key=chunk.rows.sort_key(last),
            stamp=replace(progress, ids=EntityIds.EMPTY),
            resent=held.tail.resent,
        )
        return self._append(held, chunk, tail, progress.minibatch)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend under its old number; the tail is as it was, but for the resend."""
        held = self._holding()
        return self._append(held, chunk, replace(held.tail, resent=number), None)

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Read the ids of a minibatch back from the log."""
        self._holding()
        wanted = _numbers(minibatch)
        ending = self._outlet.ending(self._topic, self._partition)

        def enough(seen: list[Any]) -> bool:
            live = (each for each in map(self._ours, seen) if each and RESENT not in each)
            first = next(live, None)
            return first is not None and bool(json.loads(first[LOG])[1] < wanted)

        try:
            found = ending.back_until(enough)
        finally:
            ending.close()
        ids: dict[str, list[Any]] = {}
        for headers in map(self._ours, found):
            if headers is None or RESENT in headers or json.loads(headers[LOG])[1] != wanted:
                continue
            event = json.loads(headers["semel-event"])
            event = tuple(event) if isinstance(event, list) else event
            ids.setdefault(headers["semel-entity"].decode(), []).append(event)
        return EntityIds.of({scope: IdSet.of(each) for scope, each in ids.items()})

    def close(self) -> None:
        """Give the connection back."""
        held, self._held = self._held, None
        if held is not None:
            held.writer.close()

    def _holding(self) -> Held:
        """Give the fence; take it, and then ask, where it is not held in good order."""
        if self._held is not None and self._held.writer.usable:
            return self._held
        self.close()
        writer = self._outlet.writer()
        try:
            self._held = Held(writer, self._read())
        except BaseException:
            writer.close()
            raise
        return self._held

    def _append(self, held: Held, chunk: Chunk, tail: Tail, minibatch: Minibatch | None) -> Receipt:
        """Append records in one transaction. A resend has no minibatch of its own."""
        records = self._outlet.records(chunk)
        records.partitions = [self._partition] * len(records)
        mark = json.dumps([self._place.decode(), _numbers(minibatch) if minibatch else None])
        records.constant.append((LOG, mark.encode()))
        if minibatch is None:
            records.last.append((RESENT, str(tail.resent).encode()))
        records.last.append((TAIL, json.dumps(_written(tail)).encode()))
        held.writer.transact(lambda writer: writer.send(records, self._topic))
        held.tail = tail
        return DELIVERED

    def _read(self) -> Tail:
        """Find the last record of ours; it carries the tail."""
        ending = self._outlet.ending(self._topic, self._partition)
        try:
            found = ending.back_until(lambda seen: any(map(self._tail, seen)))
        finally:
            ending.close()
        tails = [told for told in map(self._tail, found) if told is not None]
        return _tail_of(json.loads(tails[-1])) if tails else Tail()

    def _tail(self, message: Any) -> bytes | None:
        headers = self._ours(message)
        return None if headers is None else headers.get(TAIL)

    def _ours(self, message: Any) -> dict[str, bytes] | None:
        """The headers of a record of this place; None for one of somebody else's."""
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


def _written(tail: Tail) -> dict[str, Any]:
    """The tail as JSON."""
    return {
        "osn": tail.osn,
        "minibatch": None if tail.minibatch is None else _numbers(tail.minibatch),
        "sort_key": tail.sort_key,
        "stamp": None if tail.stamp is None else tail.stamp.to_json(),
        "resent": tail.resent,
    }


def _tail_of(value: dict[str, Any]) -> Tail:
    return Tail(
        osn=value["osn"],
        minibatch=None if value["minibatch"] is None else Minibatch(*value["minibatch"]),
        sort_key=value["sort_key"],
        stamp=None if value["stamp"] is None else Progress.from_json(value["stamp"]),
        resent=value["resent"],
    )
