"""Counts and digests partitions that were delivered before: no event of them is sent.

Always true:
- of a finished batch job nothing is written either, and the reports are those of its delivery in
  the first generation: no watermark held anything back then, and counters started from nothing;
- with position identity a re-run of a complete partition may end later than the first run did; then
  its row goes back to pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.events import Digest
from semel.ledger import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from semel.delivery.assignment import Assignment, SinkPartition
    from semel.delivery.observer import Figures
    from semel.delivery.parking.parking import PartitionParking
    from semel.delivery.partition import Buffer
    from semel.events import Rows
    from semel.sinks import Sink


def count_partition(
    assignment: Assignment, sinks: Sequence[Sink], batches: Iterable[pa.RecordBatch]
) -> list[Report]:
    """Report count and digest for every sink, without reading the ledger; nothing for no events.

    Raises what stamping raises: `ConfigurationError`, `Diverged`.
    """
    stamper = assignment.identity.stamper(assignment.partition)
    digest: Digest | None = None
    total = 0
    ends: list[list[Any]] = []
    for batch in batches:
        rows = stamper.stamp(batch)
        if not len(rows):
            continue
        if digest is None:
            digest = Digest(rows.batch.schema)
        digest.update(rows.batch)
        ends = rows.ends(after=ends)
        total += len(rows)
    if digest is None:
        return []
    return [
        Report(
            sink=sink.name,
            partition=assignment.partition,
            attempt=assignment.attempt,
            count=total,
            digest=digest.hexdigest(),
            osn=total,
            first=ends[0],
            last=ends[1],
            suppressed=total,
        )
        for sink in sinks
    ]


STEP_ROWS = 65_536


def wants(partition: SinkPartition, position: int) -> int:
    """Return the rows left of what was complete, at most `STEP_ROWS`; then `STEP_ROWS`."""
    row = partition.claim.row
    count = row.count if row is not None and row.count is not None else 0
    left = count - position
    return min(left, STEP_ROWS) if left > 0 else STEP_ROWS


def goes_on(partition: SinkPartition, buffer: Buffer, rows: Rows) -> bool:
    """Whether events came beyond a complete range; if so, put the row back to pending for them.

    Raises `Diverged` if the range itself is not what was delivered.
    """
    row = partition.claim.row
    if row is None or row.count is None or buffer.position < row.count:
        return False
    if not partition.assignment.identity.may_grow:
        return False
    opening = partition.assignment.opening
    known = opening.sequence(partition.sink.name, partition.assignment.partition)
    if any(serial > opening.row.serial for serial, _ in known.before):
        more = "more, of a later minibatch"
        raise partition.diverged(row.count, f"{row.count} events", more, rows)
    running = buffer.digest_to(buffer.position)
    if running != row.digest:
        raise partition.diverged(row.count, f"digest {row.digest}", f"digest {running}", rows)
    partition.claim.reopen(row.count)
    return True


def count_rows(parking: PartitionParking, position: int, rows: Rows) -> Figures:
    """Count rows that were delivered before."""
    if not position:
        parking.read_marks()  # parked events were not delivered
    return parking.count_before(range(position, position + len(rows)))
