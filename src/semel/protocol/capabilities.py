"""What a destination can do, and the user's policies for events in doubt or rejected.

A capability is claimed by the sink's author, never defaulted, and proved by the contract suite.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Capability(StrEnum):
    """What a destination can do; the first four are exact after any crash."""

    TRANSACTIONAL = "transactional"  # commits semel's progress row together with the effect
    SEQUENCED = "sequenced"  # reports the last OSN of its log, refuses a replaced writer
    REPEATABLE = "repeatable"  # absorbs a repeat that carries the same key, for a stated time
    PROBING = "probing"  # reports whether a chunk arrived
    OPAQUE = "opaque"  # none of these

    @property
    def records_intents(self) -> bool:
        """Whether a chunk must be recorded in the ledger before it is sent."""
        return self not in (Capability.TRANSACTIONAL, Capability.SEQUENCED)

    @property
    def can_be_in_doubt(self) -> bool:
        """Whether an outcome may stay unknown within one generation (and within `remembers`)."""
        return self is Capability.OPAQUE


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
