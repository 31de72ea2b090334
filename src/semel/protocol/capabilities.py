"""What a destination can do, and what the user wants done where it can do nothing.

A capability is claimed by the sink's author, never defaulted, and proved by the contract suite.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Capability(StrEnum):
    """What a destination can do for us; the first four are exact after any crash."""

    TRANSACTIONAL = "transactional"  # commits our progress row together with the effect
    SEQUENCED = "sequenced"  # tells the last OSN of its log, refuses a replaced writer
    REPEATABLE = "repeatable"  # absorbs a repeat that carries the same key, for a stated time
    PROBING = "probing"  # tells whether a chunk arrived
    OPAQUE = "opaque"  # nothing of that

    @property
    def records_intents(self) -> bool:
        """Whether the ledger must hear of a chunk before it is sent."""
        return self not in (Capability.TRANSACTIONAL, Capability.SEQUENCED)

    @property
    def can_be_in_doubt(self) -> bool:
        """Whether an outcome may stay unknown within one generation (and within `remembers`)."""
        return self is Capability.OPAQUE


class OnDoubt(StrEnum):
    """What becomes of an event that may have arrived, when nobody can be asked."""

    HOLD = "hold"  # park it, block its entity, go on with the others
    RESEND = "resend"  # send it again: it may arrive twice
    SKIP = "skip"  # record it and go on: it may never arrive
    STOP = "stop"  # park it and stop the pipeline until a person has decided
    PROBE = "probe"  # ask a function of the user's


DoubtWord = Literal["hold", "resend", "skip", "stop", "probe"]
"""The values of `OnDoubt` as a user writes them."""


class OnReject(StrEnum):
    """What becomes of the entity of an event that was rejected and parked as a dead letter."""

    PARK = "park"  # the entity goes on
    BLOCK = "block"  # its followers wait


RejectWord = Literal["park", "block"]
"""The values of `OnReject` as a user writes them."""
