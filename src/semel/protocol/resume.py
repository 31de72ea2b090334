"""The RESUME table: what an attempt does for each state it finds.

Always true:
- every pair of a found state and a capability has one rule, or a reason why it cannot occur;
- nothing that may have been sent is sent again, unless the destination absorbs the repeat, reports
  the outcome or refuses it, or a policy allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from semel.protocol.states import Capability, Found, OnDoubt


class Action(StrEnum):
    """What an attempt does with a partition or a span."""

    DELIVER = "deliver"  # never sent: send it, intent first where intents are recorded
    COUNT = "count"  # deliver nothing; count and digest, and let the driver compare
    READ_SPANS = "read spans"  # read the recorded spans and apply a rule to each
    ASK_PROGRESS = "ask progress"  # fence the destination's progress row, then ask what is done
    ASK_TAIL = "ask tail"  # take the log's epoch, then ask for its last OSN
    SKIP = "skip"  # already delivered, parked or dropped
    REPEAT = "repeat"  # send the same cut again under the same key
    ASK_ARRIVED = "ask arrived"  # wait until no call can be in flight, then ask for each key
    DOUBT = "doubt"  # the destination cannot be asked: the policy decides


@dataclass(frozen=True, slots=True)
class Rule:
    """An action, and the crash that leads to it."""

    action: Action
    crash: str


_T, _S = Capability.TRANSACTIONAL, Capability.SEQUENCED
_R, _P, _O = Capability.REPEATABLE, Capability.PROBING, Capability.OPAQUE

_NEW = Rule(Action.DELIVER, "none: this is the first attempt, so nothing is looked up")
_COMPLETE = Rule(
    Action.COUNT, "the driver died after complete() and before Spark committed the batch"
)
_SPANS = Rule(Action.READ_SPANS, "an attempt died, or was stopped, anywhere after its claim")
_SETTLED = Rule(Action.SKIP, "the attempt died later, in a further span")
_BEYOND = Rule(Action.DELIVER, "the attempt died before it recorded these: no effect of them began")

RESUME: dict[tuple[Found, Capability], Rule] = {
    (Found.NEW, _T): _NEW,
    (Found.NEW, _S): _NEW,
    (Found.NEW, _R): _NEW,
    (Found.NEW, _P): _NEW,
    (Found.NEW, _O): _NEW,
    (Found.COMPLETE, _T): _COMPLETE,
    (Found.COMPLETE, _S): _COMPLETE,
    (Found.COMPLETE, _R): _COMPLETE,
    (Found.COMPLETE, _P): _COMPLETE,
    (Found.COMPLETE, _O): _COMPLETE,
    (Found.PENDING, _T): Rule(
        Action.ASK_PROGRESS,
        "the attempt died after its claim; its progress row says what it committed",
    ),
    (Found.PENDING, _S): Rule(
        Action.ASK_TAIL,
        "the attempt died after its claim; the end of the log says what it appended",
    ),
    (Found.PENDING, _R): _SPANS,
    (Found.PENDING, _P): _SPANS,
    (Found.PENDING, _O): _SPANS,
    (Found.SETTLED, _R): _SETTLED,
    (Found.SETTLED, _P): _SETTLED,
    (Found.SETTLED, _O): _SETTLED,
    (Found.INTENDED, _R): Rule(
        Action.REPEAT, "the attempt died between intent and settle; the key absorbs a repeat"
    ),
    (Found.INTENDED, _P): Rule(
        Action.ASK_ARRIVED,
        "the attempt died between intent and settle; the destination says if it arrived",
    ),
    (Found.INTENDED, _O): Rule(
        Action.DOUBT, "the attempt died between intent and settle; there is no way to find out"
    ),
    (Found.EXPIRED, _R): Rule(
        Action.DOUBT, "no attempt ran for longer than the destination remembers the key"
    ),
    (Found.UNRECORDED, _R): _BEYOND,
    (Found.UNRECORDED, _P): _BEYOND,
    (Found.UNRECORDED, _O): _BEYOND,
}

_NO_SPANS = "no intents are recorded: the destination itself knows what is done"
_NEVER_EXPIRES = "what the destination knows of a key does not expire"

IMPOSSIBLE: dict[tuple[Found, Capability], str] = {
    (Found.SETTLED, _T): _NO_SPANS,
    (Found.SETTLED, _S): _NO_SPANS,
    (Found.INTENDED, _T): _NO_SPANS,
    (Found.INTENDED, _S): _NO_SPANS,
    (Found.UNRECORDED, _T): _NO_SPANS,
    (Found.UNRECORDED, _S): _NO_SPANS,
    (Found.EXPIRED, _T): _NO_SPANS,
    (Found.EXPIRED, _S): _NO_SPANS,
    (Found.EXPIRED, _P): _NEVER_EXPIRES,
    (Found.EXPIRED, _O): "there is no key: an open span is in doubt at once",
}


class Remedy(StrEnum):
    """What happens to an event in doubt."""

    PARK = "park"  # held, its entity blocked
    SEND = "send"  # sent again
    PASS = "pass"  # recorded, never sent again
    PARK_AND_STOP = "park and stop"
    ASK = "ask"  # the user's function returns arrived, not arrived, or unknown (then it is parked)


@dataclass(frozen=True, slots=True)
class DoubtRule:
    """The remedy of a policy, and whether to wait first until a zombie's last call has ended."""

    remedy: Remedy
    waits: bool


DOUBT: dict[OnDoubt, DoubtRule] = {
    OnDoubt.HOLD: DoubtRule(Remedy.PARK, waits=False),
    OnDoubt.SKIP: DoubtRule(Remedy.PASS, waits=False),
    OnDoubt.STOP: DoubtRule(Remedy.PARK_AND_STOP, waits=False),
    OnDoubt.RESEND: DoubtRule(Remedy.SEND, waits=True),
    OnDoubt.PROBE: DoubtRule(Remedy.ASK, waits=True),
}
