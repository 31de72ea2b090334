"""Finishes what sinks do at the end of a minibatch, once the ledger has it complete.

Always true:
- Spark commits a micro-batch, and the ledger lets go of its rows, only after it was concluded;
- a conclusion that fails stops the query; the next run makes it, from the same rows.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, cast

from semel.errors import NotDelivered, OutcomeUnknown, SemelError
from semel.events.ids import Minibatch
from semel.ledger.generations import stayed
from semel.ledger.keys import STREAMS, number_of, prefix, split
from semel.ledger.rows import StreamRow
from semel.protocol import PartitionState
from semel.sinks.endings import Concluding, Ended, EndedPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.delivery.stages import Stages
    from semel.delivery.surroundings import Surroundings
    from semel.ledger.scribe import Scribe
    from semel.sinks import Sink


def conclude(
    scribe: Scribe,
    sinks: Sequence[Sink],
    minibatch: Minibatch,
    around: Surroundings,
    stages: Stages,
) -> None:
    """Conclude a minibatch that is complete, at every sink that does something at its end, and hand
    it to the stage after it.
    """
    for sink in sinks:
        if isinstance(sink, Concluding):
            at = (minibatch.generation, minibatch.batch)
            for ended in _ended(scribe, sink.name, prefix(scribe.pipeline, sink.name, *at)):
                _patiently(sink, ended, around)
                stages.hand_over(sink, ended)


def conclude_before(
    scribe: Scribe, sinks: Sequence[Sink], opened: Minibatch, around: Surroundings, stages: Stages
) -> None:
    """Conclude what older generations have complete, and what stayed of a sink that was left out
    for a while, before its rows are let go.
    """
    for sink in sinks:
        if isinstance(sink, Concluding):
            for ended in _ended(scribe, sink.name, prefix(scribe.pipeline, sink.name)):
                older = ended.minibatch.generation < opened.generation
                if older or stayed(ended.minibatch, opened):
                    _patiently(sink, ended, around)
                    stages.hand_over(sink, ended)


def _ended(scribe: Scribe, sink: str, start: str) -> Iterator[Ended]:
    """Give each minibatch of which rows are complete, with what stands at its places."""
    stored = scribe.scan(STREAMS, start)
    found = [(split(at.key), StreamRow.load(text, at)) for at, text in stored]
    for at, rows in groupby(found, key=lambda each: each[0][2:4]):
        parts = tuple(
            EndedPart(row.partition, row.attempt, row.count or 0, row.placed)
            for _, row in rows
            if row.state is PartitionState.COMPLETE and row.placed is not None
        )
        if parts:
            minibatch = Minibatch(number_of(at[0]), number_of(at[1]))
            yield Ended(scribe.pipeline, sink, minibatch, parts)


def _patiently(sink: Sink, ended: Ended, around: Surroundings) -> None:
    """Conclude it, and again while that may help: a conclusion may be repeated."""
    concluding = cast("Concluding", sink)
    last: Exception = NotDelivered("not tried")
    for _ in around.tries(sink.retry):
        try:
            concluding.conclude(ended)
        except (NotDelivered, OutcomeUnknown) as error:
            last = error
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - nobody classified it, and it may be repeated
            last = error
        else:
            return
    raise NotDelivered(
        f"pipeline {ended.pipeline!r}, sink {ended.sink!r}, minibatch {ended.minibatch}: its "
        f"events are delivered, and its end could not be told ({last}). Nothing is lost: see that "
        "the destination can be reached, then restart the query, which tells it"
    ) from last
