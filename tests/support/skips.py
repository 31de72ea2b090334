"""On CI nothing is left out: with `CI=true` a skipped test fails, but for those listed here.

Elsewhere a skip is shown at the end with its reason (`-ra`).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

MAY_BE_SKIPPED = {
    "tests/sinks/test_files_hdfs_real.py": "no registry has libhdfs.so, which a real HDFS needs",
}
"""The beginning of a test's name, and why it may be skipped on CI too."""


OLDER_SPARK = "needs PySpark "
"""How the reason begins where an older PySpark lacks something
(support/spark/version_needs.py); the newest, which the whole suite runs on, lacks nothing.
"""


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr
    return told[2] if isinstance(told, tuple) else str(told)


def _left_out(report: pytest.TestReport | pytest.CollectReport) -> bool:
    may = any(report.nodeid.startswith(name) for name in MAY_BE_SKIPPED)
    may = may or _why(report).removeprefix("Skipped: ").startswith(OLDER_SPARK)
    expected_to_fail = hasattr(report, "wasxfail")
    return report.skipped and os.environ.get("CI") == "true" and not may and not expected_to_fail


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _left_out(report):
        why = _why(report)
        report.outcome = "failed"
        report.longrepr = (
            f"on CI nothing is left out, but for what tests/support/skips.py lists: {why}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, pytest.TestReport]:
    """A test, or what it asked for, was skipped."""
    report: pytest.TestReport = yield
    _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, pytest.CollectReport]:
    """A whole file was skipped."""
    report: pytest.CollectReport = yield
    _fail(report)
    return report
