"""Changing the number of entity buckets between two minibatches.

New rows are written beside the old ones, under partition names that carry the number of buckets;
one small commit then switches. A crash before it leaves the old number in force, and doing it again
writes the same rows. Always true: what the last minibatch changed, and each set of remembered ids,
stays a row of its own, so that it can be judged, and forgotten, without the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError, Fenced
from semel.events import EntityIds, bucket, bucket_name
from semel.events.entityids import unpacked
from semel.ledger import journal, payloads, refusals
from semel.ledger.journal import COUNTERS, FORGOTTEN, Entry, Journal, watermark_of
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
ROWS_MAX = 1_000
"""How many rows are written with one commit."""


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
        for start in range(0, len(made) or 1, ROWS_MAX):
            some = made[start : start + ROWS_MAX]
            scribe.commit([still], journal.updates(scribe.pipeline, some))
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
    """Give the rows of an operator in the new buckets, as of the minibatch `number`."""
    older = _parted(scribe, operator, number, before, after)
    newest = _parted(scribe, operator, NOW, before, after)
    at = scribe.clock.wall()
    made: list[Entry] = []
    for new, (was, state) in enumerate(zip(older, newest, strict=True)):
        place = bucket_name(new, after)
        marks = {name: value for name, value in state.items() if _is_mark(operator, value)}
        sets = {name: value for name, value in state.items() if isinstance(value, dict)}
        made += [
            Entry(operator, place, int(name), False, {name: EntityIds.from_json(ids).written()}, at)
            for name, ids in sets.items()
        ]
        if marks:
            made.append(Entry(operator, place, FORGOTTEN, False, marks, 0.0))
        if marks or sets:
            continue
        changed = {name: value for name, value in state.items() if was.get(name) != value}
        if was:
            made.append(Entry(operator, place, number - 1, True, was, at))
        if changed:
            made.append(Entry(operator, place, number, False, changed, at))
    return made


def _parted(
    scribe: Scribe, operator: str, number: int, before: int, after: int
) -> list[dict[str, Any]]:
    """Give the state that the minibatch `number` starts from, of each new bucket."""
    made: list[dict[str, Any]] = [{} for _ in range(after)]
    for old in range(before):
        state = Journal(scribe).restore(
            journal.Operator(operator), bucket_name(old, before), before=number
        )
        plain: dict[str, Any] = {}
        for name, value in state.values.items():
            if _is_mark(operator, value):
                for part in made:
                    part[name] = value
            elif isinstance(value, dict):
                for new, ids in _by_bucket(unpacked(value), after):
                    made[new].setdefault(name, {}).update(ids)
            else:
                plain[name] = value
        for new, values in _by_bucket(plain, after):
            made[new].update(values)
    return made


def _is_mark(operator: str, value: Any) -> bool:
    """Whether a value is of the partition as a whole, not of an entity or a minibatch."""
    return operator != COUNTERS.name and not isinstance(value, dict | list)


def _by_bucket(values: dict[str, Any], buckets: int) -> list[tuple[int, dict[str, Any]]]:
    """Give what belongs to each bucket, of values by entity."""
    if not values:
        return []
    made: dict[int, dict[str, Any]] = {}
    places = bucket(pa.array(list(values)), buckets).tolist()
    for place, (entity, value) in zip(places, values.items(), strict=True):
        made.setdefault(place, {})[entity] = value
    return list(made.items())
