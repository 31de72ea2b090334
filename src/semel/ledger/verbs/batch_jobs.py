"""Finished batch jobs: one permanent row, and parked events.

Always true:
- the permanent row is written in the commit that removes the rows of the minibatch;
- a finished job never opens its minibatch again: a re-run is counted and compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.ledger.journal import COUNTERS, watermark_of
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import EVENTS_TABLE, PIPELINES_TABLE, STREAMS_TABLE, make_key, make_prefix
from semel.ledger.payloads import dump_payload
from semel.ledger.rows import Finished, PartitionRow, read_description
from semel.ledger.store.commit import Conflict, Delete, Equals, Put, Sweep
from semel.ledger.verbs import runs
from semel.ledger.verbs.complete import SEQUENCES_TABLE as SEQUENCES
from semel.ledger.verbs.runs import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Update
    from semel.ledger.verbs.complete import Report
    from semel.ledger.verbs.open import OpenMinibatch


def finished_batch(client: LedgerClient) -> Mapping[str, Finished] | None:
    """Return what a batch job delivered, by sink; None while it is not finished."""
    at = make_key(PIPELINES_TABLE, client.pipeline)
    text = client.read_one(at)
    return None if text is None else recorded_batch(read_description(text, at))


def finish_batch(client: LedgerClient, opening: OpenMinibatch) -> Mapping[str, Finished]:
    """Write the permanent row of a batch job whose minibatch is complete, and remove all other rows
    but parked events. May be repeated; after a crash before this commit the next run does it.

    Raises `Fenced` if a later run has it.
    """
    pipeline_key, open_key = (
        make_key(PIPELINES_TABLE, client.pipeline),
        client.open_key,
    )
    rows = client.read(pipeline_key, open_key)
    described = read_description(rows[pipeline_key], pipeline_key)
    known = recorded_batch(described)
    if known is not None and open_key not in rows:
        return known
    if rows.get(open_key) != opening.completed:
        raise _fenced(client, opening)
    made = {
        sink: _delivered(client, opening, sink)
        for sink, each in described["sinks"].items()
        if runs.STAGE_OF not in each
    }
    kept = {sink: asdict(each) for sink, each in made.items()}
    put = Put(pipeline_key, dump_payload({**described, FINISHED: kept}))
    requirements = [Equals(pipeline_key, rows[pipeline_key]), Equals(open_key, opening.completed)]
    swept = _swept(client.pipeline, described["sinks"])
    try:
        client.commit(requirements, [put, Delete(open_key), *swept])
    except Conflict:
        raise _fenced(client, opening) from None
    return made


def compare_batch(client: LedgerClient, reports: Sequence[Report], sinks: Iterable[str]) -> None:
    """Compare a run that only counted with what a finished batch job delivered.

    Raises `Diverged` if it has other content, `ConfigurationError` for a sink that had no part.
    """
    known = finished_batch(client) or {}
    for sink in sinks:
        if sink not in known:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r} is finished, and sink {sink!r} had no part in it. "
                "Deliver to it under another name or batch"
            )
        parts = [(each.partition, each.count, each.digest) for each in reports if each.sink == sink]
        found, before = combined(parts), known[sink]
        if before.digest is not None and found != before:
            raise Diverged(
                f"pipeline {client.pipeline!r}, sink {sink!r}: it is finished with {before.count} "
                f"events and digest {before.digest}, and this run has {found.count} events and "
                f"digest {found.digest}. Nothing was sent. Deliver new events under another "
                "batch; if there should be none, look at the input"
            )


def combined(parts: Iterable[tuple[str, int, str]]) -> Finished:
    """Combine counts and digests of partitions into one, in any order."""
    ordered = sorted((part for part in parts if part[1]), key=lambda part: part[0])
    text = dump_payload({"partitions": [list(part) for part in ordered]})
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return Finished(sum(count for _, count, _ in ordered), digest)


def recorded_batch(described: Mapping[str, Any]) -> dict[str, Finished] | None:
    """Return what the row of a pipeline records of a batch job; None if it is not finished."""
    kept = described.get(FINISHED)
    if kept is None:
        return None
    return {sink: Finished(each["count"], each["digest"]) for sink, each in kept.items()}


def _delivered(client: LedgerClient, opening: OpenMinibatch, sink: str) -> Finished:
    """Return the result of one sink, from rows that complete has compared with the reports."""
    minibatch = opening.row.minibatch
    start = make_prefix(client.pipeline, sink, minibatch.generation, minibatch.batch)
    rows = [PartitionRow.load(text, at) for at, text in client.scan(STREAMS_TABLE, start)]
    made = combined((row.partition, row.count or 0, row.digest or "") for row in rows)
    return Finished(made.count, None) if minibatch.generation > 1 else made


def _swept(pipeline: str, sinks: Iterable[str]) -> list[Update]:
    """Return sweeps of what only a running pipeline needs; parked events, heads and slots stay."""
    updates: list[Update] = [Sweep(JOURNAL, make_prefix(pipeline, COUNTERS.name))]
    for sink in sinks:
        updates += [
            Sweep(table, make_prefix(pipeline, sink))
            for table in (STREAMS_TABLE, EVENTS_TABLE, SEQUENCES)
        ]
        updates.append(Sweep(JOURNAL, make_prefix(pipeline, watermark_of(sink).name)))
    return updates


def _fenced(client: LedgerClient, opening: OpenMinibatch) -> Fenced:
    return Fenced(
        f"pipeline {client.pipeline!r}: run {opening.row.run} cannot finish it, because a later "
        "run has it, or it is not complete. Nothing was changed; the later run continues"
    )
