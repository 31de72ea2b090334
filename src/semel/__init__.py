"""Exactly-once delivery from Spark Structured Streaming to destinations that cannot undo an effect.

A name is imported when it is first used: a program that uses a part of semel loads only that part.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel import errors, sinks
    from semel.delivery import JsonLogs
    from semel.errors import (
        ConfigurationError,
        DeliveryError,
        Diverged,
        EventRefused,
        EventsParked,
        EventTooLarge,
        Fenced,
        HeldInDoubt,
        LedgerError,
        LedgerUnavailable,
        MissingExtra,
        NotDelivered,
        OutcomeUnknown,
        RangeUnavailable,
        Rejected,
        RepeatDiffers,
        SemelError,
        SinkBroken,
        StopRequested,
    )
    from semel.events import Event, by_directory, by_range
    from semel.guarantees import explain
    from semel.ledger import Ledger
    from semel.sinks import sink
    from semel.spark import stop
    from semel.spark.deliver import deliver, deliver_batch
    from semel.streams import INBOX_SCHEMA, Inbox, NewEvent

__version__ = "0.4.0"

__all__ = [
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
    "JsonLogs",
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
    "StopRequested",
    "by_directory",
    "by_range",
    "deliver",
    "deliver_batch",
    "errors",
    "explain",
    "sink",
    "sinks",
    "stop",
]

_HOMES = {
    "INBOX_SCHEMA": "semel.streams",
    "Event": "semel.events",
    "by_directory": "semel.events",
    "by_range": "semel.events",
    "Inbox": "semel.streams",
    "JsonLogs": "semel.delivery",
    "Ledger": "semel.ledger",
    "NewEvent": "semel.streams",
    "deliver": "semel.spark",
    "deliver_batch": "semel.spark",
    "explain": "semel.guarantees",
    "sink": "semel.sinks",
    "stop": "semel.spark",
}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name in ("errors", "sinks"):
        return import_module(f"semel.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES.get(name, "semel.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Name what there is, imported or not."""
    return sorted({*globals(), *__all__})
