"""What a destination keeps of ours: a progress row, or the tail of its log.

One progress row stands in the destination for each (pipeline, sink, partition). It names the
attempt that may write, how much of the minibatch's order is done, and enough to be mapped without
the minibatch's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from semel.errors import ConfigurationError, Diverged
from semel.events import EntityIds
from semel.events.event import Attempt, EventID, Minibatch


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt came with a partition, as the destination committed it.

    Attributes:
        start: where the chunk starts that it is delivered with; a row that stands beyond it has it
            already, because a call of one's own may arrive late.
        after: the last OSN that this destination is known to have acknowledged before, 0 where none
            is; a row that is missing, or stands below it, has lost events (`require_kept`). It is
            asked of the row that stands, and no part of the row.
        done: events of the order that are delivered or parked, counted from its start.
        sort_key: of the last done event; with position identity that is its offset.
        digest: of the partition so far.
        ids: of the done events of this minibatch, for given identity: what a new generation needs.
        rejected: positions of the last chunk that the destination refused and that are to be parked
            before the next one starts, with the reason (where one script does both).
        rejected_events: scope and id of each of them: what a new generation needs.
    """

    minibatch: Minibatch
    attempt: Attempt
    done: int = 0
    start: int = 0
    after: int = field(default=0, compare=False)
    osn: int = 0
    digest: str = ""
    sort_key: list[Any] | None = None
    ids: EntityIds = field(default=EntityIds.EMPTY)
    rejected: dict[int, str] = field(default_factory=dict)
    rejected_events: dict[int, tuple[str, EventID]] = field(default_factory=dict)

    def taken_by(self, minibatch: Minibatch, attempt: Attempt) -> Progress:
        """Give the row as `attempt` leaves it when it takes over: a new minibatch starts from
        nothing.
        """
        if minibatch == self.minibatch:
            return replace(self, attempt=attempt)
        return Progress(minibatch=minibatch, attempt=attempt, osn=self.osn)

    def require_kept(self, stood: Progress | None, where: str) -> None:
        """Raise `Diverged` when the row that stands is behind what was acknowledged before."""
        osn = 0 if stood is None else stood.osn
        if osn < self.after:
            raise lost(where, self.after, osn)

    def to_json(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        return {
            "minibatch": [self.minibatch.generation, self.minibatch.batch],
            "attempt": [self.attempt.run, self.attempt.task],
            "done": self.done,
            "start": self.start,
            "osn": self.osn,
            "digest": self.digest,
            "sort_key": self.sort_key,
            "ids": self.ids.to_json(),
            "rejected": {str(place): why for place, why in self.rejected.items()},
            "rejected_events": {
                str(place): [scope, list(event) if isinstance(event, tuple) else event]
                for place, (scope, event) in self.rejected_events.items()
            },
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Progress:
        """Read it back."""
        return cls(
            minibatch=Minibatch(*value["minibatch"]),
            attempt=Attempt(*value["attempt"]),
            done=value["done"],
            start=value["start"],
            osn=value["osn"],
            digest=value["digest"],
            sort_key=value["sort_key"],
            ids=EntityIds.from_json(value["ids"]),
            rejected={int(place): why for place, why in value["rejected"].items()},
            rejected_events={
                int(place): (scope, tuple(event) if isinstance(event, list) else event)
                for place, (scope, event) in value["rejected_events"].items()
            },
        )


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a destination's log: C, and the sort key and minibatch of the event that carries
    it.

    Attributes:
        osn: the highest OSN in the log, 0 when it is empty.
        stamp: the progress that the last whole chunk of the log was delivered with.
        resent: the number of the last resend that stands in the log, 0 when there is none.
    """

    osn: int = 0
    minibatch: Minibatch | None = None
    sort_key: list[Any] | None = None
    stamp: Progress | None = None
    resent: int = 0


def lost(where: str, acknowledged: int, osn: int) -> Diverged:
    """Say that a destination has less than it acknowledged: `osn` is where it stands."""
    has = f"only {osn}" if osn else "nothing"
    return Diverged(
        f"{where}: {acknowledged} is the last output sequence number that the destination "
        "acknowledged, but it "
        f"has {has}. It has lost events, or it is another destination. Restore it, or start "
        "under a new name"
    )


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
"""What reading raises for progress that is not as semel wrote it."""


def unreadable(where: str, what: str, error: Exception) -> ConfigurationError:
    """Say that what a destination keeps of ours is not as it was written."""
    return ConfigurationError(
        f"{where}: {what} cannot be read ({type(error).__name__}): it is damaged, or another "
        "program has written there. Nothing was sent; restore it, or start under a new name"
    )
