"""What tests on Spark need of its version: one table, and the end of a run lists who went without.

`@pytest.mark.needs("collations")` on a test, or `require("positions")` in the middle of it.
"""

from __future__ import annotations

import pytest

from semel.spark.versions import installed, numbers

NEEDS: dict[str, tuple[tuple[int, int], str]] = {
    "connect": ((4, 0), "Spark Connect, which is refused before (test_versions.py)"),
    "collations": ((4, 0), "texts with a collation, which Spark has not before"),
    "quiet": ((4, 2), "a PySpark that gives no cause for warnings by itself"),
    "streaming.runtime": ((4, 1), "the package of Spark's own class that runs a query"),
    "toArrow": ((4, 0), "DataFrame.toArrow, by which this test reads"),
    "pandas state": (
        (4, 0),
        "an applyInPandasWithState that PyArrow 26 does not break (docs/spark-versions.md)",
    ),
    "sources": ((4, 0), "sources written in Python"),
    "markers": (
        (4, 2),
        "limits for a source in Python, with which these tests make several micro-batches",
    ),
    "transformWithState": ((4, 1), "transformWithState over rows, and state that can be read"),
    "positions": (
        (4, 2),
        "a Python source with a limit for each micro-batch (test_kafka.py has Kafka's positions)",
    ),
}


def has(what: str) -> bool:
    """Whether this PySpark has it."""
    return numbers(installed()) >= NEEDS[what][0]


def reason(what: str) -> str:
    (major, minor), why = NEEDS[what]
    return f"needs PySpark {major}.{minor}, and this is {installed()}: {why}"


def require(what: str) -> None:
    """End the test here where this PySpark has it not."""
    if not has(what):
        pytest.skip(reason(what))


def not_skipped(report: pytest.TestReport) -> pytest.TestReport:
    """Give the report of a smoke test: skipped is failed."""
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"a smoke test was skipped: {report.longrepr}"
    return report
