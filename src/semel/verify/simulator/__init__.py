"""Simulated worlds: the real protocol on a simulated store, destination, clock and cluster.

Importing a name imports its module; most of them need greenlet (the extra `simulate`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.simulator.cases import Case, Variant
    from semel.verify.simulator.checker import (
        Assessment,
        Category,
        Evidence,
        Verdict,
        Violation,
        judge,
    )
    from semel.verify.simulator.worlds import (
        Summary,
        Tally,
        WorldResult,
        run_world,
        run_worlds,
        world_seed,
    )

__all__ = [
    "Assessment",
    "Case",
    "Category",
    "Evidence",
    "Summary",
    "Tally",
    "Variant",
    "Verdict",
    "Violation",
    "WorldResult",
    "judge",
    "run_world",
    "run_worlds",
    "world_seed",
]

_HOMES = {
    "Assessment": "checker",
    "Case": "cases",
    "Category": "checker",
    "Evidence": "checker",
    "Summary": "worlds",
    "Tally": "worlds",
    "Variant": "cases",
    "Verdict": "checker",
    "Violation": "checker",
    "WorldResult": "worlds",
    "judge": "checker",
    "run_world": "worlds",
    "run_worlds": "worlds",
    "world_seed": "worlds",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'semel.verify.simulator' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
