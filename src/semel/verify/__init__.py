"""Verification: simulated worlds, the contract suite for sinks, and the demo on real Spark."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.contract import SinkContract
    from semel.verify.simulator import (
        Assessment,
        Case,
        Category,
        Evidence,
        Summary,
        Variant,
        Verdict,
        Violation,
        WorldResult,
        judge,
        run_world,
        run_worlds,
    )

__all__ = [
    "Assessment",
    "Case",
    "Category",
    "Evidence",
    "SinkContract",
    "Summary",
    "Variant",
    "Verdict",
    "Violation",
    "WorldResult",
    "judge",
    "run_world",
    "run_worlds",
]


def __getattr__(name: str) -> object:
    """Import a name when it is first used: the pytest plugin imports nothing heavy."""
    if name not in __all__:
        raise AttributeError(f"module 'semel.verify' has no attribute {name!r}")
    home = "contract" if name == "SinkContract" else "simulator"
    return getattr(import_module(f"{__name__}.{home}"), name)
