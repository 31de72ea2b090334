"""What a destination keeps for semel: a progress row, or the tail of its log.

The destination has one progress row for each (pipeline, sink, partition). It names the attempt that
may write, how much of the minibatch's order is done, and enough to close a generation without the
minibatch's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from semel.errors import ConfigurationError, Diverged
from semel.events import Attempt, EntityIds, EventID, Minibatch


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt came with a partition, as the destination committed it.

    Attributes:
        start: where the chunk starts that this is delivered with. A row beyond it has the chunk
            already, because a call of the same attempt may arrive late.
        after: the last OSN that this destination is known to have acknowledged before, 0 if none. A
            row that is missing or below it has lost events (`require_kept`). It is a requirement on
            the row, not a part of it.
        done: how many events of the order are delivered or parked, counted from its start.
        sort_key: of the last done event; with position identity that is its offset.
        digest: of the partition so far.
        ids: of the done events of this minibatch, for given identity; a new generation needs them.
        rejected: positions of the last chunk that the destination rejected and that must be parked
            before the next chunk starts, with the reason (if one script does both).
        rejected_events: scope and id of each of them; a new generation needs them.
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
        """Return the row as `attempt` leaves it when it takes over: a new minibatch starts from
        zero.
        """
        if minibatch == self.minibatch:
            return replace(self, attempt=attempt)
        return Progress(minibatch=minibatch, attempt=attempt, osn=self.osn)

    def require_kept(self, stood: Progress | None, where: str) -> None:
        """Raise `Diverged` if the row in the destination is behind what was acknowledged before."""
        osn = 0 if stood is None else stood.osn
        if osn < self.after:
            raise lost(where, self.after, osn)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
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
    """The end of a destination's log: its last OSN, with the sort key and minibatch of that event.

    Attributes:
        osn: the highest OSN in the log, 0 if it is empty.
        stamp: the progress that the last whole chunk of the log was delivered with.
        resent: the number of the last resend in the log, 0 if there is none.
    """

    osn: int = 0
    minibatch: Minibatch | None = None
    sort_key: list[Any] | None = None
    stamp: Progress | None = None
    resent: int = 0


def lost(where: str, acknowledged: int, osn: int) -> Diverged:
    """Return the error for a destination that has only `osn`, less than it acknowledged."""
    has = f"only {osn}" if osn else "nothing"
    return Diverged(
        f"{where}: {acknowledged} is the last output sequence number that the destination "
        "acknowledged, but it "
        f"has {has}. It has lost events, or it is another destination. Restore it, or start "
        "under a new name"
    )


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)
"""The exceptions of reading progress that is not as semel wrote it."""


def unreadable(where: str, what: str, error: Exception) -> ConfigurationError:
    """Return the error for stored progress that is not as semel wrote it."""
    return ConfigurationError(
        f"{where}: {what} cannot be read ({type(error).__name__}): it is damaged, or another "
        "program has written there. Nothing was sent; restore it, or start under a new name"
    )
