"""What to do: states, capabilities and the RESUME table, which decides and never acts."""

from semel.protocol.capabilities import Capability, OnDoubt, OnReject
from semel.protocol.resume import DOUBT, IMPOSSIBLE, RESUME, Action, DoubtRule, Remedy, Rule
from semel.protocol.sequence import Outstanding, outstanding
from semel.protocol.states import Found, Judgement, ParkedState, PartitionState, SpanState

__all__ = [
    "DOUBT",
    "IMPOSSIBLE",
    "RESUME",
    "Action",
    "Capability",
    "DoubtRule",
    "Found",
    "Judgement",
    "OnDoubt",
    "OnReject",
    "Outstanding",
    "ParkedState",
    "PartitionState",
    "Remedy",
    "Rule",
    "SpanState",
    "outstanding",
]
