"""Where it goes: what a sink and a session are, and the sinks that come with semel."""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from semel.sinks.files import Files
    from semel.sinks.http import Http
    from semel.sinks.kafka import Kafka
    from semel.sinks.postgres import Postgres
    from semel.sinks.redis import Redis

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

# Imported when first asked for: a worker starts with the sink that it needs.
_HOMES = {
    "Files": "semel.sinks.files",
    "Http": "semel.sinks.http",
    "Kafka": "semel.sinks.kafka",
    "Postgres": "semel.sinks.postgres",
    "Redis": "semel.sinks.redis",
}


def __getattr__(name: str) -> object:
    """Import the sink that a name stands for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'semel.sinks' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Name what there is, imported or not."""
    return sorted({*globals(), *__all__})
