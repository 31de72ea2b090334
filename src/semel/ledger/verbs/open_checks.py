"""Checks before a minibatch is opened: a request that does not follow the ledger is refused.

- Sinks and partitions: no sink with open partitions is removed, and the number of partitions fits.
- Positions, with position identity: after a lost checkpoint Spark must continue where the ledger
  stands. An offset that may hold an unhandled event is never skipped, unless a person accepts it.
- Topics: a topic that was deleted and recreated has the same name and new offsets, so the old
  watermarks would skip its events as delivered. Only its id differs; an unknown id is never taken
  for the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Diverged
from semel.events.encoding import ascii_json
from semel.ledger.keys import STREAMS_TABLE, make_prefix
from semel.ledger.rows import PartitionRow, minibatch_of
from semel.ledger.verbs.complete import read_sequences
from semel.ledger.verbs.parked import read_parked
from semel.ledger.verbs.runs import FINISHED, STAGE_OF
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import OpenRow, PendingReset
    from semel.ledger.verbs.complete import PositionMark, SequenceRow
    from semel.ledger.verbs.open import OpenRequest


def left_out(
    client: LedgerClient, described: Mapping[str, Any], before: OpenRow, request: OpenRequest
) -> None:
    """Refuse to remove a sink that has open partitions: they would be forgotten.

    Spark continues only after a minibatch was concluded, so only the newest one may not be; the
    last one of an older generation is concluded before the first one of the next is delivered.
    """
    known = described.get("sinks", {})
    for sink in sorted(set(known) - set(request.sinks)):
        for at, text in client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink)):
            row, minibatch = PartitionRow.load(text, at), minibatch_of(at)
            if row.state is PartitionState.PENDING:
                raise ConfigurationError(
                    f"pipeline {client.pipeline!r}: sink {sink!r} was removed, but its "
                    f"partition {row.partition} is half delivered. Start once with it, let the "
                    "minibatch complete, then remove it"
                )
            if row.placed is not None and _is_last(client, sink, known, before, request, minibatch):
                raise ConfigurationError(
                    f"pipeline {client.pipeline!r}: sink {sink!r} was removed, but minibatch "
                    f"{minibatch} may not have been concluded there: its manifest or load may be "
                    "missing. Start once with it, let the minibatch complete, then remove it"
                )
    for stage in sorted(set(known) - set(request.stages.values())):
        if STAGE_OF in known[stage]:
            _stage_left_out(client, stage, known, before, request)


def _stage_left_out(
    client: LedgerClient,
    stage: str,
    known: Mapping[str, Mapping[str, str]],
    before: OpenRow,
    request: OpenRequest,
) -> None:
    """Refuse to remove a second stage that did not get the newest minibatch yet."""
    sink = known[stage][STAGE_OF]
    for at, text in client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink)):
        minibatch = minibatch_of(at)
        if (
            PartitionRow.load(text, at).stage == stage
            and _is_last(client, sink, known, before, request, minibatch)
            and not read_parked(client, stage, minibatch=minibatch)
        ):
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}: the second stage {stage!r} was removed, but "
                f"minibatch {minibatch} was not handed to it. Start once with it, let the "
                "minibatch complete, then remove it"
            )


def _is_last(
    client: LedgerClient,
    sink: str,
    known: Iterable[str],
    before: OpenRow,
    request: OpenRequest,
    minibatch: Minibatch,
) -> bool:
    """Whether a complete minibatch may not have been concluded at a sink."""
    if minibatch.generation != before.minibatch.generation:
        return _begun(before) and not _passed(client, sink, known)
    newest = before.reached()[0]
    goes_on = request.query == before.query and request.batch == newest + 1
    return minibatch.batch >= newest and not goes_on


def _begun(before: OpenRow) -> bool:
    """Whether no minibatch of a generation is complete: the one before may still be open."""
    _, serial, complete = before.reached()
    return serial == before.first and not complete


def _passed(client: LedgerClient, sink: str, sinks: Iterable[str]) -> bool:
    """Whether another sink has completed a minibatch since a sink had its last one."""
    last = {
        name: max((serial for row in rows.values() for serial, _ in row.before), default=0)
        for name in sinks
        for rows in (read_sequences(client, name),)
    }
    return max(last.values()) > last[sink]


def rescaled(client: LedgerClient, described: Mapping[str, Any], request: OpenRequest) -> None:
    """Refuse a run that was paused while the pipeline was rescaled: it has the old number."""
    known = described.get("partitions")
    if None not in (known, request.partitions) and known != request.partitions:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} was rescaled to {known} partitions, and this run has "
            f"{request.partitions}. Nothing was sent; start the query again with {known}"
        )


def finished(client: LedgerClient, described: Mapping[str, Any]) -> None:
    """Refuse a finished batch job: it has no open minibatch any more."""
    if FINISHED in described:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} is a finished batch: it is only counted and compared. "
            "Deliver new events under another batch"
        )


def step(
    client: LedgerClient, before: OpenRow, request: OpenRequest, by: int, *, complete: bool
) -> None:
    """Refuse a batch that cannot follow the newest minibatch of the generation."""
    name = f"pipeline {client.pipeline!r}"
    if by == 1 and not complete:
        raise Diverged(
            f"{name}: Spark continues with batch {request.batch}, but the minibatch before it is "
            "not complete in the ledger: was the checkpoint used by a query without semel, or the "
            "ledger restored from a copy? Start with the checkpoint of this ledger"
        )
    if by < 1 and before.partitions != request.partitions:
        raise ConfigurationError(
            f"{name}: batch {request.batch} runs again, and it was delivered with "
            f"{before.partitions} partitions. Rescale back to {before.partitions}, let it "
            f"complete, then rescale to {request.partitions} and start again"
        )


def partly_joined(
    client: LedgerClient, before: OpenRow, request: OpenRequest, sink: str
) -> Diverged:
    """Return the error for an added sink that would never get the rest of its first minibatch."""
    return Diverged(
        f"pipeline {client.pipeline!r}: Spark continues with batch {request.batch}, but sink "
        f"{sink!r} has only a part of minibatch {before.minibatch}, at which it was added. Nothing "
        "was sent. Start with the copy of the checkpoint that runs batch "
        f"{before.minibatch.batch} again"
    )


def passed_by(client: LedgerClient, before: OpenRow, request: OpenRequest, sink: str) -> Diverged:
    """Say that a sink that was added would never get the minibatch after the one it joined at."""
    newest = before.reached()[0]
    return Diverged(
        f"pipeline {client.pipeline!r}: Spark goes on to batch {request.batch}, but sink {sink!r} "
        f"was added at minibatch {before.minibatch} and has nothing of batch {newest}. Nothing was "
        f"sent. Start with the copy of the checkpoint that runs batch {newest} again, or without "
        "the sink"
    )


def lost_checkpoint(
    client: LedgerClient, before: OpenRow, request: OpenRequest
) -> ConfigurationError:
    """Return the error for counted ids, which do not survive a lost checkpoint."""
    return ConfigurationError(
        f"pipeline {client.pipeline!r}: the checkpoint was lost or replaced (batch "
        f"{request.batch} does not follow {before.minibatch.batch}), and ids that semel "
        "counts do not survive that. Restore the checkpoint, or start under a new name with input "
        "that begins after the delivered events"
    )


def refuse_other_start(
    client: LedgerClient, before: OpenRow, reset: PendingReset, request: OpenRequest
) -> None:
    """Refuse, after a reset, the checkpoint from before it, and a query that begins elsewhere.

    Raises `ConfigurationError`. Where Spark began is not known for every source.
    """
    name = f"pipeline {client.pipeline!r} was reset (`semel ledger ls resets`)"
    if request.query == before.query:
        raise ConfigurationError(
            f"{name}, and the query continues the checkpoint from before the reset. Nothing was "
            "sent. Stop the query, move its checkpoint aside, and start it again at the new "
            "positions"
        )
    if request.starts is None:
        return
    other = {at: request.starts.get(at) for at in reset.starts}
    if other != reset.starts:
        wrong = ", ".join(
            f"{at} begins at {other[at]} and not at {offset}"
            for at, offset in sorted(reset.starts.items())
            if other[at] != offset
        )
        where = starting_offsets(reset.starts, {*reset.starts, *request.starts})
        raise ConfigurationError(
            f"{name}, and the query begins elsewhere: {wrong}. Nothing was sent. Start it again "
            f"with .option('startingOffsets', '{where}'); its checkpoint, which has begun in the "
            "wrong place, is moved aside then, or has to be, on another file system"
        )


def next_offset(mark: PositionMark) -> int | None:
    """Return the first offset that may not be handled as a whole; None if nothing is known."""
    if mark.upto is None:
        known = [each for each in (mark.begins,) if each is not None]
        known += [mark.above.min()] if mark.above else []
        if not known:
            return None
        least = min(_offset(each) for each in known)
    elif isinstance(mark.upto, tuple):
        # Folded in the middle of a minibatch, it may be between two events of one offset.
        return _offset(mark.upto) + (mark.digest is not None)
    else:
        least = _offset(mark.upto) + 1
    above = {each for each in mark.above if not isinstance(each, tuple)}
    while least in above:
        least += 1
    return least


def positions(sequences: Iterable[Mapping[str, SequenceRow]]) -> dict[str, int]:
    """Return where each source partition must continue, so that no sink misses an event."""
    found: dict[str, int] = {}
    for sink in sequences:
        for partition, row in sink.items():
            at = None if row.after.mark is None else next_offset(row.after.mark)
            if at is not None:
                found[partition] = min(at, found.get(partition, at))
    return found


def refuse_unknown(pipeline: str, request: OpenRequest) -> None:
    """Refuse a used checkpoint if the ledger does not know the pipeline: was the ledger lost?"""
    if request.batch > 0 and not request.accept_gap:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the checkpoint is at batch {request.batch}, and the ledger "
            "does not know this pipeline. Was the ledger lost, or is it another one (by default "
            "it has the checkpoint's name)? Then pass the right one. If the query has run without "
            "semel until now, pass accept_gap=True: what was delivered of this batch is not known"
        )


def compare_positions(
    client: LedgerClient,
    standing: Mapping[str, Mapping[str, SequenceRow]],
    request: OpenRequest,
    *,
    accepted: bool,
) -> bool:
    """Compare where Spark begins with where the ledger stands, for all sinks of the request, unless
    a person `accepted` that it begins later.

    Returns False if the tasks have to compare: Spark's start is not known, or a partition will have
    its first watermark only when it is closed. Raises `Diverged`.
    """
    if request.starts is None:
        return False
    known = positions(standing.values())
    if not accepted:
        _refuse(client.pipeline, known, request.starts)
    return not any(
        PartitionRow.load(text, at).partition not in known
        for sink in request.sinks
        for at, text in client.scan(STREAMS_TABLE, make_prefix(client.pipeline, sink))
    )


def _refuse(pipeline: str, known: Mapping[str, int], starts: Mapping[str, int]) -> None:
    """Raise `Diverged` if Spark begins later than the ledger stands, or skips a partition."""
    late = [
        f"{name} begins at offset {starts[name]} and the ledger continues at {at} "
        f"({starts[name] - at} offsets are skipped)"
        for name, at in sorted(known.items())
        if name in starts and starts[name] > at
    ]
    late += [
        f"{name}, which the ledger continues at {at}, is not read at all"
        for name, at in sorted(known.items())
        if name not in starts
    ]
    if late:
        raise Diverged(
            f"pipeline {pipeline!r}: the checkpoint was lost, and events would be skipped: "
            f"{'; '.join(late)}. Nothing was sent. Start with .option('startingOffsets', "
            f"'{starting_offsets(known, starts)}'), or pass accept_gap=True to continue without "
            "them"
        )


def starting_offsets(known: Mapping[str, int], names: Iterable[str]) -> str:
    """Return the ledger's positions as Spark's `startingOffsets`; unknown partitions from the
    earliest offset (-2). Spark needs all partitions of its topics and no others.
    """
    topics: dict[str, dict[str, int]] = {}
    for name in sorted(names):
        topic, _, number = name.rpartition("/")
        topics.setdefault(topic, {})[number] = known.get(name, -2)
    return ascii_json(topics)


def _offset(event: EventID) -> int:
    """Return the offset in a position: the id itself, or the first of its parts."""
    return int(event[0] if isinstance(event, tuple) else event)


@dataclass(frozen=True, slots=True)
class Sources:
    """The topics that Spark reads, as Kafka describes them.

    Attributes:
        ids: the id of each topic.
        why: the reason, if the ids of some topics are not known.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    why: str = "no broker could be asked"


UNKNOWN_SOURCES = Sources()


def compare_topics(
    pipeline: str, known: Mapping[str, str], request: OpenRequest, *, lost: bool
) -> dict[str, str]:
    """Return the ids of all topics that were ever read; `lost` is whether a checkpoint was lost.

    Raises `Diverged` if a topic was recreated, and, if only its id could show that, if its id was
    known and is not any more.
    """
    sources = request.sources
    for topic, before in known.items():
        now = sources.ids.get(topic, before)
        if now != before:
            raise Diverged(
                f"pipeline {pipeline!r}: topic {topic!r} was recreated. Its id is {now}, events "
                f"were delivered from the one with the id {before}, and offsets of a new topic "
                "begin at 0, so its events would be skipped as delivered. Nothing was sent. Start "
                "under a new name"
            )
    read = known if request.starts is None else {name.rpartition("/")[0] for name in request.starts}
    unknown = [topic for topic in sorted(known) if topic in read and topic not in sources.ids]
    if lost and unknown and not request.accept_gap:
        raise Diverged(
            f"pipeline {pipeline!r}: the checkpoint was lost, and semel cannot check whether topic "
            f"{unknown[0]!r} is still the one with the id {known[unknown[0]]} that was delivered "
            f"from: {sources.why}. If it was recreated, its events would be skipped as delivered. "
            "Nothing was sent. Fix that, or check the topic yourself and pass accept_gap=True to "
            "continue without comparing"
        )
    return {**known, **sources.ids}
