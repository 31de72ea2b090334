"""Why a minibatch cannot be opened: what a driver asks for does not follow what the ledger has.

Whether a generation that begins after a lost checkpoint goes on where the ledger stands.

Only identity by position can tell: what the source offers is numbered. Always true: an offset that
may hold an event which was not handled is never left out, unless somebody says so.

Whether the topics that are read are still those that were delivered from.

A topic that was deleted and made anew has its name and begins its offsets anew, so the watermarks
of the old one would skip its events as delivered; its id is another. Always true: an id that is not
known is never taken for the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, Diverged
from semel.ledger.keys import STREAMS, key, prefix
from semel.ledger.rows import PartitionRow
from semel.ledger.verbs.parked import read_parked
from semel.ledger.verbs.recent import minibatch_of
from semel.ledger.verbs.runs import FINISHED, PIPELINES, STAGE_OF, described
from semel.ledger.verbs.sequences import read_sequences
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events.event import EventID, Minibatch
    from semel.ledger.client import LedgerClient
    from semel.ledger.rows import OpenRow
    from semel.ledger.verbs.open import OpenRequest
    from semel.ledger.verbs.sequences import Mark, SequenceRow


def left_out(
    client: LedgerClient, recorded: str | None, before: OpenRow, request: OpenRequest
) -> None:
    """A sink that is left out with something open would be forgotten: finish it first.

    Spark goes on only when a minibatch was concluded, so only the newest one may not be; that of
    an older generation is concluded before the first one of the next is delivered.
    """
    at = key(PIPELINES, client.pipeline)
    known = {} if recorded is None else described(recorded, at).get("sinks", {})
    for sink in sorted(set(known) - set(request.sinks)):
        for at, text in client.scan(STREAMS, prefix(client.pipeline, sink)):
            row, minibatch = PartitionRow.load(text, at), minibatch_of(at)
            if row.state is PartitionState.PENDING:
                raise ConfigurationError(
                    f"pipeline {client.pipeline!r}: sink {sink!r} is left out, but its "
                    f"partition {row.partition} is half delivered. Start once with it, let the "
                    "minibatch come to its end, then leave it out"
                )
            if row.placed is not None and _is_last(client, sink, known, before, request, minibatch):
                raise ConfigurationError(
                    f"pipeline {client.pipeline!r}: sink {sink!r} is left out, but minibatch "
                    f"{minibatch} may not have been concluded there: its manifest or load may be "
                    "missing. Start once with it, let the minibatch come to its end, then leave "
                    "it out"
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
    """Refuse to leave a second stage out that was not handed the newest minibatch yet."""
    sink = known[stage][STAGE_OF]
    for at, text in client.scan(STREAMS, prefix(client.pipeline, sink)):
        minibatch = minibatch_of(at)
        if (
            PartitionRow.load(text, at).stage == stage
            and _is_last(client, sink, known, before, request, minibatch)
            and not read_parked(client, stage, minibatch=minibatch)
        ):
            raise ConfigurationError(
                f"pipeline {client.pipeline!r}: the second stage {stage!r} is left out, but "
                f"minibatch {minibatch} was not handed to it. Start once with it, let the "
                "minibatch come to its end, then leave it out"
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
    """Whether nothing of a generation is complete: what the one before left may still be open."""
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


def rescaled(client: LedgerClient, text: str | None, request: OpenRequest) -> None:
    """A run that was silent while the pipeline was rescaled would go on with the old number."""
    recorded = {} if text is None else described(text, key(PIPELINES, client.pipeline))
    known = recorded.get("partitions")
    if None not in (known, request.partitions) and known != request.partitions:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} was rescaled to {known} partitions, and this run has "
            f"{request.partitions}. Nothing was sent; start the query again, with {known}"
        )


def finished(client: LedgerClient, text: str | None) -> None:
    """Nothing is open because it is finished, not because nothing ever was."""
    if text is not None and FINISHED in described(text, key(PIPELINES, client.pipeline)):
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} is a batch that is finished: it is only "
            "counted and compared. Deliver what is new under another batch"
        )


def step(
    client: LedgerClient, before: OpenRow, request: OpenRequest, by: int, *, complete: bool
) -> None:
    """Refuse what cannot follow the newest minibatch of the generation."""
    name = f"pipeline {client.pipeline!r}"
    if by == 1 and not complete:
        raise Diverged(
            f"{name}: Spark goes on to batch {request.batch}, but the minibatch before it is not "
            "complete in the ledger: was the checkpoint used by a query without semel, or the "
            "ledger restored from a copy? Start with the checkpoint of this ledger"
        )
    if by < 1 and before.partitions != request.partitions:
        raise ConfigurationError(
            f"{name}: batch {request.batch} comes again, and it was delivered with "
            f"{before.partitions} partitions. Rescale back to {before.partitions}, let it come to "
            f"its end, then rescale to {request.partitions} and start again"
        )


def partly_joined(
    client: LedgerClient, before: OpenRow, request: OpenRequest, sink: str
) -> Diverged:
    """Say that a sink that was added would never get the rest of the minibatch it joined at."""
    return Diverged(
        f"pipeline {client.pipeline!r}: Spark goes on to batch {request.batch}, but sink {sink!r} "
        f"has only a part of minibatch {before.minibatch}, at which it was added. Nothing was "
        f"sent. Start with the copy of the checkpoint that runs batch {before.minibatch.batch} "
        "again"
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
    """Say that ids which were counted do not survive this."""
    return ConfigurationError(
        f"pipeline {client.pipeline!r}: the checkpoint was lost or replaced (batch "
        f"{request.batch} does not follow {before.minibatch.batch}), and ids that semel "
        "counted cannot be told from the ones delivered before. Restore the checkpoint, or "
        "start under a new name with input that begins after what was delivered"
    )


def next_offset(mark: Mark) -> int | None:
    """Give the first offset that is not surely handled as a whole; None where nothing is known."""
    if mark.upto is None:
        known = [each for each in (mark.begins,) if each is not None]
        known += [mark.above.min()] if mark.above else []
        if not known:
            return None
        least = min(_offset(each) for each in known)
    elif isinstance(mark.upto, tuple):
        # Folded in the middle of a minibatch, it may stand between two events of one offset.
        return _offset(mark.upto) + (mark.digest is not None)
    else:
        least = _offset(mark.upto) + 1
    above = {each for each in mark.above if not isinstance(each, tuple)}
    while least in above:
        least += 1
    return least


def positions(sequences: Iterable[Mapping[str, SequenceRow]]) -> dict[str, int]:
    """Give where each source partition has to go on, so that no sink misses anything."""
    found: dict[str, int] = {}
    for sink in sequences:
        for partition, row in sink.items():
            at = None if row.after.mark is None else next_offset(row.after.mark)
            if at is not None:
                found[partition] = min(at, found.get(partition, at))
    return found


def refuse_unknown(pipeline: str, request: OpenRequest) -> None:
    """Refuse a checkpoint that has gone on where the ledger knows nothing: was the ledger lost?"""
    if request.batch > 0 and not request.accept_gap:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the checkpoint is at batch {request.batch}, and the ledger "
            "knows nothing of this pipeline. Was the ledger lost, or is it another one (by default "
            "it carries the checkpoint's name)? Then give the right one. If the query has run "
            "without semel until now, pass accept_gap=True: what was delivered of this batch is "
            "not known"
        )


def compare_positions(
    client: LedgerClient, standing: Mapping[str, Mapping[str, SequenceRow]], request: OpenRequest
) -> bool:
    """Compare where Spark begins with where the ledger stands, for all sinks of the request.

    False leaves it to the tasks: Spark's start is not known, or a partition will have its first
    watermark only when it is closed. Raises `Diverged`.
    """
    if request.starts is None:
        return False
    known = positions(standing.values())
    if not request.accept_gap:
        _refuse(client.pipeline, known, request.starts)
    return not any(
        PartitionRow.load(text, at).partition not in known
        for sink in request.sinks
        for at, text in client.scan(STREAMS, prefix(client.pipeline, sink))
    )


def _refuse(pipeline: str, known: Mapping[str, int], starts: Mapping[str, int]) -> None:
    """Raise `Diverged` when Spark begins later than the ledger stands, or not at all."""
    late = [
        f"{name} begins at offset {starts[name]} and the ledger goes on at {at} "
        f"({starts[name] - at} offsets are left out)"
        for name, at in sorted(known.items())
        if name in starts and starts[name] > at
    ]
    late += [
        f"{name}, which the ledger goes on with at {at}, is not read at all"
        for name, at in sorted(known.items())
        if name not in starts
    ]
    if late:
        raise Diverged(
            f"pipeline {pipeline!r}: the checkpoint was lost, and events would be left out: "
            f"{'; '.join(late)}. Nothing was sent. Start with .option('startingOffsets', "
            f"'{starting_offsets(known, starts)}'), or say accept_gap=True to go on without them"
        )


def starting_offsets(known: Mapping[str, int], names: Iterable[str]) -> str:
    """Give the ledger's positions as Spark's `startingOffsets`; what it does not know, from the
    earliest (-2). Spark wants all partitions of its topics and no others.
    """
    topics: dict[str, dict[str, int]] = {}
    for name in sorted(names):
        topic, _, number = name.rpartition("/")
        topics.setdefault(topic, {})[number] = known.get(name, -2)
    return json.dumps(topics)


def _offset(event: EventID) -> int:
    """The offset in a position: the id itself, or the first of its parts."""
    return int(event[0] if isinstance(event, tuple) else event)


@dataclass(frozen=True, slots=True)
class Sources:
    """What Kafka says of the topics that Spark reads.

    Attributes:
        ids: the id of each topic.
        why: why there are topics whose id is not known.
    """

    ids: Mapping[str, str] = field(default_factory=dict)
    why: str = "nobody could be asked"


UNKNOWN = Sources()


def compare_topics(
    pipeline: str, known: Mapping[str, str], request: OpenRequest, *, lost: bool
) -> dict[str, str]:
    """Give the ids of all topics that were ever read; `lost` says that a checkpoint was.

    Raises `Diverged` when a topic was made anew, and, where only its id could show that, when its
    id was known and is not any more.
    """
    told = request.sources
    for topic, before in known.items():
        now = told.ids.get(topic, before)
        if now != before:
            raise Diverged(
                f"pipeline {pipeline!r}: topic {topic!r} was made anew. Its id is {now}, what was "
                f"delivered came from the one with the id {before}, and offsets begin anew with "
                "the topic, so its events would be skipped as delivered. Nothing was sent. Start "
                "under a new name"
            )
    read = known if request.starts is None else {name.rpartition("/")[0] for name in request.starts}
    unknown = [topic for topic in sorted(known) if topic in read and topic not in told.ids]
    if lost and unknown and not request.accept_gap:
        raise Diverged(
            f"pipeline {pipeline!r}: the checkpoint was lost, and nobody can tell whether topic "
            f"{unknown[0]!r} is still the one with the id {known[unknown[0]]} that was delivered "
            f"from: {told.why}. Were it made anew, its events would be skipped as delivered. "
            "Nothing was sent. Mend that, or look for yourself and say accept_gap=True to go on "
            "without comparing"
        )
    return {**known, **told.ids}
