"""Whether it is true: the real protocol in simulated worlds, with every fault we can think of."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.simulator.cases import Case, Variant
    from semel.verify.simulator.checker import (
        Category,
        Evidence,
        Judgement,
        Verdict,
        Violation,
        judge,
    )
    from semel.verify.simulator.worlds import Outcome, Summary, run_world, run_worlds

__all__ = [
    "Case",
    "Category",
    "Evidence",
    "Judgement",
    "Outcome",
    "Summary",
    "Variant",
    "Verdict",
    "Violation",
    "judge",
    "run_world",
    "run_worlds",
]

_HOMES = {
    "semel.verify.simulator.cases": ("Case", "Variant"),
    "semel.verify.simulator.checker": (
        "Category",
        "Evidence",
        "Judgement",
        "Verdict",
        "Violation",
        "judge",
    ),
    "semel.verify.simulator.worlds": ("Outcome", "Summary", "run_world", "run_worlds"),
}


def __getattr__(name: str) -> object:
    """Import what a name stands for when it is first asked for: the pytest plugin needs none."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'semel.verify' has no attribute {name!r}")
