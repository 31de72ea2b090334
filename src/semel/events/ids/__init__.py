"""Sets of event ids, kept on columns."""
