"""Sets of event ids, stored as columns."""
