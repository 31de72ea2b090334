"""Where the ledger keeps its rows: the interface, commits as data, and what stores share.

A store in another package needs these names, and `LedgerUnavailable` of `semel.errors`.
"""

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
from semel.ledger.store.opening import PAGE_ROWS, Arranged, arrange, beyond, open_store, paged

__all__ = [
    "PAGE_ROWS",
    "Absent",
    "Arranged",
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
    "arrange",
    "beyond",
    "open_store",
    "paged",
]
