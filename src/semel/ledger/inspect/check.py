"""Checks a whole ledger: every row can be read, and rows agree with each other.

Each function checks what another module states under "Always true". Nothing is written. Pipelines
may write meanwhile, so the ledger is read several times, and only a problem that is found each time
is reported.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from semel.events import Minibatch
from semel.ledger import journal, keys
from semel.ledger.inbox_rows import INBOX_ENDS_TABLE, INBOX_TABLE, same_hashes
from semel.ledger.inspect.listing import LedgerRows, Problem, ascending
from semel.ledger.keys import (
    EVENTS_TABLE,
    HEADS_TABLE,
    OPEN_TABLE,
    PARKED_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
)
from semel.ledger.stream_rows import MARKERS_TABLE
from semel.ledger.verbs.complete import SEQUENCES_TABLE
from semel.ledger.verbs.pruning import OUTCOMES_TABLE
from semel.ledger.verbs.reset import RESETS_TABLE
from semel.ledger.verbs.runs import NAMES_TABLE, OWNERS_TABLE, RESCALED
from semel.protocol import ParkedState, PartitionState, SpanState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.ledger.inbox_rows import InboxEndRow
    from semel.ledger.rows import PartitionRow
    from semel.ledger.store.commit import Store


LOOKS = 3
"""How often the ledger is read before a problem is reported."""


def check_ledger(store: Store) -> tuple[int, list[Problem]]:
    """Return how many rows the ledger has, and the problems that were found."""
    found: list[Problem] | None = None
    count = 0
    for _ in range(LOOKS):
        rows = LedgerRows.read(store)
        now = [*rows.problems, *problems_between(rows)]
        found = now if found is None else [each for each in found if each in now]
        count = rows.count
        if not found:
            break
    return count, sorted(set(found or ()))


def problems_between(rows: LedgerRows) -> Iterator[Problem]:
    """Yield the problems between rows that can each be read. Of a pipeline that is half forgotten
    only that is one.
    """
    names = rows.by_table[NAMES_TABLE].items()
    forgotten = {name for name, row in names if not row.renamed_to}
    for check in _CHECKS:
        for problem in check(rows):
            if problem.table == NAMES_TABLE or problem.key.partition("/")[0] not in forgotten:
                yield problem


def _known_names(rows: LedgerRows) -> Iterator[Problem]:
    """Every row belongs to a pipeline, and to a sink of it, that is registered. A name that was
    given up leads to a pipeline.
    """
    for name, row in rows.by_table[NAMES_TABLE].items():
        if not row.renamed_to:
            yield Problem(NAMES_TABLE, name, row.refusal(keys.key_text(name)))
        elif keys.written_part(row.renamed_to) not in rows.by_table[PIPELINES_TABLE]:
            yield Problem(NAMES_TABLE, name, "the pipeline that it was renamed to is not there")
    for table in (
        OWNERS_TABLE,
        OPEN_TABLE,
        STREAMS_TABLE,
        EVENTS_TABLE,
        SEQUENCES_TABLE,
        PARKED_TABLE,
        HEADS_TABLE,
        OUTCOMES_TABLE,
        journal.JOURNAL_TABLE,
    ):
        for parts, _ in rows.of(table):
            at = "/".join(parts)
            described = rows.by_table[PIPELINES_TABLE].get(parts[0])
            if described is None:
                yield Problem(table, at, "its pipeline is not registered")
                continue
            sink = _sink_in(table, parts)
            if sink is not None and sink not in map(keys.written_part, described["sinks"]):
                yield Problem(table, at, "its sink is not registered for its pipeline")


def _sink_in(table: str, parts: tuple[str, ...]) -> str | None:
    if table in (OPEN_TABLE, journal.JOURNAL_TABLE):
        return None
    if table == OWNERS_TABLE:
        return parts[2] if len(parts) == 4 else None
    return parts[1]


def _owners(rows: LedgerRows) -> Iterator[Problem]:
    """The run that has a pipeline is registered in `owners`."""
    for (pipeline,), opened in rows.of(OPEN_TABLE):
        owner = rows.by_table[OWNERS_TABLE].get(pipeline)
        if owner is None:
            yield Problem(OPEN_TABLE, pipeline, "its pipeline has no owner")
        elif owner.run < opened.run:
            yield Problem(
                OWNERS_TABLE,
                pipeline,
                f"its run is older than run {opened.run}, which opened the minibatch",
            )


def _serial_of(rows: LedgerRows, pipeline: str, minibatch: Minibatch) -> int | None:
    """Return the serial of a minibatch of the open generation, as `sequences` and the journal use
    it; None for a minibatch from before a rescale.
    """
    opened = rows.by_table[OPEN_TABLE][pipeline]
    described = rows.by_table[PIPELINES_TABLE].get(pipeline) or {}
    if minibatch.generation != opened.minibatch.generation:
        return None
    serial: int = opened.serial + minibatch.batch - opened.minibatch.batch
    return serial if serial > described.get(RESCALED, 0) else None


def _streams(rows: LedgerRows) -> Iterator[Problem]:
    """A partition belongs to a minibatch that was opened. It is pending only in an incomplete
    minibatch, and complete only with a count and a digest.
    """
    for parts, row in rows.of(STREAMS_TABLE):
        at = "/".join(parts)
        opened = rows.by_table[OPEN_TABLE].get(parts[0])
        minibatch = Minibatch(keys.key_number(parts[2]), keys.key_number(parts[3]))
        if opened is None:
            yield Problem(STREAMS_TABLE, at, "no minibatch of its pipeline is open")
            continue
        newest = Minibatch(opened.minibatch.generation, opened.reached()[0])
        if minibatch > newest:
            yield Problem(STREAMS_TABLE, at, f"its minibatch is later than {newest}, the newest")
        if row.attempt.run > opened.run:
            yield Problem(
                STREAMS_TABLE, at, f"its attempt belongs to a later run than {opened.run}"
            )
        if row.state is PartitionState.COMPLETE and (row.count is None or row.digest is None):
            yield Problem(STREAMS_TABLE, at, "it is complete without a count or a digest")
        closed = opened.complete and minibatch == opened.minibatch
        older = minibatch.generation == newest.generation and minibatch < opened.minibatch
        if row.state is PartitionState.PENDING and (closed or older):
            yield Problem(STREAMS_TABLE, at, "it is pending in a minibatch that is complete")
        yield from _numbers(rows, at, row, _serial_of(rows, parts[0], minibatch))


def _numbers(rows: LedgerRows, at: str, row: PartitionRow, serial: int | None) -> Iterator[Problem]:
    """A partition continues the numbers of `sequences`."""
    if serial is None or row.dropped:
        return
    pipeline, sink, _, _, partition = keys.split_key(at)
    sequence = rows.by_table[SEQUENCES_TABLE].get(f"{pipeline}/{sink}/{partition}")
    if sequence is None:
        if row.state is PartitionState.COMPLETE and row.osn:
            yield Problem(STREAMS_TABLE, at, "it is complete, but `sequences` has no row for it")
        return
    before = sequence.as_of(serial).osn
    if row.osn != before:
        yield Problem(
            STREAMS_TABLE, at, f"it continues from number {row.osn}, but `sequences` has {before}"
        )
    if row.state is PartitionState.COMPLETE and sequence.after.osn < row.osn + (row.count or 0):
        yield Problem(
            SEQUENCES_TABLE, f"{pipeline}/{sink}/{partition}", "it is behind its partition"
        )


def _sequences(rows: LedgerRows) -> Iterator[Problem]:
    """Output sequence numbers only grow, and none is transmitted before it was assigned."""
    for parts, row in rows.of(SEQUENCES_TABLE):
        at = "/".join(parts)
        standings = [*(standing for _, standing in row.before), row.after]
        if any(each.sent > each.osn for each in standings):
            yield Problem(SEQUENCES_TABLE, at, "a number was transmitted that was never assigned")
        if not ascending([each.osn for each in standings]):
            yield Problem(SEQUENCES_TABLE, at, "its output sequence numbers decrease")
        serials = [serial for serial, _ in row.before]
        opened = rows.by_table[OPEN_TABLE].get(parts[0])
        if not ascending(serials) or len(set(serials)) != len(serials):
            yield Problem(SEQUENCES_TABLE, at, "its minibatches are not in order")
        elif opened is not None and serials and serials[-1] > opened.reached()[1]:
            yield Problem(SEQUENCES_TABLE, at, "it was moved by a minibatch that was never opened")


def _spans(rows: LedgerRows) -> Iterator[Problem]:
    """The spans of a partition follow each other, name each event once, and only the last is not
    settled.
    """
    places: dict[str, list[Any]] = defaultdict(list)
    for parts, span in rows.of(EVENTS_TABLE):
        at = "/".join(parts)
        places["/".join(parts[:5])].append((at, span))
        if any(
            len(ids) != stop - start
            for (start, stop), ids in zip(span.chunks, span.ids, strict=True)
        ):
            yield Problem(EVENTS_TABLE, at, "a chunk does not have one id for each event")
        if span.osn[1] - span.osn[0] + 1 != span.stop - span.start:
            yield Problem(
                EVENTS_TABLE, at, "it does not have one output sequence number for each event"
            )
    for place, spans in places.items():
        stream = rows.by_table[STREAMS_TABLE].get(place)
        if stream is None:
            yield Problem(EVENTS_TABLE, spans[0][0], "its partition has no row in `streams`")
            continue
        end = 0
        for number, (at, span) in enumerate(sorted(spans, key=lambda each: each[1].number)):
            if span.start != end:
                yield Problem(
                    EVENTS_TABLE,
                    at,
                    f"it begins at {span.start}, but the span before it ends at {end}",
                )
            if span.osn[0] != stream.osn + span.start + 1:
                yield Problem(
                    EVENTS_TABLE,
                    at,
                    "its output sequence numbers differ from those of its partition",
                )
            if span.state is SpanState.INTENDED and number + 1 < len(spans):
                yield Problem(EVENTS_TABLE, at, "it is not settled, but a later span is recorded")
            end = span.stop


def _parked(rows: LedgerRows) -> Iterator[Problem]:
    """An event that blocks its entity has a head; one that is being sent has a slot."""
    sending = {
        slot.current: "/".join(parts)
        for parts, slot in rows.of(OWNERS_TABLE)
        if len(parts) == 4 and slot.current is not None
    }
    for parts, row in rows.of(PARKED_TABLE):
        at = "/".join(parts)
        opened = rows.by_table[OPEN_TABLE].get(parts[0])
        if opened is not None and row.minibatch.generation > opened.minibatch.generation:
            yield Problem(PARKED_TABLE, at, "its generation never began")
        if (
            row.blocks
            and not row.state.final
            and _head(parts[:2], row) not in rows.by_table[HEADS_TABLE]
        ):
            yield Problem(PARKED_TABLE, at, "it blocks its entity, but the entity has no head")
        if (row.state is ParkedState.SENDING) != (at in sending):
            yield Problem(PARKED_TABLE, at, "its state differs from the slot of its sink")
    for current, slot in sending.items():
        if current not in rows.by_table[PARKED_TABLE]:
            yield Problem(OWNERS_TABLE, slot, "it names a parked event that does not exist")


def _head(place: tuple[str, ...], row: Any) -> str:
    entity = [row.entity] if row.entity == row.scope else [row.entity, row.scope]
    return "/".join([*place, *map(keys.written_part, entity)])


def _heads(rows: LedgerRows) -> Iterator[Problem]:
    """A head does not count more waiting events than are parked. Version 0.1 also counts those
    that a person has resolved since.
    """
    behind: dict[str, int] = defaultdict(int)
    for parts, row in rows.of(PARKED_TABLE):
        behind[_head(parts[:2], row)] += 1
    for parts, head in rows.of(HEADS_TABLE):
        at = "/".join(parts)
        if head.waiting > behind[at]:
            what = f"it counts {head.waiting} waiting events, but {behind[at]} are parked"
            yield Problem(HEADS_TABLE, at, what)


def _journals(rows: LedgerRows) -> Iterator[Problem]:
    """Journal rows belong to minibatches that were opened, and their counters only grow."""
    chains: dict[str, list[tuple[str, journal.JournalRow]]] = defaultdict(list)
    for parts, entry in rows.of(journal.JOURNAL_TABLE):
        chains["/".join(parts[:3])].append(("/".join(parts), entry))
        opened = rows.by_table[OPEN_TABLE].get(parts[0])
        if opened is not None and entry.number > opened.reached()[1]:
            what = "its minibatch was never opened"
            yield Problem(journal.JOURNAL_TABLE, "/".join(parts), what)
    resets: dict[str, set[int]] = defaultdict(set)
    for parts, reset in rows.of(RESETS_TABLE):
        resets[parts[0]] |= {reset.serial} if reset.repeat else set()
    for place, chain in chains.items():
        forgotten = resets[place.partition("/")[0]]
        yield from _grows(sorted(chain, key=lambda each: each[1].number), forgotten)
    yield from _journaled(rows)


def _grows(chain: list[tuple[str, journal.JournalRow]], forgotten: set[int]) -> Iterator[Problem]:
    """Find an entity behind its earlier value; a reset forgets all of them as of its number."""
    reached: dict[str, int] = {}
    for at, entry in chain:
        if entry.full and not entry.state and entry.number in forgotten:
            reached = {}
        for name in [name for name, value in entry.state.items() if value is None]:
            reached.pop(name, None)  # it was removed, which semel does only after a reset
        counted = {name: value for name, each in entry.state.items() if (value := _count(each))}
        fallen = any(value < reached.get(name, 0) for name, value in counted.items())
        if fallen or (entry.full and reached.keys() - entry.state.keys()):
            yield Problem(journal.JOURNAL_TABLE, at, "an entity is behind its earlier value")
        reached |= counted


def _count(value: Any) -> int | None:
    """Return the number that an entity has reached, a counter or an increasing id; else None."""
    number = value[0] if isinstance(value, list) else value
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def _journaled(rows: LedgerRows) -> Iterator[Problem]:
    """The counters and remembered ids of a complete minibatch that is kept are in the journal."""
    for parts, row in rows.of(STREAMS_TABLE):
        opened = rows.by_table[OPEN_TABLE].get(parts[0])
        described = rows.by_table[PIPELINES_TABLE].get(parts[0])
        if opened is None or described is None or not row.count:
            continue
        kind = described["identity"].get("kind")
        minibatch = Minibatch(keys.key_number(parts[2]), keys.key_number(parts[3]))
        serial = _serial_of(rows, parts[0], minibatch)
        if row.state is not PartitionState.COMPLETE or serial is None or kind == "position":
            continue
        sink = keys.key_text(parts[1]) if keys.is_key_text(parts[1]) else None
        operator = journal.COUNTERS if kind == "counter" else journal.watermark_of(sink or "")
        place = f"{parts[0]}/{keys.written_part(operator.name)}/{parts[4]}/"
        forgotten = (
            place + keys.written_part(journal.FORGOTTEN) in rows.by_table[journal.JOURNAL_TABLE]
        )
        if sink is None or forgotten or serial < 1:
            continue
        if place + keys.written_part(serial) not in rows.by_table[journal.JOURNAL_TABLE]:
            yield Problem(
                STREAMS_TABLE, "/".join(parts), "it is complete, but is not in the journal"
            )


def _inboxes(rows: LedgerRows) -> Iterator[Problem]:
    """The kept groups of a partition have every offset from its begin to its end once, and the
    partitions of a stream have every hash once.
    """
    groups: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
    for parts, group in rows.of(INBOX_TABLE):
        groups["/".join(parts[:2])].append((keys.key_number(parts[2]), group.count, group.pruned))
    streams: dict[str, list[InboxEndRow]] = defaultdict(list)
    for parts, row in rows.of(INBOX_ENDS_TABLE):
        streams[parts[0]].append(row)
        reached = row.begin
        for end, count, pruned in sorted(groups.pop("/".join(parts), [])):
            if end <= row.begin:
                continue
            if end - count != reached or pruned:
                break
            reached = end
        if reached != row.end:
            what = f"events from offset {reached} to {row.end} are missing"
            yield Problem(INBOX_ENDS_TABLE, "/".join(parts), what)
    for stream, partitions in streams.items():
        if not same_hashes(partitions):
            yield Problem(INBOX_ENDS_TABLE, stream, "its partitions do not have every hash once")
    for at in groups:
        yield Problem(INBOX_TABLE, at, "its partition is not in inbox_ends")


def _markers(rows: LedgerRows) -> Iterator[Problem]:
    """The markers of a stream have consecutive numbers, and its own row names the newest."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for parts, _ in rows.of(MARKERS_TABLE):
        if len(parts) == 2:
            numbers[parts[0]].append(keys.key_number(parts[1]))
    heads = {parts[0]: row for parts, row in rows.of(MARKERS_TABLE) if len(parts) == 1}
    for stream in sorted(numbers.keys() | heads.keys()):
        newest = heads[stream].number if stream in heads else None
        if newest is None or newest != max(numbers[stream], default=0):
            yield Problem(MARKERS_TABLE, stream, "its newest marker is not the one that it names")
        kept = sorted(numbers[stream])
        if kept and kept[-1] - kept[0] + 1 != len(kept):
            yield Problem(MARKERS_TABLE, stream, "a marker between two others is missing")


_CHECKS = (
    _known_names,
    _owners,
    _streams,
    _sequences,
    _spans,
    _parked,
    _heads,
    _journals,
    _inboxes,
    _markers,
)
