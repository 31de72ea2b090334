"""Chaos: a Spark cluster and real servers under a seeded schedule of faults, and what came of it.

Importing a name imports its module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.chaos.checker import (
        ParkedFact,
        ProducedEvent,
        SinkEvidence,
        WitnessedEffect,
        judge_sink,
        recovery_times,
    )
    from semel.verify.chaos.page import write_page
    from semel.verify.chaos.report import ChaosReport, SinkResult, TimedFault
    from semel.verify.chaos.run import ChaosRun
    from semel.verify.chaos.schedule import KINDS, ScheduledFault, plan_faults

__all__ = [
    "KINDS",
    "ChaosReport",
    "ChaosRun",
    "ParkedFact",
    "ProducedEvent",
    "ScheduledFault",
    "SinkEvidence",
    "SinkResult",
    "TimedFault",
    "WitnessedEffect",
    "judge_sink",
    "plan_faults",
    "recovery_times",
    "write_page",
]

_HOMES = {
    "KINDS": "schedule",
    "ChaosReport": "report",
    "ChaosRun": "run",
    "ScheduledFault": "schedule",
    "SinkResult": "report",
    "TimedFault": "report",
    "plan_faults": "schedule",
    "write_page": "page",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'semel.verify.chaos' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'checker')}"), name)
