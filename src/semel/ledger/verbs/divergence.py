"""What a person says of a divergence, and what follows from it when the minibatch is opened again.

Always true:
- a judgement is a new version of `open`, so no attempt from before it can write any more;
- the open that acts on it takes it away and does everything that follows in that one commit;
- no output sequence number is given twice: what is dropped is numbered past.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import EntityIds
from semel.ledger.journal import COUNTERS, number_in, watermark_of
from semel.ledger.journal import TABLE as JOURNAL
from semel.ledger.keys import EVENTS, OPEN, STREAMS, key, prefix
from semel.ledger.rows import Judged, OpenRow, PartitionRow, SpanRow
from semel.ledger.store.commit import Conflict, Delete, Equals, Key, Put, Sweep
from semel.ledger.verbs import runs
from semel.ledger.verbs.parked import ANEW, read_parked
from semel.ledger.verbs.runs import PIPELINES
from semel.ledger.verbs.sequences import Mark, Standing, advance, read_sequences
from semel.protocol import Judgement, ParkedState, PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events.event import Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import ParkedRow
    from semel.ledger.store.commit import Requirement, Update


def judge(
    client: LedgerClient, minibatch: Minibatch, decision: Judgement, by: str, reason: str
) -> None:
    """Record what a person says of a minibatch; the next open of its Spark batch acts on it.

    - as recorded: what was delivered stands and is skipped, the replay's other events are
      delivered, what is in doubt is parked; as after a lost checkpoint.
    - as replayed: what is recorded of it is dropped, and all that the replay gives is delivered.
    - counted ids, complete, as recorded: nothing is run again, and nothing is compared.

    May be repeated. Raises `ConfigurationError` when it cannot be judged, or not so.
    """
    pipeline_key, open_key = key(PIPELINES, client.pipeline), key(OPEN, client.pipeline)
    while True:
        rows = client.read(pipeline_key, open_key)
        text = rows.get(open_key)
        if pipeline_key not in rows or text is None:
            raise ConfigurationError(
                f"pipeline {client.pipeline!r} is not in this ledger, or has no minibatch yet: "
                "`semel status` names those that have"
            )
        row = OpenRow.load(text, open_key)
        described = runs.described(rows[pipeline_key], pipeline_key)
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
    """Say why a minibatch cannot be judged, or not so."""
    name = f"pipeline {client.pipeline!r}"
    if row.minibatch != minibatch:
        raise ConfigurationError(
            f"{name}: minibatch {minibatch} is not the one it stands at, which is {row.minibatch}. "
            "Judge the one that `Diverged` names when the query stops with it, and no other"
        )
    if decision is Judgement.AS_REPLAYED and row.newest is not None:
        raise ConfigurationError(
            f"{name}: the minibatch after {minibatch} was delivered already, so it cannot be "
            "delivered anew as replayed. Say as-recorded, or restore the newer checkpoint"
        )
    counted = (described.get("identity") or {}).get("kind") == "counter"
    if (
        decision is Judgement.AS_RECORDED
        and counted
        and not _complete(client, row, described["sinks"])
    ):
        raise ConfigurationError(
            f"{name}: minibatch {minibatch} is half delivered under ids that semel counted, and "
            "the replay counts other events under them: what was delivered cannot be told from "
            "what was not. Say as-replayed, which delivers all of it anew, or start under a new "
            "name"
        )


def is_replayed_next(client: LedgerClient) -> bool:
    """Whether a person said that the open minibatch is delivered as replayed, and nothing followed
    from it yet: what is parked of it is about to be discarded, so none of it may be sent.
    """
    open_key = key(OPEN, client.pipeline)
    text = client.read_one(open_key)
    judged = None if text is None else OpenRow.load(text, open_key).judged
    return judged is not None and judged.decision is Judgement.AS_REPLAYED


@dataclass(frozen=True, slots=True)
class JudgementEffects:
    """What follows from a judgement: a generation of its own or none, and what goes into the same
    commit as the row that is opened.
    """

    new_generation: bool = False
    requirements: list[Requirement] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)


def follow(
    client: LedgerClient, row: OpenRow, sinks: Iterable[str], *, survives: bool
) -> JudgementEffects:
    """Say what follows from the judgement that stands in `open`, now that its batch comes again;
    `survives` tells whether what was delivered is known by its ids.
    """
    if row.judged is None:
        raise AssertionError("nobody judged it")
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
        for at, text in client.scan(STREAMS, _of(client, row, sink))
    )


def _of(client: LedgerClient, row: OpenRow, sink: str) -> str:
    return prefix(client.pipeline, sink, row.minibatch.generation, row.minibatch.batch)


def _spans(client: LedgerClient, row_key: Key) -> list[SpanRow]:
    return [SpanRow.load(text, at) for at, text in client.scan(EVENTS, row_key.key + "/")]


def _narrow(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """By position, a complete minibatch has handled all up to its last event. A replay may have
    others in between: where spans are recorded, what they name is handled, and nothing else.
    """
    known = read_sequences(client, sink)
    for row_key, text in client.scan(STREAMS, _of(client, row, sink)):
        stream = PartitionRow.load(text, row_key)
        sequence = known.get(stream.partition)
        spans = _spans(client, row_key)
        if sequence is None or sequence.after.mark is None or not spans:
            continue
        if stream.state is PartitionState.COMPLETE:
            ids = EntityIds.union(ids for span in spans for ids in span.ids)
            mark = sequence.as_of(row.serial).mark or Mark(generation=row.minibatch.generation)
            mark = replace(mark, above=mark.above | ids.get(stream.partition))
            after = Standing(sequence.after.osn, sequence.after.sent, mark)
            into.updates.append(advance(client, sink, sequence, row.serial, after))


def _drop(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """Drop what one sink has of the minibatch: its rows, its watermarks, what is parked of it.

    A partition that is pending keeps its row, marked: its destination has to be fenced and asked
    for its last number before anything of the new generation goes there.
    """
    start = _of(client, row, sink)
    for row_key, text in client.scan(STREAMS, start):
        stream = PartitionRow.load(text, row_key)
        if stream.state is PartitionState.COMPLETE:
            into.updates.append(Delete(row_key))
            continue
        given = [span.osn[1] for span in _spans(client, row_key)]
        marked = replace(stream, dropped=True, osn=max([stream.osn, *given]))
        into.requirements.append(Equals(row_key, text))
        into.updates.append(Put(row_key, marked.dump()))
    into.updates.append(Sweep(EVENTS, start))
    for known in read_sequences(client, sink).values():
        standing = known.as_of(row.serial)
        if standing != known.after:
            back = Standing(known.after.osn, known.after.sent, standing.mark)
            into.updates.append(advance(client, sink, known, row.serial, back))
    _rewind(client, row, watermark_of(sink).name, into)
    _discard(client, row, sink, into)


def _rewind(client: LedgerClient, row: OpenRow, operator: str, into: JudgementEffects) -> None:
    """Take away what the minibatch wrote into the journal."""
    for at, _ in client.scan(JOURNAL, prefix(client.pipeline, operator)):
        if number_in(at) == row.serial:
            into.updates.append(Delete(Key(JOURNAL, at.key)))


def comes_anew(parked: ParkedRow) -> bool:
    """Whether a parked event was discarded because its minibatch is delivered as replayed."""
    return parked.state is ParkedState.DISCARDED and (parked.reason or "").startswith(ANEW)


def _discard(client: LedgerClient, row: OpenRow, sink: str, into: JudgementEffects) -> None:
    """Discard what is parked of the minibatch: it comes anew, also what was discarded or skipped
    before. What is just being sent is left.
    """
    judged = row.judged
    for at, parked, text in read_parked(client, sink, minibatch=row.minibatch):
        over = parked.state in (ParkedState.DISCARDED, ParkedState.SKIPPED)
        if judged is None or parked.state is ParkedState.SENDING:
            continue
        if parked.state.final and (not over or comes_anew(parked)):
            continue
        why = f"{ANEW}{judged.reason}"
        gone = replace(parked, state=ParkedState.DISCARDED, by=judged.by, reason=why, blocks=False)
        into.requirements.append(Equals(at, text))
        into.updates.append(Put(at, gone.dump()))
