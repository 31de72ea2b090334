"""Writes the audit log: files of partitions, and files of parked events that were resolved.

The steps for a partition: 1. the task keeps entity and id of each row that it is given; 2. when all
of them are settled it writes a file aside, with the outcome of each; 3. the commit that completes
the minibatch names the file; 4. the driver moves it to its day.

The steps for parked events that were resolved: 1. one commit writes into their rows in which file
they are recorded; 2. the driver writes the file from those rows, which do not change any more.

Always true:
- a file becomes visible only after a commit has named it, so only attempts that count are seen;
- a step that is made again after a crash makes the same file under the same name;
- nothing is written or read per event, and nothing at all for a pipeline without an audit log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from semel.delivery.parking.parking import ids_of
from semel.events import EntityIds, Labels
from semel.ledger import ResolvedRows, audit_parts, read_parked
from semel.protocol import RECORDS_INTENTS, ParkedState, PartitionState
from semel.sinks import AUDIT_SCHEMA, day_of, event_text, event_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.observer import Figures
    from semel.delivery.recovery.close_generation import Handled
    from semel.events import Minibatch, Rows
    from semel.ledger import LedgerClient, Leftover, OpenMinibatch, ParkedRow, PartitionRow
    from semel.sinks import AuditLog, Sink

_OUTCOMES = ("delivered", "parked", "in doubt", "skipped by policy")
_NAMED = re.compile(r"day=[\d-]{10}/resolved-(\d+)-\w+\.parquet")

_CLOSED = "its minibatch was not completed before the checkpoint was lost or a person judged it"

RESOLVED_ROWS = 500
"""How many parked events one commit records as resolved."""


class PartitionAudit:
    """What one attempt records of one partition at one sink. Runs on an executor."""

    def __init__(self, partition: SinkPartition, log: AuditLog) -> None:
        self._partition = partition
        self._log = log
        self._entities: list[Labels] = []
        self._ids: list[tuple[pa.Array, ...]] = []

    def push(self, rows: Rows) -> None:
        """Keep entity and id of the next rows; their other columns are not kept."""
        self._entities.append(rows.scopes if rows.entities is None else rows.entities)
        self._ids.append(rows.ids)

    def finish(self, done: Figures) -> dict[str, Any] | None:
        """Write a file aside, because every row is settled; return what the ledger keeps of it.
        None if the partition was complete before: then it has its file. `done` is what this attempt
        did.
        """
        row = self._partition.claim.row
        if row is None or row.state is PartitionState.COMPLETE:
            return None
        assignment = self._partition.assignment
        minibatch = assignment.opening.row.minibatch
        now, before = done.parked + done.dropped, done.parked_before + done.dropped_before
        parked = self._parked(minibatch) if now or before or row.taken else []
        ended = self._partition.client.clock.wall()
        # What was complete before, and goes on (position identity), has a file of its own.
        table = self._table(row, parked, ended).slice(row.done)
        if not table.num_rows:
            return None
        return self._log.write(table, ended, _name_of(minibatch), assignment.attempt.run)

    def _parked(self, minibatch: Minibatch) -> list[ParkedRow]:
        """Return the parked events of this partition, without those that were only marked."""
        partition = self._partition
        found = read_parked(partition.client, partition.sink.name, minibatch=minibatch)
        return [
            row
            for _, row, _ in found
            if row.partition == partition.assignment.partition and not row.state.only_marks
        ]

    def _table(self, row: PartitionRow, parked: Sequence[ParkedRow], ended: float) -> pa.Table:
        entities = Labels.concat(self._entities)
        ids = [pa.concat_arrays(parts) for parts in zip(*self._ids, strict=True)]
        count = len(entities)
        outcomes = np.zeros(count, np.int8)
        reasons = np.full(count, -1, np.int32)
        for at, each in enumerate(parked):
            outcomes[each.position] = _outcome(each)
            reasons[each.position] = at
        assignment = self._partition.assignment
        return pa.table(
            {
                "pipeline": _repeated(assignment.at_sinks, count),
                "sink": _repeated(self._partition.sink.name, count),
                "partition": _repeated(assignment.partition, count),
                "entity": entities.names.array.take(pa.array(entities.codes)),
                "event": event_texts(ids),
                "osn": pa.array(np.arange(row.osn + 1, row.osn + 1 + count, dtype=np.int64)),
                "minibatch": _repeated(str(assignment.opening.row.minibatch), count),
                "attempt": _repeated(str(assignment.attempt), count),
                "time": _repeated(_moment(ended), count),
                "outcome": pa.array(_OUTCOMES).take(pa.array(outcomes)),
                "why": pa.array([each.why for each in parked], pa.string()).take(
                    pa.array(reasons, mask=reasons < 0)
                ),
            }
        ).cast(AUDIT_SCHEMA)


def _outcome(row: ParkedRow) -> int:
    """Return what the delivery left of a parked event, whatever was decided about it since."""
    if row.state is ParkedState.SKIPPED:
        return 3
    return 2 if row.doubted else 1


def _repeated(value: object, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), count)


def _moment(time: float) -> pa.Scalar:
    return pa.scalar(round(time * 1e6), pa.int64()).cast(pa.timestamp("us", "UTC"))


def _name_of(minibatch: Minibatch) -> str:
    return f"{minibatch.generation:04d}-{minibatch.batch:010d}"


@dataclass(frozen=True)
class Auditing:
    """The driver's part: it makes visible what is complete, and records what was resolved."""

    client: LedgerClient
    log: AuditLog
    run: int
    _looked: set[str] = field(default_factory=set)
    """The sinks of which this run knows that no file is missing."""

    @property
    def _pipeline(self) -> str:
        """The name that the log has, as every destination: a rename does not change it."""
        return self.client.at_sinks

    def show(self, sinks: Iterable[str], minibatch: Minibatch) -> None:
        """Make the files of a complete minibatch visible. May be repeated."""
        parts: dict[str, Any] = {}
        for sink in sinks:
            parts |= audit_parts(self.client, sink, minibatch)
        self.log.show(self._pipeline, parts)
        self.log.clean(self._pipeline, self.run, _name_of(minibatch))

    def show_left(self) -> None:
        """Make visible what earlier runs completed and did not show, at whatever sink; remove what
        else they left.
        """
        self.log.show(self._pipeline, audit_parts(self.client))
        self.log.clean_before(self._pipeline, self.run)

    def record_closed(
        self, leftover: Leftover, sink: Sink, handled: Handled, parked: Sequence[ParkedRow]
    ) -> None:
        """Record what an older generation left of a partition that no attempt will finish, before
        its rows are deleted; `parked` are the parked events of its minibatch. May be repeated.
        """
        row = leftover.row
        own = [
            each for each in parked if each.partition == row.partition and not each.state.only_marks
        ]
        before = [ids for span in leftover.spans if span.stop <= row.done for ids in span.ids]
        past = EntityIds.union(before) | ids_of((each.scope, each.event) for each in own)
        delivered, more = handled.ids - past, 0
        if sink.capability not in RECORDS_INTENTS:
            # The destination may know the greatest id only, of each entity or of the partition.
            if handled.upto is not None and not handled.ids:
                delivered = EntityIds.of({row.partition: [handled.upto]}) - past
            named = sum(len(ids) for _, ids in delivered.items())
            more = max(handled.osn - row.osn - row.done - named - len(own), 0)
        why = f"{_CLOSED}; {more} delivered before these have no row" if more else _CLOSED
        events: list[dict[str, Any]] = [
            {"entity": scope, "event": event_text(event), "outcome": "delivered", "why": why}
            for scope, ids in delivered.items()
            for event in ids
        ]
        events += [
            {
                "entity": each.shown or each.entity,
                "event": event_text(each.event),
                "osn": each.osn,
                "outcome": _OUTCOMES[_outcome(each)],
                "why": each.why,
            }
            for each in own
        ]
        if events:
            time = self.client.clock.wall()
            every = {
                "pipeline": self._pipeline,
                "sink": leftover.sink,
                "partition": row.partition,
                "minibatch": str(leftover.minibatch),
                "attempt": str(row.attempt),
                "time": _moment(time).as_py(),
            }
            table = pa.Table.from_pylist([every | each for each in events], AUDIT_SCHEMA)
            at = f"{_name_of(leftover.minibatch)}-closed"
            self.log.put_again(table, time, at, (leftover.sink, row.partition), self.run)

    def record_resolved(self, sinks: Iterable[str], opening: OpenMinibatch) -> None:
        """Record the parked events that were resolved since. May be repeated."""
        for sink in sinks:
            rows = ResolvedRows(self.client, sink)
            # 1. Write the files that are named and not there: a run before this one crashed between
            #    the steps 2 and 3. This one does not, or it ends with an error.
            if sink not in self._looked:
                absent = self.log.missing(self._pipeline, rows.names())
                for name, resolved in rows.named(absent).items():
                    self._put(sink, name, resolved)
                self._looked.add(sink)
            # 2. Name a file in the rows. A crash before it leaves nothing to do, one after it
            #    leaves rows whose file the next run writes.
            for name, resolved in rows.mark(opening, self._resolved_name, RESOLVED_ROWS):
                # 3. Write it.
                self._put(sink, name, resolved)

    def _put(self, sink: str, name: str, rows: Sequence[ParkedRow]) -> None:
        self.log.put(self._resolved(sink, name, rows), name, self.run)

    def _resolved_name(self) -> str:
        time = self.client.clock.wall()
        return f"day={day_of(time)}/resolved-{round(time * 1e6)}-{uuid4().hex}.parquet"

    def _resolved(self, sink: str, name: str, rows: Sequence[ParkedRow]) -> pa.Table:
        found = _NAMED.fullmatch(name)
        if found is None:
            raise AssertionError(f"{name} is not the name of a file of resolved events")
        time = _moment(int(found[1]) / 1e6)
        return pa.Table.from_pylist(
            [
                {
                    "pipeline": self._pipeline,
                    "sink": sink,
                    "partition": row.partition,
                    "entity": row.shown or row.entity,
                    "event": event_text(row.event),
                    "osn": row.osn,
                    "minibatch": str(row.minibatch),
                    "time": time.as_py(),
                    "outcome": row.state.value,
                    "why": f"{row.by}: {row.reason}" if row.by else row.why,
                }
                for row in rows
            ],
            AUDIT_SCHEMA,
        )
