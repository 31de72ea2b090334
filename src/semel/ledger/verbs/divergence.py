"""A person's judgement of a divergence, and its effects when the minibatch is opened again.

Always true:
- a judgement is a new version of `open`, so no attempt from before it can write any more;
- the open that acts on it removes it and applies all its effects, in one commit;
- no output sequence number is used twice: those of dropped events are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import EntityIds
from semel.ledger.journal import COUNTERS, number_in, watermark_of
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import EVENTS_TABLE, PIPELINES_TABLE, STREAMS_TABLE, make_key, make_prefix
from semel.ledger.rows import Judged, OpenRow, PartitionRow, SpanRow, read_description
from semel.ledger.store.commit import Conflict, Delete, Equals, Key, Put, Sweep
from semel.ledger.verbs.complete import PositionMark, Standing, advance_sequence, read_sequences
from semel.ledger.verbs.parked import AS_REPLAYED_MARK, read_parked
from semel.protocol import Judgement, ParkedState, PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events import Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import ParkedRow
    from semel.ledger.store.commit import Requirement, Update


def judge_minibatch(
    client: LedgerClient, minibatch: Minibatch, decision: Judgement, by: str, reason: str
) -> None:
    """Record a person's judgement of a minibatch; the next open of its Spark batch acts on it.

    - as recorded: delivered events stay delivered and are skipped, the replay's other events are
      delivered, events in doubt are parked; as after a lost checkpoint.
    - as replayed: its records are dropped, and all events of the replay are delivered.
    - as recorded, of a complete minibatch with counted ids: nothing runs again, and nothing is
      compared.

    May be repeated. Raises `ConfigurationError` if this judgement is not possible.
    """
    pipeline_key, open_key = (
        make_key(PIPELINES_TABLE, client.pipeline),
        client.open_key,
    )
    while True:
        rows = client.read(pipeline_key, open_key)
        text = rows.get(open_key)
        if pipeline_key not in rows or text is None:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r} is not in this ledger, or has no minibatch yet; "
                "`semel status` lists the pipelines"
            )
        row = OpenRow.load(text, open_key)
        described = read_description(rows[pipeline_key], pipeline_key)
        _refuse(client, row, minibatch, decision, described)
        before = row.judged
        judged = Judged(decision, by, reason, client.clock.wall())
        if before is not None and replace(before, at=judged.at) == judged:
            return
        done = replace(row, judged=judged, version=row.version + 1)
        try:
            client.commit([Equals(open_key, text)], [Put(open_key, done.dump())])
        except Conflict:
            continue
        return


def _refuse(
    client: LedgerClient,
    row: OpenRow,
    minibatch: Minibatch,
    decision: Judgement,
    described: Mapping[str, Any],
) -> None:
    """Raise `ConfigurationError` if a minibatch cannot be judged like this."""
    name = f"pipeline {client.pipeline!r}"
    if row.minibatch != minibatch:
        raise ConfigurationError(
            f"{name}: minibatch {minibatch} is not the current one, which is {row.minibatch}. "
            "Judge only the minibatch that the error `Diverged` names"
        )
    if decision is Judgement.AS_REPLAYED and row.newest is not None:
        raise ConfigurationError(
            f"{name}: the minibatch after {minibatch} was delivered already, so it cannot be "
            "delivered again as replayed. Use as-recorded, or restore the newer checkpoint"
        )
    counted = (described.get("identity") or {}).get("kind") == "counter"
    if (
        decision is Judgement.AS_RECORDED
        and counted
        and not _complete(client, row, described["sinks"])
    ):
        raise ConfigurationError(
            f"{name}: minibatch {minibatch} is half delivered under ids that semel counted, and "
            "the replay counts other events under them: which events were delivered is not known. "
            "Use as-replayed, which delivers all of it again, or start under a new name"
        )


def is_replayed_next(client: LedgerClient) -> bool:
    """Whether the open minibatch is judged as replayed, and not opened again yet: its parked events
    are about to be discarded, so none of them may be sent.
    """
    open_key = client.open_key
    text = client.read_one(open_key)
    judged = None if text is None else OpenRow.load(text, open_key).judged
    return judged is not None and judged.decision is Judgement.AS_REPLAYED


@dataclass(frozen=True, slots=True)
class JudgementEffects:
    """The effects of a judgement: whether it begins a generation, and what goes into the same
    commit as the row that is opened.
    """

    new_generation: bool = False
    requirements: list[Requirement] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


def follow(
    client: LedgerClient, row: OpenRow, sinks: Iterable[str], *, survives: bool
) -> JudgementEffects:
    """Return the effects of the judgement in `open`, now that its batch runs again; `survives` is
    whether delivered events are known by their ids.
    """
    if row.judged is None:
        raise AssertionError("the minibatch has no judgement")
    if row.judged.decision is Judgement.AS_REPLAYED:
        dropped = JudgementEffects(new_generation=True)
        for sink in sinks:
            _drop(client, row, sink, dropped)
        _rewind(client, row, COUNTERS.name, dropped)
        return dropped
    if survives:
        narrowed = JudgementEffects(new_generation=True)
        for sink in () if row.newest is not None else sinks:
            _narrow(client, row, sink, narrowed)
        return narrowed
    return JudgementEffects(new_generation=not _complete(client, row, sinks))


def _complete(client: LedgerClient, row: OpenRow, sinks: Iterable[str]) -> bool:
    """Whether a minibatch is complete at every sink, also one that was added since."""
    return (row.complete or row.again) and not any(
        PartitionRow.load(text, at).state is PartitionState.PENDING
        for sink in sinks
        for at, text in client.scan(STREAMS_TABLE, _of(client, row, sink))
    )


def _of(client: LedgerClient, row: OpenRow, sink: str) -> str:
    return make_prefix(client.pipeline, sink, row.minibatch.generation, row.minibatch.batch)


def _spans(client: LedgerClient, row_key: Key) -> list[SpanRow]:
    return [SpanRow.load(text, at) for at, text in client.scan(EVENTS_TABLE, row_key.key + "/")]


def _narrow(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """By position, a complete minibatch has handled everything up to its last event. A replay may
    have other events in between: if spans are recorded, only the events that they name are handled.
    """
    known = read_sequences(client, sink)
    for row_key, text in client.scan(STREAMS_TABLE, _of(client, row, sink)):
        stream = PartitionRow.load(text, row_key)
        sequence = known.get(stream.partition)
        spans = _spans(client, row_key)
        if sequence is None or sequence.after.mark is None or not spans:
            continue
        if stream.state is PartitionState.COMPLETE:
            ids = EntityIds.union(ids for span in spans for ids in span.ids)
            mark = sequence.as_of(row.serial).mark or PositionMark(
                generation=row.minibatch.generation
            )
            mark = replace(mark, above=mark.above | ids.get(stream.partition))
            after = Standing(sequence.after.osn, sequence.after.sent, mark)
            into.updates.append(advance_sequence(client, sink, sequence, row.serial, after))


def _drop(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """Drop the records of the minibatch at one sink: its rows, watermarks and parked events.

    A pending partition keeps its row, marked: its destination has to be fenced and asked for its
    last number before anything of the new generation is sent there.
    """
    start = _of(client, row, sink)
    for row_key, text in client.scan(STREAMS_TABLE, start):
        stream = PartitionRow.load(text, row_key)
        if stream.state is PartitionState.COMPLETE:
            into.updates.append(Delete(row_key))
            continue
        given = [span.osn[1] for span in _spans(client, row_key)]
        marked = replace(stream, dropped=True, osn=max([stream.osn, *given]))
        into.requirements.append(Equals(row_key, text))
        into.updates.append(Put(row_key, marked.dump()))
    into.updates.append(Sweep(EVENTS_TABLE, start))
    for known in read_sequences(client, sink).values():
        standing = known.as_of(row.serial)
        if standing != known.after:
            back = Standing(known.after.osn, known.after.sent, standing.mark)
            into.updates.append(advance_sequence(client, sink, known, row.serial, back))
    _rewind(client, row, watermark_of(sink).name, into)
    _discard(client, row, sink, into)


def _rewind(client: LedgerClient, row: OpenRow, operator: str, into: JudgementEffects) -> None:
    """Remove the journal rows of the minibatch."""
    for at, _ in client.scan(JOURNAL, make_prefix(client.pipeline, operator)):
        if number_in(at) == row.serial:
            into.updates.append(Delete(Key(JOURNAL, at.key)))


def comes_anew(parked: ParkedRow) -> bool:
    """Whether a parked event was discarded because its minibatch is delivered as replayed."""
    return parked.state is ParkedState.DISCARDED and (parked.reason or "").startswith(
        AS_REPLAYED_MARK
    )


def _discard(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """Discard the parked events of the minibatch, which are delivered again, also those that were
    discarded or skipped before. An event that is being sent is left alone.
    """
    judged = row.judged
    for at, parked, text in read_parked(client, sink, minibatch=row.minibatch):
        over = parked.state in (ParkedState.DISCARDED, ParkedState.SKIPPED)
        if judged is None or parked.state is ParkedState.SENDING:
            continue
        if parked.state.final and (not over or comes_anew(parked)):
            continue
        why = f"{AS_REPLAYED_MARK}{judged.reason}"
        gone = replace(parked, state=ParkedState.DISCARDED, by=judged.by, reason=why, blocks=False)
        into.requirements.append(Equals(at, text))
        into.updates.append(Put(at, gone.dump()))
