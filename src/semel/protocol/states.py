"""States of ledger rows, capabilities and policies, and what a replay suppresses.

C is the last OSN transmitted, L the last OSN of the last complete minibatch:
- C = L: nothing of the minibatch was sent;
- C > L: L+1..C are suppressed;
- C < L: the destination lost events that it had acknowledged, or it is another destination; C+1..L
  cannot be supplied from this minibatch.

A capability is claimed by the sink's author, never defaulted, and proved by the contract suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


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
    WAITING = "waiting"  # behind another event of its entity
    RESEND = "resend"  # to be sent again, not claimed yet
    SENDING = "sending"  # claimed, and may be in the middle of a send
    DELIVERED = "delivered"
    DISCARDED = "discarded"
    SKIPPED = "skipped"  # in doubt, and policy `skip` dropped it
    RESENT = "resent"  # in doubt, and policy `resend` sent it again
    LATE = "late"  # a replaced attempt's call ended so late that it may have arrived twice

    @property
    def final(self) -> bool:
        """Whether nothing more can happen to the event."""
        return self in _FINAL

    @property
    def only_marks(self) -> bool:
        """Whether the row only records that there was a doubt: the event itself is on its way."""
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
    """Why a call for a parked event had no known outcome, if it was semel's own call."""

    CALL = "call"  # no answer, or an unclassified error
    CODE = "code"  # a programming error in the sink


class Judgement(StrEnum):
    """A person's decision about a minibatch whose replay differs from the recorded content."""

    AS_RECORDED = "as-recorded"  # delivered events stand; the replay adds the events beyond them
    AS_REPLAYED = "as-replayed"  # everything that the replay produces is delivered again


class Found(StrEnum):
    """What an attempt finds: for the partition as a whole, or for one of its recorded spans."""

    NEW = "new"  # this attempt inserted the row
    COMPLETE = "complete"
    PENDING = "pending"  # otherwise: an earlier attempt got at least this far
    SETTLED = "settled"  # a span of a pending partition
    INTENDED = "intended"  # a span of a pending partition
    EXPIRED = "expired"  # intended longer ago than the destination remembers keys
    UNRECORDED = "unrecorded"  # events of a pending partition beyond its last recorded span


@dataclass(frozen=True, slots=True)
class Outstanding:
    """How many of the events L+1..L+n are there, and how many acknowledged ones are gone."""

    suppressed: int
    gone: int


def outstanding(last_complete: int, last_transmitted: int) -> Outstanding:
    """Return what a replay suppresses, given L and C."""
    return Outstanding(
        suppressed=max(0, last_transmitted - last_complete),
        gone=max(0, last_complete - last_transmitted),
    )


# -- capabilities and policies


class Capability(StrEnum):
    """What a destination can do; the first four are exact after any crash."""

    TRANSACTIONAL = "transactional"  # commits semel's progress row together with the effect
    SEQUENCED = "sequenced"  # reports the last OSN of its log, refuses a replaced writer
    REPEATABLE = "repeatable"  # absorbs a repeat that carries the same key, for a stated time
    PROBING = "probing"  # reports whether a chunk arrived
    OPAQUE = "opaque"  # none of these


RECORDS_INTENTS = frozenset({Capability.REPEATABLE, Capability.PROBING, Capability.OPAQUE})
"""A chunk must be recorded in the ledger before it is sent."""

CAN_BE_IN_DOUBT = frozenset({Capability.OPAQUE})
"""An outcome may stay unknown within one generation (and within `remembers`)."""


class OnDoubt(StrEnum):
    """What happens to an event that may have arrived, when the destination cannot be asked."""

    HOLD = "hold"  # park it, block its entity, continue with the others
    RESEND = "resend"  # send it again: it may arrive twice
    SKIP = "skip"  # record it and continue: it may never arrive
    STOP = "stop"  # park it and stop the pipeline until a person has decided
    PROBE = "probe"  # call the user's function


DoubtWord = Literal["hold", "resend", "skip", "stop", "probe"]
"""The values of `OnDoubt` as a user writes them."""


class OnReject(StrEnum):
    """What happens to the entity of an event that was rejected and parked as a dead letter."""

    PARK = "park"  # the entity continues
    BLOCK = "block"  # the entity's later events wait


RejectWord = Literal["park", "block"]
"""The values of `OnReject` as a user writes them."""
