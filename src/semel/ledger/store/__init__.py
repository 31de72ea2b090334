"""Where the ledger keeps its rows: the interface, commits as data, and the stores."""

from semel.ledger.store.commit import (
    Absent,
    Conflict,
    Delete,
    Equals,
    Key,
    Payload,
    Put,
    Requirement,
    Store,
    Sweep,
    Update,
)

__all__ = [
    "Absent",
    "Conflict",
    "Delete",
    "Equals",
    "Key",
    "Payload",
    "Put",
    "Requirement",
    "Store",
    "Sweep",
    "Update",
]
