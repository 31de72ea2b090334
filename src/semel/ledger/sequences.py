"""Output sequence numbers and position watermarks: where each partition of each sink stands.

Always true:
- a row tells the partition's standing after the minibatch of its serial, and the standing before it, so that
  a replay of that minibatch starts from the same numbers;
- it is written with `complete` or when a generation is closed, never by a task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.events import IdSet
from semel.ledger import payloads
from semel.ledger.keys import key, prefix
from semel.ledger.store import Put

if TYPE_CHECKING:
    from semel.events.ids import EventID
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Key

TABLE = "sequences"


@dataclass(frozen=True, slots=True)
class Mark:
    """A position watermark: every event up to `upto` is handled, and those in `above`.

    Attributes:
        digest: of the event at `upto`, because a topic made anew looks just like a re-read.
        source: the source's own identity (Kafka's topic id), where it has one.
        generation: in which the partition was last seen; an older one means that it is read again.
    """

    upto: EventID | None = None
    digest: str | None = None
    source: str | None = None
    above: IdSet = field(default=IdSet.EMPTY)
    generation: int = 1

    def to_json(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        upto = list(self.upto) if isinstance(self.upto, tuple) else self.upto
        return {
            "upto": upto,
            "digest": self.digest,
            "source": self.source,
            "above": self.above.to_json(),
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Mark:
        """Read it back."""
        upto = value["upto"]
        return cls(
            upto=tuple(upto) if isinstance(upto, list) else upto,
            digest=value["digest"],
            source=value["source"],
            above=IdSet.from_json(value["above"]),
            generation=value["generation"],
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """L, the last OSN a partition has used, and its position watermark where it has one."""

    osn: int = 0
    mark: Mark | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        return {"osn": self.osn, "mark": None if self.mark is None else self.mark.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Standing:
        """Read it back."""
        mark = value["mark"]
        return cls(value["osn"], None if mark is None else Mark.from_json(mark))


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """The standing of a partition after the minibatch `serial`, and before it."""

    partition: str
    serial: int
    after: Standing
    before: Standing

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "partition": self.partition,
                "serial": self.serial,
                "after": self.after.to_json(),
                "before": self.before.to_json(),
            }
        )

    @classmethod
    def load(cls, text: str) -> SequenceRow:
        """Read it back."""
        row = payloads.load(text)
        return cls(
            row["partition"],
            row["serial"],
            Standing.from_json(row["after"]),
            Standing.from_json(row["before"]),
        )

    def as_of(self, serial: int) -> Standing:
        """Give the standing that the minibatch `serial` starts from."""
        return self.after if self.serial < serial else self.before


def sequence_key(pipeline: str, sink: str, partition: str) -> Key:
    """Name the row of one partition of one sink."""
    return key(TABLE, pipeline, sink, partition)


def standings(scribe: Scribe, sink: str, serial: int) -> dict[str, Standing]:
    """Give where every partition of the sink stands as the minibatch `serial` starts."""
    rows = scribe.scan(TABLE, prefix(scribe.pipeline, sink))
    found = (SequenceRow.load(text) for _, text in rows)
    return {row.partition: row.as_of(serial) for row in found}


def advance(
    scribe: Scribe, sink: str, partition: str, serial: int, before: Standing, after: Standing
) -> Put:
    """Make the update that moves a partition on; it goes into the commit that completes or closes."""
    row = SequenceRow(partition, serial, after, before)
    return Put(sequence_key(scribe.pipeline, sink, partition), row.dump())
