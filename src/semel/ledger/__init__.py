"""What was done: the verbs by subject, the journal, and the store with its implementations."""

from semel.ledger.reading import Ledger
from semel.ledger.scribe import Scribe
from semel.ledger.stores import open_store
from semel.ledger.tracing import Trace

__all__ = ["Ledger", "Scribe", "Trace", "open_store"]
