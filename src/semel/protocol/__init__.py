"""The states, capabilities and RESUME table of the protocol: it decides and never acts."""

from semel.protocol.resume import DOUBT, IMPOSSIBLE, RESUME, Action, DoubtRule, Remedy, Rule
from semel.protocol.states import (
    Capability,
    DoubtWord,
    Fault,
    Found,
    Judgement,
    OnDoubt,
    OnReject,
    Outstanding,
    ParkedState,
    PartitionState,
    RejectWord,
    SpanState,
    outstanding,
)

__all__ = [
    "DOUBT",
    "IMPOSSIBLE",
    "RESUME",
    "Action",
    "Capability",
    "DoubtRule",
    "DoubtWord",
    "Fault",
    "Found",
    "Judgement",
    "OnDoubt",
    "OnReject",
    "Outstanding",
    "ParkedState",
    "PartitionState",
    "RejectWord",
    "Remedy",
    "Rule",
    "SpanState",
    "outstanding",
]
