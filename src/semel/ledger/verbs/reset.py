"""Reset: a person decides where a stopped pipeline begins again, and whether events are repeated.

Always true:
- the decision, the watermarks that move with it and the mark in `open` are one commit, so that a
  crash leaves the pipeline as it was or reset as a whole;
- nothing is repeated unless the person said so: without that, watermarks stay and the events that
  they cover are suppressed when they are read again;
- it stays pending until a query opens a minibatch that begins there, with another checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from semel.errors import ConfigurationError, Fenced
from semel.events import Minibatch
from semel.ledger import journal
from semel.ledger.journal import JournalEntry, watermark_of
from semel.ledger.keys import PIPELINES_TABLE, key_text, make_key, make_prefix, split_key
from semel.ledger.payloads import Row, pair_of
from semel.ledger.rows import POSITIONS, OpenRow, PendingReset, read_description
from semel.ledger.store.commit import Absent, Conflict, Equals, Put
from semel.ledger.verbs import open_checks
from semel.ledger.verbs.complete import PositionMark, read_sequences, sequence_key
from semel.ledger.verbs.parked import read_parked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Requirement, Update

RESETS_TABLE = "resets"
EARLIEST, LATEST, POSITIONS_OF = "earliest", "latest", "positions"
_ABOVE_ALL = 2**62
"""Above every ordinal of an event."""


@dataclass(frozen=True, slots=True)
class ResetRow(Row):
    """One reset: who, why, when, where to, and what was known then.

    Attributes:
        to: `earliest`, `latest` or `positions`.
        positions: where the named source partitions begin.
        before: where each source partition would have continued, as far as is known.
        repeat: whether events that were delivered are delivered again.
        run: the last run before it.
        minibatch: the newest minibatch before it.
        serial: the ledger's number of that: ids that were to be repeated are forgotten as of it.
    """

    TABLE = RESETS_TABLE

    number: int
    at: float
    by: str
    reason: str
    to: str
    positions: Annotated[dict[str, int], POSITIONS]
    before: Annotated[dict[str, int], POSITIONS]
    repeat: bool
    run: int
    minibatch: Annotated[Minibatch, pair_of(Minibatch)]
    serial: int

    def starting_offsets(self, topics: Collection[str] | None = None) -> str:
        """Return Spark's option `startingOffsets` with which a query begins there; of some topics
        only, or empty if it says nothing of them.
        """
        if self.to != POSITIONS_OF:
            return self.to
        known = {**self.before, **self.positions}
        names = [name for name in known if topics is None or name.rpartition("/")[0] in topics]
        return open_checks.starting_offsets(known, names) if names else ""


@dataclass(frozen=True, slots=True)
class ResetStanding:
    """A stopped pipeline as a reset finds it.

    Attributes:
        known: where each source partition continues: by position identity from the watermarks, else
            from the positions of the inputs, where these are known.
        texts: the rows that the reset requires unchanged.
        number: of the next reset.
    """

    described: Mapping[str, Any]
    opened: OpenRow
    known: Mapping[str, int]
    number: int
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The recorded description of the identity."""
        found: Mapping[str, Any] = self.described.get("identity") or {}
        return found

    @property
    def by_position(self) -> bool:
        """Whether the watermarks are positions of the source."""
        return self.identity.get("kind") == "position"


def read_reset_standing(client: LedgerClient) -> ResetStanding:
    """Read what a reset needs. Raises `ConfigurationError` for a pipeline that cannot be reset: it
    never ran, is a batch, counts ids, or is in the middle of a minibatch.
    """
    at, open_key = make_key(PIPELINES_TABLE, client.pipeline), client.open_key
    rows = client.read(at, open_key)
    described = read_description(rows.get(at), at)
    open_checks.finished(client, described)
    name = f"pipeline {client.pipeline!r}"
    if open_key not in rows:
        raise ConfigurationError(
            f"{name} has not run yet, so there is nothing to reset: start it with the "
            "startingOffsets that you want"
        )
    opened = OpenRow.load(rows[open_key], open_key)
    if (described.get("identity") or {}).get("kind") == "counter":
        raise ConfigurationError(
            f"{name} counts the ids of its events, and counted ids do not survive a new beginning. "
            "Start it under a new name, with the startingOffsets that you want"
        )
    if not (opened.complete and opened.reached()[2]):
        raise ConfigurationError(
            f"{name}: minibatch {opened.minibatch} is not complete, so its events may have been "
            "delivered in part. Start the query until it is, stop it, then reset"
        )
    if opened.judged is not None:
        raise ConfigurationError(
            f"{name}: minibatch {opened.minibatch} was judged. Start the query, which acts on "
            "that, stop it, then reset"
        )
    known = open_checks.positions(read_sequences(client, sink) for sink in described["sinks"])
    if (described.get("identity") or {}).get("kind") != "position":
        known = input_positions(opened.inputs)
    number = 1 + len(client.scan(RESETS_TABLE, make_prefix(client.pipeline)))
    return ResetStanding(described, opened, known, number, {"open": rows[open_key]})


def input_positions(inputs: Iterable[str]) -> dict[str, int]:
    """Return the positions of inputs as Spark's Kafka source and semel's sources write them."""
    found: dict[str, int] = {}
    for text in inputs:
        try:
            offsets = json.loads(text)
        except ValueError:
            continue
        if isinstance(offsets, dict) and isinstance(offsets.get("marker"), int):
            offsets = offsets.get("positions")
        for topic, partitions in offsets.items() if isinstance(offsets, dict) else ():
            if not isinstance(partitions, dict):
                continue
            for number, offset in partitions.items():
                if type(offset) is int and offset >= 0:
                    found[f"{topic}/{number}"] = offset
    return found


def reset_pipeline(
    client: LedgerClient,
    standing: ResetStanding,
    to: str,
    positions: Mapping[str, int],
    by: str,
    reason: str,
    *,
    repeat: bool,
) -> ResetRow:
    """Record a reset, and move the watermarks if events are to be repeated or skipped.

    A lost reply is recognised; called again, it is another reset. Raises `ConfigurationError` if
    events are to be repeated while some are parked, `Fenced` if the pipeline ran since its standing
    was read.
    """
    opened = standing.opened
    if repeat:
        refuse_parked(client, standing.described["sinks"])
    row = ResetRow(
        number=standing.number,
        at=client.clock.wall(),
        by=by,
        reason=reason,
        to=to,
        positions=dict(positions),
        before=dict(standing.known),
        repeat=repeat,
        run=opened.run,
        minibatch=opened.minibatch,
        serial=opened.reached()[1],
    )
    pending = PendingReset(standing.number, dict(positions), to == LATEST)
    row_key = make_key(RESETS_TABLE, client.pipeline, standing.number)
    requirements: list[Requirement] = [
        Equals(client.open_key, standing.texts["open"]),
        Absent(row_key),
    ]
    updates: list[Update] = [
        Put(row_key, row.dump()),
        Put(client.open_key, replace(opened, version=opened.version + 1, reset=pending).dump()),
    ]
    if standing.by_position:
        updates += _moved_marks(client, standing, to, positions)
    elif repeat:
        updates += _forgotten_ids(client, standing)
    try:
        client.commit(requirements, updates)
    except Conflict:
        raise Fenced(
            f"pipeline {client.pipeline!r} ran while it was reset; nothing was changed. Stop the "
            "query, then reset again"
        ) from None
    return row


def refuse_parked(client: LedgerClient, sinks: Iterable[str]) -> None:
    """Refuse to repeat events while some are parked: a parked one would be sent a second time."""
    for sink in sinks:
        waiting = [row for _, row, _ in read_parked(client, sink) if not row.state.final]
        if waiting:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}, sink {sink!r}: {len(waiting)} events are parked, "
                "and would be sent a second time when they are read again. Resolve them first, for "
                f"example with `semel resolve --where 'sink={sink}' discard --reason ...`; those "
                "that wait behind another one follow when the query runs"
            )


def _moved_marks(
    client: LedgerClient, standing: ResetStanding, to: str, positions: Mapping[str, int]
) -> list[Update]:
    """Return the updates that move position watermarks: to just before each named position, or away
    for the earliest. For the latest they stay: what is read from there on is new.
    """
    if to == LATEST:
        return []
    generation = standing.opened.minibatch.generation
    ordinals = len(standing.identity.get("ordinals") or ())
    updates: list[Update] = []
    for sink in standing.described["sinks"]:
        for partition, row in read_sequences(client, sink).items():
            mark = None
            if to == POSITIONS_OF:
                if partition not in positions:
                    continue
                last = positions[partition] - 1
                if ordinals:  # a digest, which no event has, says that the offset is read as whole
                    upto = (last, *[_ABOVE_ALL] * ordinals)
                    mark = PositionMark(upto, "reset", generation=generation)
                else:
                    mark = PositionMark(last, generation=generation)
            made = replace(row, after=replace(row.after, mark=mark))
            updates.append(Put(sequence_key(client.pipeline, sink, partition), made.dump()))
    return updates


def _forgotten_ids(client: LedgerClient, standing: ResetStanding) -> list[Update]:
    """Return the updates after which no given id is remembered: an empty snapshot, as of the newest
    minibatch, of each partition. Older rows stay for the minibatches that are kept.
    """
    _, serial, _ = standing.opened.reached()
    at = client.clock.wall()
    entries: dict[tuple[str, str], JournalEntry] = {}
    for sink in standing.described["sinks"]:
        operator = watermark_of(sink).name
        start = make_prefix(client.pipeline, operator)
        for row_key, _ in client.scan(journal.JOURNAL_TABLE, start):
            partition = key_text(split_key(row_key.key)[2])
            entries[operator, partition] = JournalEntry.of(
                operator, partition, serial, {}, at, full=True
            )
    return journal.journal_updates(client.pipeline, entries.values())


def read_resets(client: LedgerClient) -> list[ResetRow]:
    """Return every reset of the pipeline, the oldest first."""
    rows = client.scan(RESETS_TABLE, make_prefix(client.pipeline))
    return [ResetRow.load(text, at) for at, text in rows]


def pending_reset(client: LedgerClient) -> ResetRow | None:
    """Return the reset that no start has acted on yet."""
    text = client.read_one(client.open_key)
    pending = None if text is None else OpenRow.load(text, client.open_key).reset
    if pending is None:
        return None
    at = make_key(RESETS_TABLE, client.pipeline, pending.number)
    found = client.read_one(at)
    return None if found is None else ResetRow.load(found, at)
