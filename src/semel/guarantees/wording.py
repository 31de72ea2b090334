"""The texts of the guarantee: what each capability, policy and memory means to a user."""

from __future__ import annotations

from semel.events import Memory
from semel.protocol import Capability, OnDoubt, OnReject

BECAUSE = {
    Capability.TRANSACTIONAL: "the destination commits semel's progress row together with the "
    "effect.",
    Capability.SEQUENCED: "the destination returns the last output sequence number of its log, and "
    "refuses a writer that was replaced.",
    Capability.REPEATABLE: "the destination absorbs a repeat that carries the same key.",
    Capability.PROBING: "the destination can be asked whether a call arrived.",
    Capability.OPAQUE: "the destination can neither be asked, nor absorb a repeat, nor commit "
    "semel's progress row.",
}
ASKED = (
    "the destination neither absorbs a repeat nor commits semel's progress row. Your probe is "
    "asked about each event that may have arrived."
)
AFTER_A_CRASH = {
    Capability.TRANSACTIONAL: "exactly once. The progress row shows what is done.",
    Capability.SEQUENCED: "exactly once, in order. The log shows what is done.",
    Capability.REPEATABLE: "one effect. Events that may have been sent are sent again under the "
    "same key, and absorbed.",
    Capability.PROBING: "exactly once. semel asks first about events that may have been sent.",
    Capability.OPAQUE: "nothing twice and nothing lost without a record of it. No protocol can "
    "distinguish 'sent, reply lost' from 'not sent' here, so such events are in doubt.",
}
AFTER_A_ZOMBIE = {
    Capability.TRANSACTIONAL: "exactly once. The progress row names the attempt that may write.",
    Capability.SEQUENCED: "exactly once. The destination refuses it.",
    Capability.REPEATABLE: "one effect. The destination absorbs what it sends.",
    Capability.PROBING: "at most its call in flight arrives twice, if that ends after its deadline "
    "of {deadline:g} s; this is reported (state `late`).",
}
_RECORDED = (
    "its events were recorded in doubt when it was replaced; semel does not send them again by "
    "itself."
)
AFTER_AN_OPAQUE_ZOMBIE = {
    OnDoubt.HOLD: _RECORDED,
    OnDoubt.SKIP: f"{_RECORDED} A call in flight may arrive after later events of its entity.",
    OnDoubt.STOP: _RECORDED,
    OnDoubt.RESEND: "as after a crash: semel waits lease and deadline ({wait:g} s) before it sends "
    "its events again; a call that ends later than that is reported (state `late`).",
    OnDoubt.PROBE: "semel waits lease and deadline ({wait:g} s) before it asks your probe; only "
    "a call that ends later than that may arrive twice, and it is reported (state `late`).",
}
ON_DOUBT = {
    OnDoubt.HOLD: "it is parked with its payload{wait}, all others continue, and a person decides: "
    "semel resolve EVENT delivered|resend|discard.",
    OnDoubt.RESEND: "it is sent again, so it may arrive twice; that is recorded.",
    OnDoubt.SKIP: "it is recorded and never sent again, so it may not have arrived.",
    OnDoubt.STOP: "it is parked and the pipeline stops until a person has decided: semel resolve "
    "EVENT delivered|resend|discard.",
    OnDoubt.PROBE: "your probe is asked whether it arrived; if it does not know, the event is "
    "parked for a person{wait}.",
}
ON_REJECT = {
    OnReject.PARK: "an event that the destination refuses is parked as a dead letter, alone, and "
    "its entity continues.",
    OnReject.BLOCK: "an event that the destination refuses is parked as a dead letter, alone, and "
    "later events of its entity wait for a person's decision.",
}

REJECTED_WHOLE = "nothing is parked: an event that cannot be written stops the whole query."

AFTER_A_LOST_CHECKPOINT = {
    Memory.POSITIONS: "nothing is repeated. The ledger knows up to which offset of each source "
    "partition every event is handled, and recognises the event there. {gap} A recreated topic "
    "{recreated}.",
    Memory.HIGHEST_IDS: "nothing is repeated. The ledger knows the greatest id of each entity, and "
    "every delivery checks that ids only increase.",
    Memory.ALL_IDS: "nothing is repeated of the last {remembered}, for which ids are remembered. "
    "Older input stops the pipeline until it is accepted with accept_gap=True.",
    Memory.NOTHING: "refused. Counted ids restart with a new checkpoint, so semel could not "
    "distinguish delivered events from new ones: restore the checkpoint, or start under a new "
    "name.",
}
DROPS_REPEATS = {
    Memory.HIGHEST_IDS: " An event whose id is not greater than the last one of its entity is "
    "dropped and counted, a late event too (drop_repeats).",
    Memory.ALL_IDS: " An event whose id came in an earlier minibatch of the last {remembered} is "
    "dropped and counted (drop_repeats).",
}
_TWO_EVENTS = (
    "A producer that writes the same record {again} in two minibatches creates two events: "
)
_BY_SPARK = "drop them with Spark's dropDuplicatesWithinWatermark."
REPEATS_OF_A_SINK = (
    _TWO_EVENTS.format(again="twice") + "pass drop_repeats=True to semel.deliver if the repeat has "
    "the same id; otherwise " + _BY_SPARK
)
REPEATS = {
    Memory.POSITIONS: _TWO_EVENTS.format(again="twice") + _BY_SPARK,
    Memory.HIGHEST_IDS: "A producer that writes an id twice in two minibatches stops the pipeline "
    "(Diverged), because ids were declared increasing: pass drop_repeats=True to drop repeats.",
    Memory.ALL_IDS: _TWO_EVENTS.format(again="under the same id")
    + "pass drop_repeats=True, or "
    + _BY_SPARK,
    Memory.NOTHING: _TWO_EVENTS.format(again="twice") + _BY_SPARK,
}
DROPPED_REPEATS = {
    Memory.HIGHEST_IDS: "A producer that writes the same record again under a greater id creates "
    "two events.",
    Memory.ALL_IDS: "A producer that writes the same record again under another id, or after its "
    "id is forgotten ({remembered}), creates two events.",
}
GAP_ACCEPTED = "Input that does not continue there is accepted (accept_gap)."
GAP_REFUSED = (
    "Input that does not continue there stops the pipeline until it is accepted with "
    "accept_gap=True."
)
