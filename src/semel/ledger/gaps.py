"""Whether a generation that begins after a lost checkpoint goes on where the ledger stands.

Only identity by position can tell: what the source offers is numbered. Always true: an offset that
may hold an event which was not handled is never left out, unless somebody says so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, Diverged
from semel.ledger.keys import STREAMS, prefix
from semel.ledger.rows import StreamRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from semel.events.ids import EventID
    from semel.ledger.minibatches import Wish
    from semel.ledger.scribe import Scribe
    from semel.ledger.sequences import Mark, SequenceRow


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


def refuse_unknown(pipeline: str, wish: Wish) -> None:
    """Refuse a checkpoint that has gone on where the ledger knows nothing: was the ledger lost?"""
    if wish.batch > 0 and not wish.accept_gap:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: the checkpoint is at batch {wish.batch}, and the ledger knows "
            "nothing of this pipeline. Was the ledger lost, or is it another one (by default it "
            "carries the checkpoint's name)? Then give the right one. If the query has run without "
            "semel until now, say accept_gap=True: what was delivered of this batch is not known"
        )


def compare(scribe: Scribe, standing: Mapping[str, Mapping[str, SequenceRow]], wish: Wish) -> bool:
    """Compare where Spark begins with where the ledger stands, for all sinks of the wish.

    False leaves it to the tasks: Spark's start is not known, or a partition will have its first
    watermark only when it is closed. Raises `Diverged`.
    """
    if wish.starts is None:
        return False
    known = positions(standing.values())
    if not wish.accept_gap:
        _refuse(scribe.pipeline, known, wish.starts)
    return not any(
        StreamRow.load(text, at).partition not in known
        for sink in wish.sinks
        for at, text in scribe.scan(STREAMS, prefix(scribe.pipeline, sink))
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
