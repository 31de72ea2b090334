"""What stays of a batch job that is finished: one permanent row, and what is parked.

Always true:
- the row says what was delivered before the rows go that say how, in one commit;
- a finished job never opens its minibatch again: a re-run is counted and compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.ledger import owners, payloads
from semel.ledger.journal import COUNTERS, watermark_of
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.keys import EVENTS, OPEN, STREAMS, key, prefix
from semel.ledger.owners import FINISHED, PIPELINES
from semel.ledger.rows import StreamRow
from semel.ledger.sequences import TABLE as SEQUENCES
from semel.ledger.store import Conflict, Delete, Equals, Put, Sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.ledger.minibatches import Opening
    from semel.ledger.reports import Report
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Update


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished batch job delivered to one sink.

    Attributes:
        digest: over partition, count and digest of every partition; None where a person judged the
            batch, because then no replay is like what was delivered.
    """

    count: int
    digest: str | None


def finished(scribe: Scribe) -> Mapping[str, Finished] | None:
    """Tell what a batch job delivered, by sink; None while it is not finished."""
    at = key(PIPELINES, scribe.pipeline)
    text = scribe.read_one(at)
    return None if text is None else recorded(owners.described(text, at))


def finish(scribe: Scribe, opening: Opening) -> Mapping[str, Finished]:
    """Leave the permanent row of a batch job whose minibatch is complete, and nothing else but what
    is parked. May be repeated.

    Raises `Fenced` when a later run has it; after a crash before this the next run gets here again.
    """
    pipeline_key, open_key = key(PIPELINES, scribe.pipeline), key(OPEN, scribe.pipeline)
    rows = scribe.read(pipeline_key, open_key)
    described = owners.described(rows[pipeline_key], pipeline_key)
    known = recorded(described)
    if known is not None and open_key not in rows:
        return known
    if rows.get(open_key) != opening.completed:
        raise _fenced(scribe, opening)
    made = {
        sink: _told(scribe, opening, sink)
        for sink, each in described["sinks"].items()
        if owners.STAGE_OF not in each
    }
    kept = {sink: {"count": each.count, "digest": each.digest} for sink, each in made.items()}
    put = Put(pipeline_key, payloads.dump({**described, FINISHED: kept}))
    requirements = [Equals(pipeline_key, rows[pipeline_key]), Equals(open_key, opening.completed)]
    swept = _swept(scribe.pipeline, described["sinks"])
    try:
        scribe.commit(requirements, [put, Delete(open_key), *swept])
    except Conflict:
        raise _fenced(scribe, opening) from None
    return made


def compare(scribe: Scribe, reports: Sequence[Report], sinks: Iterable[str]) -> None:
    """Compare a run that only counted with what a finished batch job delivered.

    Raises `Diverged` when it has other content, `ConfigurationError` for a sink that had no part.
    """
    known = finished(scribe) or {}
    for sink in sinks:
        if sink not in known:
            raise ConfigurationError(
                f"pipeline {scribe.pipeline!r} is finished, and sink {sink!r} had no part in it. "
                "Deliver to it under another name or batch"
            )
        parts = [(each.partition, each.count, each.digest) for each in reports if each.sink == sink]
        found, before = combined(parts), known[sink]
        if before.digest is not None and found != before:
            raise Diverged(
                f"pipeline {scribe.pipeline!r}, sink {sink!r}: it is finished with {before.count} "
                f"events and digest {before.digest}, and this run gives {found.count} events and "
                f"digest {found.digest}. Nothing was sent. What is new belongs under another "
                "batch; look at the input if nothing should be"
            )


def combined(parts: Iterable[tuple[str, int, str]]) -> Finished:
    """Make one count and digest of partitions with theirs, in whatever order they come."""
    ordered = sorted((part for part in parts if part[1]), key=lambda part: part[0])
    text = payloads.dump({"partitions": [list(part) for part in ordered]})
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return Finished(sum(count for _, count, _ in ordered), digest)


def recorded(described: Mapping[str, Any]) -> dict[str, Finished] | None:
    """Tell what the row of a pipeline says of a batch job; None while it is not finished."""
    kept = described.get(FINISHED)
    if kept is None:
        return None
    return {sink: Finished(each["count"], each["digest"]) for sink, each in kept.items()}


def _told(scribe: Scribe, opening: Opening, sink: str) -> Finished:
    """Tell from the rows of the minibatch, which complete has just checked against the reports."""
    minibatch = opening.row.minibatch
    start = prefix(scribe.pipeline, sink, minibatch.generation, minibatch.batch)
    rows = [StreamRow.load(text, at) for at, text in scribe.scan(STREAMS, start)]
    made = combined((row.partition, row.count or 0, row.digest or "") for row in rows)
    return Finished(made.count, None) if minibatch.generation > 1 else made


def _swept(pipeline: str, sinks: Iterable[str]) -> list[Update]:
    """Sweep what only a running pipeline needs; parked events, heads and slots stay."""
    updates: list[Update] = [Sweep(JOURNAL, prefix(pipeline, COUNTERS.name))]
    for sink in sinks:
        updates += [Sweep(table, prefix(pipeline, sink)) for table in (STREAMS, EVENTS, SEQUENCES)]
        updates.append(Sweep(JOURNAL, prefix(pipeline, watermark_of(sink).name)))
    return updates


def _fenced(scribe: Scribe, opening: Opening) -> Fenced:
    return Fenced(
        f"pipeline {scribe.pipeline!r}: run {opening.row.run} cannot finish it, because a later "
        "run has it, or it is not complete. Nothing was changed; the later run goes on"
    )
