"""Counts and digests one partition of a batch job that is finished: nothing is sent or written.

What it tells is what the delivery in the first generation told of the same rows: no watermark held
anything back then, and counters started from nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.events import Digest
from semel.ledger.reports import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from semel.delivery.assignment import Assignment
    from semel.sinks import Sink


def count(
    assignment: Assignment, sinks: Sequence[Sink], batches: Iterable[pa.RecordBatch]
) -> list[Report]:
    """Report count and digest for every sink, without a look at the ledger; nothing for no events.

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
            ends = [rows.sort_key(0)]
        digest.update(rows.batch)
        ends[1:] = [rows.sort_key(len(rows) - 1)]
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
