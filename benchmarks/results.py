"""Results of benchmarks: each finished run is kept as JSON with what it ran on.

Always true: a kept result has the date, the machine (cores, memory, CPU model), the versions and
the commit; it has no host name, no user name and no path.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import semel
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")


def describe(name: str, arguments: Mapping[str, int], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as it is printed and kept: what was measured, when, and on what."""
    now = datetime.fromtimestamp(SystemClock().wall(), UTC)
    return {
        "benchmark": name,
        "date": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "arguments": dict(arguments),
        "machine": machine(),
        "versions": versions(),
        **commit(),
        **found,
    }


def keep(result: Mapping[str, Any], folder: Path) -> Path:
    """Write a result to NAME-DATE.json in `folder`; a second one of a day is NAME-DATE-2.json."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{result['benchmark']}-{result['date'][:10]}"
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def machine() -> dict[str, Any]:
    """The cores this process may use, the memory in GiB and the model of the CPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "cpu": _cpu(),
    }


def versions() -> dict[str, str | None]:
    """The versions of Python, PySpark, PyArrow and semel; None for one that is not installed."""
    return {
        "python": platform.python_version(),
        "pyspark": _installed("pyspark"),
        "pyarrow": _installed("pyarrow"),
        "semel": semel.__version__,
    }


def commit() -> dict[str, Any]:
    """The commit of the checkout, and whether its source differs from it; None without git."""
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "benchmarks/*.py", "tests/support")
    return {"commit": head, "changed": None if changed is None else bool(changed)}


def _git(*arguments: str) -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [git, "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return None if done.returncode else done.stdout.strip()


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str | None:
    """The model of the CPU as Linux names it, else as Python does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or None
