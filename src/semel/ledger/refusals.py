"""Why a minibatch cannot be opened: what a driver asks for does not follow what the ledger has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, Diverged
from semel.ledger.keys import STREAMS, key, prefix
from semel.ledger.owners import FINISHED, PIPELINES, STAGE_OF, described
from semel.ledger.parked import read_parked
from semel.ledger.recent import minibatch_of
from semel.ledger.rows import StreamRow
from semel.ledger.sequences import read_sequences
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events.ids import Minibatch
    from semel.ledger.minibatches import Wish
    from semel.ledger.rows import OpenRow
    from semel.ledger.scribe import Scribe


def left_out(scribe: Scribe, recorded: str | None, before: OpenRow, wish: Wish) -> None:
    """A sink that is left out with something open would be forgotten: finish it first.

    Spark goes on only when a minibatch was concluded, so only the newest one may not be; that of
    an older generation is concluded before the first one of the next is delivered.
    """
    at = key(PIPELINES, scribe.pipeline)
    known = {} if recorded is None else described(recorded, at).get("sinks", {})
    for sink in sorted(set(known) - set(wish.sinks)):
        for at, text in scribe.scan(STREAMS, prefix(scribe.pipeline, sink)):
            row, minibatch = StreamRow.load(text, at), minibatch_of(at)
            if row.state is PartitionState.PENDING:
                raise ConfigurationError(
                    f"pipeline {scribe.pipeline!r}: sink {sink!r} is left out, but its "
                    f"partition {row.partition} is half delivered. Start once with it, let the "
                    "minibatch come to its end, then leave it out"
                )
            if row.placed is not None and _is_last(scribe, sink, known, before, wish, minibatch):
                raise ConfigurationError(
                    f"pipeline {scribe.pipeline!r}: sink {sink!r} is left out, but minibatch "
                    f"{minibatch} may not have been concluded there: its manifest or load may be "
                    "missing. Start once with it, let the minibatch come to its end, then leave "
                    "it out"
                )
    for stage in sorted(set(known) - set(wish.stages.values())):
        if STAGE_OF in known[stage]:
            _stage_left_out(scribe, stage, known, before, wish)


def _stage_left_out(
    scribe: Scribe, stage: str, known: Mapping[str, Mapping[str, str]], before: OpenRow, wish: Wish
) -> None:
    """Refuse to leave a second stage out that was not handed the newest minibatch yet."""
    sink = known[stage][STAGE_OF]
    for at, text in scribe.scan(STREAMS, prefix(scribe.pipeline, sink)):
        minibatch = minibatch_of(at)
        if (
            StreamRow.load(text, at).stage == stage
            and _is_last(scribe, sink, known, before, wish, minibatch)
            and not read_parked(scribe, stage, minibatch=minibatch)
        ):
            raise ConfigurationError(
                f"pipeline {scribe.pipeline!r}: the second stage {stage!r} is left out, but "
                f"minibatch {minibatch} was not handed to it. Start once with it, let the "
                "minibatch come to its end, then leave it out"
            )


def _is_last(
    scribe: Scribe,
    sink: str,
    known: Iterable[str],
    before: OpenRow,
    wish: Wish,
    minibatch: Minibatch,
) -> bool:
    """Whether a complete minibatch may not have been concluded at a sink."""
    if minibatch.generation != before.minibatch.generation:
        return _begun(before) and not _passed(scribe, sink, known)
    newest = before.reached()[0]
    goes_on = wish.query == before.query and wish.batch == newest + 1
    return minibatch.batch >= newest and not goes_on


def _begun(before: OpenRow) -> bool:
    """Whether nothing of a generation is complete: what the one before left may still be open."""
    _, serial, complete = before.reached()
    return serial == before.first and not complete


def _passed(scribe: Scribe, sink: str, sinks: Iterable[str]) -> bool:
    """Whether another sink has completed a minibatch since a sink had its last one."""
    last = {
        name: max((serial for row in rows.values() for serial, _ in row.before), default=0)
        for name in sinks
        for rows in (read_sequences(scribe, name),)
    }
    return max(last.values()) > last[sink]


def rescaled(scribe: Scribe, text: str | None, wish: Wish) -> None:
    """A run that was silent while the pipeline was rescaled would go on with the old number."""
    recorded = {} if text is None else described(text, key(PIPELINES, scribe.pipeline))
    known = recorded.get("partitions")
    if None not in (known, wish.partitions) and known != wish.partitions:
        raise ConfigurationError(
            f"pipeline {scribe.pipeline!r} was rescaled to {known} partitions, and this run has "
            f"{wish.partitions}. Nothing was sent; start the query again, with {known}"
        )


def finished(scribe: Scribe, text: str | None) -> None:
    """Nothing is open because it is finished, not because nothing ever was."""
    if text is not None and FINISHED in described(text, key(PIPELINES, scribe.pipeline)):
        raise ConfigurationError(
            f"pipeline {scribe.pipeline!r} is a batch that is finished: it is only "
            "counted and compared. Deliver what is new under another batch"
        )


def step(scribe: Scribe, before: OpenRow, wish: Wish, by: int, *, complete: bool) -> None:
    """Refuse what cannot follow the newest minibatch of the generation."""
    name = f"pipeline {scribe.pipeline!r}"
    if by == 1 and not complete:
        raise Diverged(
            f"{name}: Spark goes on to batch {wish.batch}, but the minibatch before it is not "
            "complete in the ledger: was the checkpoint used by a query without semel, or the "
            "ledger restored from a copy? Start with the checkpoint of this ledger"
        )
    if by < 1 and before.partitions != wish.partitions:
        raise ConfigurationError(
            f"{name}: batch {wish.batch} comes again, and it was delivered with "
            f"{before.partitions} partitions. Rescale back to {before.partitions}, let it come to "
            f"its end, then rescale to {wish.partitions} and start again"
        )


def partly_joined(scribe: Scribe, before: OpenRow, wish: Wish, sink: str) -> Diverged:
    """Say that a sink that was added would never get the rest of the minibatch it joined at."""
    return Diverged(
        f"pipeline {scribe.pipeline!r}: Spark goes on to batch {wish.batch}, but sink {sink!r} has "
        f"only a part of minibatch {before.minibatch}, at which it was added. Nothing was sent. "
        f"Start with the copy of the checkpoint that runs batch {before.minibatch.batch} again"
    )


def lost_checkpoint(scribe: Scribe, before: OpenRow, wish: Wish) -> ConfigurationError:
    """Say that ids which were counted do not survive this."""
    return ConfigurationError(
        f"pipeline {scribe.pipeline!r}: the checkpoint was lost or replaced (batch "
        f"{wish.batch} does not follow {before.minibatch.batch}), and ids that semel "
        "counted cannot be told from the ones delivered before. Restore the checkpoint, or "
        "start under a new name with input that begins after what was delivered"
    )
