"""Changing the number of entity buckets between two minibatches.

New snapshots are written beside the old ones, under partition names that carry the number of
buckets; one small commit then switches. A crash before it leaves the old number in force, and doing
it again writes the same rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError, Fenced
from semel.events import bucket, bucket_name
from semel.ledger import journal, payloads, refusals
from semel.ledger.journal import COUNTERS, Entry, Journal, watermark_of
from semel.ledger.keys import OPEN, key, prefix
from semel.ledger.owners import PIPELINES
from semel.ledger.parked import read_parked
from semel.ledger.rows import OpenRow
from semel.ledger.sequences import TABLE as SEQUENCES
from semel.ledger.store import Conflict, Equals, Put, Sweep
from semel.protocol import Capability

if TYPE_CHECKING:
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Update

NOW = 2**62
"""A number above every minibatch: the state as of now."""


def rescale(scribe: Scribe, partitions: int) -> None:
    """Give a pipeline whose last minibatch is complete another number of partitions.

    May be repeated. Raises `ConfigurationError` when it follows its source's partitions or a
    minibatch is not complete, `Fenced` when the pipeline went on meanwhile.
    """
    pipeline_key, open_key = key(PIPELINES, scribe.pipeline), key(OPEN, scribe.pipeline)
    rows = scribe.read(pipeline_key, open_key)
    refusals.finished(scribe, rows.get(pipeline_key))
    if pipeline_key not in rows or open_key not in rows:
        raise ConfigurationError(f"pipeline {scribe.pipeline!r} has not run yet: just start it")
    described, opened = payloads.load(rows[pipeline_key]), OpenRow.load(rows[open_key])
    before = described.get("partitions")
    if before is None:
        raise ConfigurationError(
            f"pipeline {scribe.pipeline!r} delivers its source's own partitions: there is "
            "nothing to rescale"
        )
    if before == partitions:
        return
    if not opened.complete:
        raise ConfigurationError(
            f"pipeline {scribe.pipeline!r}: minibatch {opened.minibatch} is not complete. Start "
            "the query with the old number until it is, stop it, then rescale"
        )
    _refuse_parked(scribe, described["sinks"])
    operators = [COUNTERS.name, *(watermark_of(sink).name for sink in described["sinks"])]
    still = Equals(open_key, rows[open_key])
    for operator in operators:
        made = _rebucketed(scribe, operator, opened.serial, before, partitions)
        scribe.commit([still], journal.updates(scribe.pipeline, made))
    switch: list[Update] = [
        Put(pipeline_key, payloads.dump({**described, "partitions": partitions})),
        Put(open_key, replace(opened, version=opened.version + 1).dump()),
        *(Sweep(SEQUENCES, prefix(scribe.pipeline, sink)) for sink in described["sinks"]),
        *(
            Sweep(journal.TABLE, prefix(scribe.pipeline, operator, bucket_name(number, before)))
            for operator in operators
            for number in range(before)
        ),
    ]
    try:
        scribe.commit([still, Equals(pipeline_key, rows[pipeline_key])], switch)
    except Conflict:
        raise Fenced(
            f"pipeline {scribe.pipeline!r} went on while it was rescaled; nothing was switched. "
            "Stop the query, then rescale again"
        ) from None


def _refuse_parked(scribe: Scribe, sinks: dict[str, Any]) -> None:
    """What is parked of a log belongs to that log: its partition has to be there to append it."""
    for sink, described in sinks.items():
        if described.get("capability") != Capability.SEQUENCED:
            continue
        waiting = [row for _, row, _ in read_parked(scribe, sink) if not row.state.final]
        if waiting:
            raise ConfigurationError(
                f"pipeline {scribe.pipeline!r}, sink {sink!r}: {len(waiting)} events are parked, "
                "and only their own log may take them. Resolve what `semel parked ls` shows and "
                "let the query run once more, then rescale"
            )


def _rebucketed(scribe: Scribe, operator: str, number: int, before: int, after: int) -> list[Entry]:
    """Give the state of an operator in the new buckets, as one full snapshot for each."""
    made: list[dict[str, Any]] = [{} for _ in range(after)]
    for old in range(before):
        state = Journal(scribe).restore(
            journal.Operator(operator), bucket_name(old, before), before=NOW
        )
        for name, value in state.values.items():
            if operator != COUNTERS.name and not isinstance(value, dict | list):
                for part in made:  # a mark of the partition as a whole
                    part[name] = value
            elif isinstance(value, dict):
                for scope, ids in value.items():
                    sets = made[_bucket(scope, after)].setdefault(name, {})
                    sets[scope] = ids
            else:
                made[_bucket(name, after)][name] = value
    at = scribe.clock.wall()
    return [
        Entry(operator, bucket_name(new, after), number, True, state, at)
        for new, state in enumerate(made)
        if state
    ]


def _bucket(entity: str, partitions: int) -> int:
    return int(bucket(pa.array([entity]), partitions)[0])
