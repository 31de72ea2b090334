"""The states that rows of the ledger can be in, and what an attempt can find when it comes.

Comparing C, the last OSN transmitted, with L, the last OSN of the last complete minibatch.

C = L: nothing of the minibatch was sent. C > L: L+1..C are suppressed. C < L: the destination lost
what it had acknowledged, or it is another destination; C+1..L cannot be made up from this
minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartitionState(StrEnum):
    """The state of a row of `streams`."""

    PENDING = "pending"
    COMPLETE = "complete"


class SpanState(StrEnum):
    """The state of a row of `events`."""

    INTENDED = "intended"  # recorded before its first effect
    SETTLED = "settled"  # every event of it is delivered, parked or dropped by policy


class ParkedState(StrEnum):
    """The state of a row of `parked`. The last five are final."""

    HELD = "held"  # in doubt; a person decides
    REJECTED = "rejected"  # a dead letter
    WAITING = "waiting"  # behind an event of its entity
    RESEND = "resend"  # to be sent again, nobody has claimed it
    SENDING = "sending"  # somebody claimed it and may be sending
    DELIVERED = "delivered"
    DISCARDED = "discarded"
    SKIPPED = "skipped"  # in doubt, and policy `skip` dropped it
    RESENT = "resent"  # in doubt, and policy `resend` sent it again
    LATE = "late"  # a replaced attempt's call ended so late that it may have arrived twice

    @property
    def final(self) -> bool:
        """Whether nothing will ever happen to the event any more."""
        return self in _FINAL

    @property
    def only_marks(self) -> bool:
        """Whether the row only says that there was a doubt: the event itself is on its way."""
        return self in (ParkedState.RESENT, ParkedState.LATE)


_FINAL = frozenset(
    {
        ParkedState.DELIVERED,
        ParkedState.DISCARDED,
        ParkedState.SKIPPED,
        ParkedState.RESENT,
        ParkedState.LATE,
    }
)


class Fault(StrEnum):
    """Why a call for a parked event had no known outcome, where it was this project's own call."""

    CALL = "call"  # no answer, or an error that nobody classified
    CODE = "code"  # a programming error of the sink


class Judgement(StrEnum):
    """What a person says of a minibatch whose replay has other content than what is recorded."""

    AS_RECORDED = "as-recorded"  # what was delivered stands; the replay adds what it has beyond it
    AS_REPLAYED = "as-replayed"  # everything that the replay gives is delivered, all of it anew


class Found(StrEnum):
    """What an attempt finds: of the partition as a whole, or of one recorded span of it."""

    NEW = "new"  # this very attempt inserted the row
    COMPLETE = "complete"
    PENDING = "pending"  # everything else: an earlier attempt came this far or further
    SETTLED = "settled"  # a span of a pending partition
    INTENDED = "intended"  # a span of a pending partition
    EXPIRED = "expired"  # intended longer ago than the destination remembers keys
    UNRECORDED = "unrecorded"  # events of a pending partition beyond its last recorded span


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Of the events L+1..L+n: how many are there, and how many acknowledged ones are gone."""

    suppressed: int
    gone: int


def outstanding(last_complete: int, last_transmitted: int) -> Outstanding:
    """Say what a replay suppresses, given L and C."""
    return Outstanding(
        suppressed=max(0, last_transmitted - last_complete),
        gone=max(0, last_complete - last_transmitted),
    )
