"""Shows the pipelines of a ledger in a browser, and records decisions about parked events."""

from semel.console.server import PORT, ConsoleSettings, serve

__all__ = ["PORT", "ConsoleSettings", "serve"]
