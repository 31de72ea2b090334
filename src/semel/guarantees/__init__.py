"""Explains what a pipeline guarantees and what it costs."""
