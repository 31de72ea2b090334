"""Shows a running pipeline to the outside: metrics, traces and alerts."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.monitoring.alerts import Alert
    from semel.monitoring.catalogue import (
        FILES,
        METRICS,
        Distribution,
        Metric,
        MetricKind,
        Sample,
        write_files,
    )
    from semel.monitoring.exposition import text_of
    from semel.monitoring.monitor import Monitor, Monitoring

__all__ = [
    "FILES",
    "METRICS",
    "Alert",
    "Distribution",
    "Metric",
    "MetricKind",
    "Monitor",
    "Monitoring",
    "Sample",
    "text_of",
    "write_files",
]

_HOMES = {"Alert": "alerts", "Monitor": "monitor", "Monitoring": "monitor", "text_of": "exposition"}


def __getattr__(name: str) -> object:
    """Import what a name stands for."""
    if name not in __all__:
        raise AttributeError(f"module 'semel.monitoring' has no attribute {name!r}")
    home = import_module(f"semel.monitoring.{_HOMES.get(name, 'catalogue')}")
    found: object = getattr(home, name)
    globals()[name] = found
    return found
