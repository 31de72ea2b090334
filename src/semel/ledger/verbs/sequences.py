"""Output sequence numbers and position watermarks of each partition of each sink.

Always true:
- a row holds the partition's standing now, and before each of the last two minibatches that moved
  it, so that a replay of one that is not swept starts from the same numbers;
- it is written with `complete` or when a generation is closed, never by a task.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from semel.events import EventID, IdSet
from semel.ledger.keys import make_key, make_prefix
from semel.ledger.payloads import ADDED, LATER, Form, Row, codec_of, read_integer, read_list
from semel.ledger.store.commit import Put

if TYPE_CHECKING:
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key

SEQUENCES_TABLE = "sequences"


@dataclass(frozen=True, slots=True)
class PositionMark:
    """A position watermark: every event up to `upto` is handled, and those in `above`.

    Attributes:
        digest: of the event at `upto`, because a recreated topic looks just like a re-read.
        generation: in which the partition was last read; an older one means that it is re-read.
        begins: the first event that ever arrived, until all events up to some event are handled.
    """

    upto: EventID | None = None
    digest: str | None = None
    above: IdSet = field(default=IdSet.EMPTY)
    generation: int = 1
    begins: Annotated[EventID | None, ADDED] = None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a partition stands between two minibatches.

    Attributes:
        osn: L, the last OSN that an event has.
        sent: the last OSN that was transmitted; less than L where the last events were parked.
        mark: the position watermark, where the identity has one.
    """

    osn: int = 0
    sent: int = 0
    mark: PositionMark | None = None


def _read_before(value: Any, name: str) -> tuple[tuple[int, Standing], ...]:
    read = codec_of(Standing).read_as
    return tuple(
        (read_integer(serial, name), read(standing, "a standing"))
        for serial, standing in read_list(value, name)
    )


def _write_before(before: tuple[tuple[int, Standing], ...]) -> list[Any]:
    write = codec_of(Standing).write
    return [[serial, write(standing)] for serial, standing in before]


_BEFORE = Form(_read_before, _write_before)


@dataclass(frozen=True, slots=True)
class SequenceRow(Row):
    """The standing of a partition now, and before the last two minibatches that moved it.

    Attributes:
        never: whether none of its events was ever delivered, only parked or dropped.
        unanswered: how many of the last calls had an unknown outcome, in a row.
    """

    TABLE = SEQUENCES_TABLE

    partition: str
    after: Standing
    before: Annotated[tuple[tuple[int, Standing], ...], _BEFORE]
    never: Annotated[bool, LATER] = False
    unanswered: Annotated[int, LATER] = 0

    def as_of(self, serial: int) -> Standing:
        """Return the standing from which the minibatch `serial` starts."""
        for moved_by, standing in self.before:
            if serial <= moved_by:
                return standing
        return self.after

    def moved(self, serial: int, after: Standing) -> SequenceRow:
        """Return the row after the minibatch `serial`."""
        kept = [each for each in self.before if each[0] < serial][-1:]
        before = (*kept, (serial, self.as_of(serial)))
        return replace(self, after=after, before=before)

    def tried(self, delivered: int, unanswered: int) -> SequenceRow:
        """Return the row after the calls of a minibatch: how many events it delivered, and how many
        of its last calls had an unknown outcome.
        """
        never = not delivered and (self.never or not self.after.osn)
        return replace(self, never=never, unanswered=unanswered)

    @property
    def delivered(self) -> bool:
        """Whether any of its events was ever delivered, as far as is known."""
        return self.after.osn > 0 and not self.never


def sequence_key(pipeline: str, sink: str, partition: str) -> Key:
    """Return the key of one partition of one sink."""
    return make_key(SEQUENCES_TABLE, pipeline, sink, partition)


def read_sequences(client: LedgerClient, sink: str) -> dict[str, SequenceRow]:
    """Return the row of every partition of the sink."""
    rows = client.scan(SEQUENCES_TABLE, make_prefix(client.pipeline, sink))
    found = (SequenceRow.load(text, at) for at, text in rows)
    return {row.partition: row for row in found}


def advance_sequence(
    client: LedgerClient, sink: str, row: SequenceRow, serial: int, after: Standing
) -> Put:
    """Return the update that advances a partition; it is part of complete or close."""
    at = sequence_key(client.pipeline, sink, row.partition)
    return Put(at, row.moved(serial, after).dump())
