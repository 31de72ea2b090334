"""Exactly-once delivery from Spark Structured Streaming to what cannot take a thing back."""

from semel import errors, sinks
from semel.delivery.explaining import explain
from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Diverged,
    Fenced,
    HeldInDoubt,
    LedgerError,
    LedgerUnavailable,
    MissingExtra,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
)
from semel.events import Event
from semel.ledger import Ledger
from semel.sinks import sink
from semel.spark import deliver, deliver_batch

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "DeliveryError",
    "Diverged",
    "Event",
    "Fenced",
    "HeldInDoubt",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "MissingExtra",
    "NotDelivered",
    "OutcomeUnknown",
    "Rejected",
    "SemelError",
    "deliver",
    "deliver_batch",
    "errors",
    "explain",
    "sink",
    "sinks",
]
