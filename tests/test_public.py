"""The public surface fits on one page, and this is the page."""

from __future__ import annotations

import semel
from semel import sinks

PUBLIC = [
    "INBOX_SCHEMA",
    "ConfigurationError",
    "DeliveryError",
    "Diverged",
    "Event",
    "EventRefused",
    "EventTooLarge",
    "EventsParked",
    "Fenced",
    "HeldInDoubt",
    "Inbox",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "MissingExtra",
    "NewEvent",
    "NotDelivered",
    "OutcomeUnknown",
    "RangeUnavailable",
    "Rejected",
    "RepeatDiffers",
    "SemelError",
    "SinkBroken",
    "by_directory",
    "by_range",
    "deliver",
    "deliver_batch",
    "errors",
    "explain",
    "sink",
    "sinks",
]

SINKS = [
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


def test_the_public_names_are_these() -> None:
    assert semel.__all__ == PUBLIC
    assert all(hasattr(semel, name) for name in PUBLIC)


def test_what_an_author_of_sinks_needs_is_this() -> None:
    assert sinks.__all__ == SINKS
    assert all(hasattr(sinks, name) for name in SINKS)
