"""Changing the number of entity buckets, and how entities are spread, between minibatches.

New rows are written beside the old ones, under partition names that contain the number of buckets;
one small commit then switches. A crash before it leaves the old number in force, and a repetition
writes the same rows. Always true: the changes of each of the last two minibatches, and each set of
remembered ids, stay rows of their own, so that each can be replayed, judged and forgotten without
the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError, Fenced
from semel.events import EntityIds, bucket_name, places, unpacked
from semel.ledger import journal, payloads
from semel.ledger.journal import (
    COUNTERS,
    FORGOT,
    FORGOTTEN,
    MET,
    Journal,
    JournalEntry,
    watermark_of,
)
from semel.ledger.keys import PIPELINES_TABLE, make_key, make_prefix
from semel.ledger.rows import OpenRow, read_description
from semel.ledger.store.commit import Conflict, Equals, Put, Sweep
from semel.ledger.verbs import open_checks, runs
from semel.ledger.verbs.complete import SEQUENCES_TABLE as SEQUENCES
from semel.ledger.verbs.parked import read_parked
from semel.ledger.verbs.runs import RESCALED
from semel.protocol import Capability

if TYPE_CHECKING:
    from semel.events import Routing
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Requirement, Update

NEWEST = 2**62
"""A number above every minibatch: the state as of now."""
ROWS_MAX = 1_000
"""How many rows one commit writes."""


def rescale_pipeline(client: LedgerClient, partitions: int, routing: Routing | None = None) -> None:
    """Change the number of partitions of a pipeline whose last minibatch is complete, and spread
    its entities over them by `routing`, or by their hash.

    May be repeated. Raises `ConfigurationError` if it delivers its source's partitions or a
    minibatch is not complete, `Fenced` if the pipeline continued meanwhile.
    """
    # 1. Refuse a pipeline in the middle of a minibatch: its replay needs the old partitions.
    pipeline_key, open_key = (
        make_key(PIPELINES_TABLE, client.pipeline),
        client.open_key,
    )
    rows = client.read(pipeline_key, open_key)
    described = read_description(rows.get(pipeline_key), pipeline_key)
    open_checks.finished(client, described)
    if pipeline_key not in rows or open_key not in rows:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} has not run yet: start it with the new number"
        )
    opened = OpenRow.load(rows[open_key], open_key)
    before = described.get("partitions")
    if before is None:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} delivers its source's own partitions: there is "
            "nothing to rescale"
        )
    wanted = None if routing is None else routing.describe()
    rerouted = described.get(runs.ROUTING) != wanted
    if before == partitions and not rerouted:
        return
    if before == partitions:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} already has {before} partitions, under the same names, "
            "and its entities are spread in another way. Rescale it to another number first, then "
            f"to {partitions}"
        )
    serial = _complete_serial(client, opened)
    _refuse_parked(client, described["sinks"])
    # 2. Write the new rows beside the old ones. A crash leaves rows that nothing reads yet.
    operators = [COUNTERS.name, *(watermark_of(sink).name for sink in described["sinks"])]
    still = Equals(open_key, rows[open_key])
    for operator in operators:
        made = _rebucketed(client, operator, serial, before, Spread(partitions, routing))
        for start in range(0, len(made) or 1, ROWS_MAX):
            some = made[start : start + ROWS_MAX]
            _commit(client, [still], journal.journal_updates(client.pipeline, some))
    # 3. Switch in one commit; it fails if a run started meanwhile, and refuses the old number then.
    kept = {name: each for name, each in described.items() if name != runs.ROUTING}
    spread = {} if wanted is None else {runs.ROUTING: wanted}
    switch: list[Update] = [
        Put(
            pipeline_key,
            payloads.dump_payload({**kept, **spread, "partitions": partitions, RESCALED: serial}),
        ),
        Put(open_key, replace(opened, version=opened.version + 1).dump()),
        *(Sweep(SEQUENCES, make_prefix(client.pipeline, sink)) for sink in described["sinks"]),
        *(
            Sweep(
                journal.JOURNAL_TABLE,
                make_prefix(client.pipeline, operator, bucket_name(number, before)),
            )
            for operator in operators
            for number in range(before)
        ),
    ]
    _commit(client, [still, Equals(pipeline_key, rows[pipeline_key])], switch)


def _complete_serial(client: LedgerClient, opened: OpenRow) -> int:
    """Return the serial of the newest minibatch. Raises `ConfigurationError` if it is open."""
    if not opened.complete:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r}: minibatch {opened.minibatch} is not complete. Start "
            "the query with the old number until it is, stop it, then rescale"
        )
    if opened.reset is not None:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} was reset (reset {opened.reset.number}) and has not "
            "begun there yet. Start it once, stop it, then rescale"
        )
    _, serial, complete = opened.reached()
    if not complete:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r}: the minibatch after {opened.minibatch} is not "
            "complete. Start the query with the old number until it is, stop it, then rescale"
        )
    return serial


def _commit(client: LedgerClient, requirements: list[Requirement], updates: list[Update]) -> None:
    """Commit. Raises `Fenced` if the pipeline changed meanwhile."""
    try:
        client.commit(requirements, updates)
    except Conflict:
        raise Fenced(
            f"pipeline {client.pipeline!r} ran while it was rescaled; nothing was switched. "
            "Stop the query, then rescale again"
        ) from None


def _refuse_parked(client: LedgerClient, sinks: dict[str, Any]) -> None:
    """Refuse parked events of a log: only their own partition can append them."""
    for sink, described in sinks.items():
        if described.get("capability") != Capability.SEQUENCED:
            continue
        waiting = [row for _, row, _ in read_parked(client, sink) if not row.state.final]
        if waiting:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}, sink {sink!r}: {len(waiting)} events are parked, "
                "and only their own log may take them. Resolve what `semel parked ls` shows and "
                "let the query run once more, then rescale"
            )


@dataclass(frozen=True, slots=True)
class Spread:
    """The number of partitions over which entities are spread, and the routing."""

    partitions: int
    routing: Routing | None = None

    def parts(self, values: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Return the values of each partition, from values by entity."""
        if not values:
            return []
        made: dict[int, dict[str, Any]] = {}
        found = places(pa.array(list(values)), self.partitions, self.routing).tolist()
        for place, (entity, value) in zip(found, values.items(), strict=True):
            made.setdefault(place, {})[entity] = value
        return list(made.items())


def _rebucketed(
    client: LedgerClient, operator: str, number: int, before: int, after: Spread
) -> list[JournalEntry]:
    """Return the rows of an operator in the new buckets, as of the newest minibatch, `number`:
    either it or the one before it may be replayed from them.
    """
    points = [_parted(client, operator, at, before, after) for at in (number - 1, number, NEWEST)]
    at = client.clock.wall()
    ages = _ages(client, operator)
    made: list[JournalEntry] = []
    for new, (oldest, older, state) in enumerate(zip(*points, strict=True)):
        place = bucket_name(new, after.partitions)
        marks = {name: value for name, value in state.items() if _is_mark(operator, value)}
        sets = {name: value for name, value in state.items() if isinstance(value, dict)}
        for name, ids in sets.items():
            kept = {name: EntityIds.from_json(ids).written()}
            made.append(JournalEntry.of(operator, place, int(name), kept, ages.get(int(name), at)))
        if marks:
            made.append(JournalEntry.of(operator, place, FORGOTTEN, marks, 0.0))
        if marks or sets:
            continue
        if oldest:
            made.append(JournalEntry.of(operator, place, number - 2, oldest, at, full=True))
        for minibatch, was, became in ((number - 1, oldest, older), (number, older, state)):
            changed: dict[str, Any] = dict.fromkeys(was.keys() - became.keys())  # a reset forgot it
            changed |= {name: value for name, value in became.items() if was.get(name) != value}
            if changed:
                made.append(JournalEntry.of(operator, place, minibatch, changed, at))
    return made


def _parted(
    client: LedgerClient, operator: str, number: int, before: int, after: Spread
) -> list[dict[str, Any]]:
    """Return the state of each new bucket from which the minibatch `number` starts."""
    made: list[dict[str, Any]] = [{} for _ in range(after.partitions)]
    marks: list[dict[str, Any]] = []
    for old in range(before):
        state = Journal(client).restore(
            journal.StateOperator(operator), bucket_name(old, before), before=number
        )
        plain: dict[str, Any] = {}
        marks.append({})
        for name, value in state.values.items():
            if _is_mark(operator, value):
                marks[-1][name] = value
            elif isinstance(value, dict):
                for new, ids in after.parts(unpacked(value)):
                    made[new].setdefault(name, {}).update(ids)
            else:
                plain[name] = value
        for new, values in after.parts(plain):
            made[new].update(values)
    for part in made:
        part.update(_of_all(marks))
    return made


def _of_all(marks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the marks of a bucket that takes from all others: the oldest generation that any of
    them has forgotten, and the oldest that one of those has met.
    """
    forgetful = [each for each in marks if FORGOT in each]
    if not forgetful:
        return {}
    least = {FORGOT: min(each[FORGOT] for each in forgetful)}
    if any(MET not in each for each in forgetful):
        return least
    return {**least, MET: min(each[MET] for each in forgetful)}


def _ages(client: LedgerClient, operator: str) -> dict[int, float]:
    """Return the time of each set of remembered ids, by its minibatch; rescaling keeps it."""
    found: dict[int, float] = {}
    for at, text in client.scan(journal.JOURNAL_TABLE, make_prefix(client.pipeline, operator)):
        row = journal.load_entry(text, at)
        found[row.number] = min(row.at, found.get(row.number, row.at))
    return found


def _is_mark(operator: str, value: Any) -> bool:
    """Whether a value belongs to the partition as a whole, not to an entity or a minibatch."""
    return operator != COUNTERS.name and not isinstance(value, dict | list)
