"""What was done: the verbs by subject, the journal, and the store with its implementations."""

from semel.ledger.client import LedgerClient
from semel.ledger.inspect.ledger import Ledger
from semel.ledger.inspect.trace import Trace
from semel.ledger.store.opening import open_store

__all__ = ["Ledger", "LedgerClient", "Trace", "open_store"]
