"""Test a pipeline without Spark: deliver rows, crash it at every step, see what became of them."""

from semel.testing.pipeline import PipelineUnderTest
from semel.testing.world import CrashOutcome

__all__ = ["CrashOutcome", "PipelineUnderTest"]
