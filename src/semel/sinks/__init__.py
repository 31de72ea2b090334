"""The sinks that come with semel, and what a sink of your own is made of."""

# `__all__` is public. The other names are for the rooms of semel, and may change.

from importlib import import_module
from typing import TYPE_CHECKING

from semel.events import Chunk
from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks.callables import Retry
from semel.sinks.callables import Unclassified as Unclassified
from semel.sinks.callables import checked_session as checked_session
from semel.sinks.callables import is_programming as is_programming
from semel.sinks.callables import left_to_run as left_to_run
from semel.sinks.function import Function, sink
from semel.sinks.progress import Progress, Tail
from semel.sinks.progress import lost as lost
from semel.sinks.sink import (
    DELIVERED,
    AnySession,
    Ended,
    EndedPart,
    ProbingSession,
    Receipt,
    SequencedSession,
    Session,
    Sink,
    Target,
    TransactionalSession,
    WholeSession,
)
from semel.sinks.sink import with_methods as with_methods
from semel.sinks.validation import checked_words as checked_words

if TYPE_CHECKING:
    from semel.sinks.files import Files, Loader, Manifest
    from semel.sinks.files.audit_log import AUDIT_SCHEMA as AUDIT_SCHEMA
    from semel.sinks.files.audit_log import AuditLog as AuditLog
    from semel.sinks.files.audit_log import AuditRecord as AuditRecord
    from semel.sinks.files.audit_log import day_of as day_of
    from semel.sinks.files.audit_log import days_ago as days_ago
    from semel.sinks.files.audit_log import event_text as event_text
    from semel.sinks.files.audit_log import event_texts as event_texts
    from semel.sinks.http import Basic, Bearer, Certificate, Http
    from semel.sinks.kafka import Kafka
    from semel.sinks.kafka.producer import ClientLog as ClientLog
    from semel.sinks.kafka.producer import ErrorText as ErrorText
    from semel.sinks.kafka.producer import client_library as client_library
    from semel.sinks.kafka.producer import no_such_config as no_such_config
    from semel.sinks.kafka.topics import Topics as Topics
    from semel.sinks.postgres import Postgres, PostgresLoad
    from semel.sinks.redis import Redis

# Public. The other names that are imported here are for other rooms of semel, and may change.
__all__ = [
    "DELIVERED",
    "AnySession",
    "Basic",
    "Bearer",
    "Capability",
    "Certificate",
    "Chunk",
    "Ended",
    "EndedPart",
    "Files",
    "Function",
    "Http",
    "Kafka",
    "Loader",
    "Manifest",
    "OnDoubt",
    "OnReject",
    "Postgres",
    "PostgresLoad",
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

# Imported at the first access: a worker loads only the sink that it needs.
_HOMES = {
    "Basic": "semel.sinks.http",
    "Bearer": "semel.sinks.http",
    "Certificate": "semel.sinks.http",
    "ClientLog": "semel.sinks.kafka.producer",
    "ErrorText": "semel.sinks.kafka.producer",
    "Files": "semel.sinks.files",
    "Http": "semel.sinks.http",
    "Kafka": "semel.sinks.kafka",
    "Loader": "semel.sinks.files",
    "Manifest": "semel.sinks.files",
    "Postgres": "semel.sinks.postgres",
    "PostgresLoad": "semel.sinks.postgres",
    "Redis": "semel.sinks.redis",
    "Topics": "semel.sinks.kafka.topics",
    **dict.fromkeys(
        (
            "AUDIT_SCHEMA",
            "AuditLog",
            "AuditRecord",
            "day_of",
            "days_ago",
            "event_text",
            "event_texts",
        ),
        "semel.sinks.files.audit_log",
    ),
    "client_library": "semel.sinks.kafka.producer",
    "no_such_config": "semel.sinks.kafka.producer",
}


def __getattr__(name: str) -> object:
    """Import a sink by its public name."""
    if name not in _HOMES:
        raise AttributeError(f"module 'semel.sinks' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List all public names, imported or not."""
    return sorted({*globals(), *__all__})
