"""Where it goes: what a sink and a session are, and the sinks that come with semel."""

from semel.events import Chunk
from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks.files import Files
from semel.sinks.function import Function, sink
from semel.sinks.http import Http
from semel.sinks.kafka import Kafka
from semel.sinks.postgres import Postgres
from semel.sinks.progress import Progress, Tail
from semel.sinks.redis import Redis
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
    "Files",
    "Function",
    "Http",
    "Kafka",
    "OnDoubt",
    "OnReject",
    "Postgres",
    "ProbingSession",
    "Progress",
    "Receipt",
    "Redis",
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
