"""Shows a running pipeline to the outside: metrics, traces and alerts."""

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
