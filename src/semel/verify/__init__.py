"""Verification: simulated worlds, the contract suites of sinks and stores, and a demo on Spark."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.contract import SinkContract

__all__ = ["SinkContract"]


def __getattr__(name: str) -> object:
    """Import the class when it is first used: the pytest plugin imports nothing heavy."""
    if name != "SinkContract":
        raise AttributeError(f"module 'semel.verify' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.contract"), name)
