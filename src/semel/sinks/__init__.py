"""Where it goes: what a sink and a session are, and the sinks that come with semel."""

from semel.events import Chunk
from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks.function import Function, sink
from semel.sinks.progress import Progress, Tail
from semel.sinks.retry import Retry
from semel.sinks.sink import (
    DELIVERED,
    AnySession,
    ProbingSession,
    Receipt,
    SequencedSession,
    Session,
    Sink,
    Target,
    TransactionalSession,
    WholeSession,
)

__all__ = [
    "DELIVERED",
    "AnySession",
    "Capability",
    "Chunk",
    "Function",
    "OnDoubt",
    "OnReject",
    "ProbingSession",
    "Progress",
    "Receipt",
    "Retry",
    "SequencedSession",
    "Session",
    "Sink",
    "Tail",
    "Target",
    "TransactionalSession",
    "WholeSession",
    "sink",
]
