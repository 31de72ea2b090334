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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from semel.events import Labels
from semel.ledger import ResolvedRows, audit_parts, read_parked
from semel.protocol import ParkedState, PartitionState
from semel.sinks import AUDIT_SCHEMA, day_of, event_text, event_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.observer import Figures
    from semel.events import Minibatch, Rows
    from semel.ledger import LedgerClient, OpenMinibatch, ParkedRow, PartitionRow
    from semel.sinks import AuditLog

_OUTCOMES = ("delivered", "parked", "in doubt", "skipped by policy")
_NAMED = re.compile(r"day=[\d-]{10}/resolved-(\d+)-\w+\.parquet")

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
        minibatch = self._partition.assignment.opening.row.minibatch
        now, before = done.parked + done.dropped, done.parked_before + done.dropped_before
        parked = self._parked(minibatch) if now or before or row.taken else []
        ended = self._partition.client.clock.wall()
        # What was complete before, and goes on (position identity), has a file of its own.
        table = self._table(row, parked, ended).slice(row.done)
        return self._log.write(table, ended, at=_aside(minibatch)) if table.num_rows else None

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
                "pipeline": _repeated(assignment.pipeline, count),
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


def _aside(minibatch: Minibatch) -> str:
    return f"{minibatch.generation:04d}-{minibatch.batch:010d}"


@dataclass(frozen=True)
class Auditing:
    """The driver's part: it makes visible what is complete, and records what was resolved."""

    client: LedgerClient
    log: AuditLog

    def show(self, sinks: Iterable[str], minibatch: Minibatch) -> None:
        """Make the files of a complete minibatch visible. May be repeated."""
        parts: dict[str, Any] = {}
        for sink in sinks:
            parts |= audit_parts(self.client, sink, minibatch)
        self.log.show(self.client.pipeline, parts)
        self.log.clean(self.client.pipeline, _aside(minibatch))

    def show_left(self) -> None:
        """Make visible what earlier runs completed and did not show, at whatever sink."""
        self.log.show(self.client.pipeline, audit_parts(self.client))

    def record_resolved(self, sinks: Iterable[str], opening: OpenMinibatch) -> None:
        """Record the parked events that were resolved since. May be repeated."""
        for sink in sinks:
            rows = ResolvedRows(self.client, sink)
            # 1. Name a file in the rows. A crash before it leaves nothing to do, one after it
            #    leaves rows whose file the next run writes.
            while rows.mark(opening, _resolved_name(self.client.clock.wall()), RESOLVED_ROWS):
                pass
            # 2. Write each file that is not there, from the rows that name it.
            named = rows.named()
            for name in self.log.missing(self.client.pipeline, list(named)):
                self.log.put(self._resolved(sink, name, named[name]), name)

    def _resolved(self, sink: str, name: str, rows: Sequence[ParkedRow]) -> pa.Table:
        found = _NAMED.fullmatch(name)
        if found is None:
            raise AssertionError(f"{name} is not the name of a file of resolved events")
        time = _moment(int(found[1]) / 1e6)
        return pa.Table.from_pylist(
            [
                {
                    "pipeline": self.client.pipeline,
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


def _resolved_name(time: float) -> str:
    return f"day={day_of(time)}/resolved-{round(time * 1e6)}-{uuid4().hex}.parquet"
