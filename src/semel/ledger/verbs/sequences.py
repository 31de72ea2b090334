"""Output sequence numbers and position watermarks of each partition of each sink.

Always true:
- a row holds the partition's standing now, and before each of the last two minibatches that moved
  it, so that a replay of one that is not swept starts from the same numbers;
- it is written with `complete` or when a generation is closed, never by a task.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.events import IdSet
from semel.ledger import payloads
from semel.ledger.damage import Fields, decode_row, integer
from semel.ledger.keys import make_key, make_prefix
from semel.ledger.store.commit import Put

if TYPE_CHECKING:
    from semel.events import EventID
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key

SEQUENCES_TABLE = "sequences"


@dataclass(frozen=True, slots=True)
class Mark:
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
    begins: EventID | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        upto = list(self.upto) if isinstance(self.upto, tuple) else self.upto
        return {
            "upto": upto,
            "digest": self.digest,
            "above": self.above.to_json(),
            "generation": self.generation,
            "begins": list(self.begins) if isinstance(self.begins, tuple) else self.begins,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Mark:
        """Read it back. Raises ValueError if it is not one."""
        row = Fields(value, "mark")
        return cls(
            upto=row.maybe("upto", row.event),
            digest=row.maybe("digest", row.text),
            above=IdSet.from_json(row.take("above")),
            generation=row.integer("generation"),
            begins=row.later("begins", lambda name: row.maybe(name, row.event), None),
        )


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
    mark: Mark | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        mark = None if self.mark is None else self.mark.to_json()
        return {"osn": self.osn, "sent": self.sent, "mark": mark}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Standing:
        """Read it back. Raises ValueError if it is not one."""
        row = Fields(value, "a standing")
        mark = row.maybe("mark", lambda name: Mark.from_json(row.object(name)))
        return cls(row.integer("osn"), row.integer("sent"), mark)


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """The standing of a partition now, and before the last two minibatches that moved it.

    Attributes:
        never: whether none of its events was ever delivered, only parked or dropped.
        unanswered: how many of the last calls had an unknown outcome, in a row.
    """

    partition: str
    after: Standing
    before: tuple[tuple[int, Standing], ...]
    never: bool = False
    unanswered: int = 0

    def dump(self) -> str:
        """Return the payload."""
        return payloads.dump(
            {
                "partition": self.partition,
                "after": self.after.to_json(),
                "before": [[serial, standing.to_json()] for serial, standing in self.before],
                **({"never": True} if self.never else {}),
                **({"unanswered": self.unanswered} if self.unanswered else {}),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> SequenceRow:
        """Read it back."""
        return decode_row(SEQUENCES_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> SequenceRow:
        row = Fields(payload)
        before = tuple(
            (integer(serial, "before"), Standing.from_json(value))
            for serial, value in row.items("before")
        )
        return cls(
            row.text("partition"),
            Standing.from_json(row.object("after")),
            before,
            never=row.later("never", row.flag, False),
            unanswered=row.later("unanswered", row.integer, 0),
        )

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
