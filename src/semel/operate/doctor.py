"""The doctor: checks that this machine has what a pipeline needs, and what to install if not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from semel.operate.checks import Check, Health, check_clock, check_disk
from semel.operate.ledger_checks import check_ledger_url

if TYPE_CHECKING:
    from collections.abc import Iterator

JAVA = 17
PYTHON = (3, 11)
PYARROW = (18,)
PANDAS, PANDAS_BELOW = (2, 2), (3,)
EXTRAS = (
    ("psycopg", "postgres", (3, 2), "the ledger or a sink is in PostgreSQL"),
    ("uvloop", "http", (0, 21), "a sink is Http"),
    ("httptools", "http", (0, 6, 2), "a sink is Http"),
    ("redis", "redis", (6,), "a sink is Redis"),
    ("confluent-kafka", "kafka", (2, 6), "a sink is Kafka"),
    ("pydantic", "pipeline", (2, 6), "a pipeline is a file"),
    ("starlette", "ingress", (0, 46), "this machine runs semel ingest"),
    ("uvicorn", "ingress", (0, 34), "this machine runs semel ingest"),
    ("greenlet", "simulate", (3, 1), "this machine runs semel simulate"),
)
CONNECT = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")

_JAVA_TIMEOUT_S = 30
_JAVA_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def diagnose(ledger: str | None) -> list[Check]:
    """Check Python, Java, Spark, the extras, the ledger, the clock and the disk. Nothing is
    written, and no server but the ledger's is called.
    """
    return [
        check_python(),
        check_java(),
        *check_packages(),
        *check_extras(ledger),
        check_connect(),
        check_state(),
        *check_ledger_url(ledger),
        check_clock(),
        check_disk("temporary files", _temporary()),
    ]


def check_python() -> Check:
    """Check the interpreter that runs this."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < PYTHON:
        return Check("Python", found, Health.MISSING, "install Python 3.11 or later")
    if sys.flags.optimize:
        do = "run it without -O and PYTHONOPTIMIZE: they remove checks of the protocol"
        return Check("Python", f"{found} with -O", Health.WARNING, do)
    return Check("Python", found)


def check_java() -> Check:
    """Check the Java that Spark would start: from JAVA_HOME, else from the PATH."""
    do = f"install Java {JAVA} or later, or set JAVA_HOME; a Spark Connect client needs no Java"
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        place = f"no {java}" if java else "no java in PATH, no JAVA_HOME"
        return Check("Java", place, Health.MISSING, do)
    try:
        ran = subprocess.run(  # noqa: S603 - the very program that Spark would start
            [java, "-version"], capture_output=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", f"{java} does not run: {error}", Health.MISSING, do)
    answer = (ran.stderr + ran.stdout).decode(errors="replace")
    number = _JAVA_VERSION.search(answer)
    if number is None:
        return Check("Java", f"{java} prints no version", Health.UNKNOWN, do)
    major = int(number[2] or 0) if number[1] == "1" else int(number[1])
    found = f"{major} ({java})"
    return Check("Java", found) if major >= JAVA else Check("Java", found, Health.MISSING, do)


def check_packages() -> Iterator[Check]:
    """Check PySpark and the packages with which it passes columns to Python."""
    spark = next(
        filter(None, map(_version, ("pyspark", "pyspark-connect", "pyspark-client"))), None
    )
    yield _check_spark(spark)
    pandas = _version("pandas")
    if pandas is not None and _numbers(pandas) >= PANDAS_BELOW:
        do = "pip install 'pandas<3': PySpark warns about later versions"
        yield Check("pandas", pandas, Health.WARNING, do)
    else:
        yield _package("pandas", pandas, PANDAS, "pip install 'pandas>=2.2,<3'")
    yield _package("PyArrow", _version("pyarrow"), PYARROW, "pip install 'pyarrow>=18'")


def _check_spark(found: str | None) -> Check:
    """Check that semel runs on this PySpark, and which features it lacks."""
    from semel.spark import versions

    check = _package("PySpark", found, versions.OLDEST, "pip install 'semel[spark]'")
    if found is None or check.health is not Health.OK:
        return check
    if versions.lacks_distutils(found):
        do = "pip install setuptools: this PySpark needs distutils, which Python 3.12 removed"
        return Check("PySpark", found, Health.MISSING, do)
    if versions.numbers(found) > versions.NEWEST:
        newest = ".".join(map(str, versions.NEWEST))
        do = f"no action needed if it works: semel is tested up to PySpark {newest}"
        return Check("PySpark", found, Health.WARNING, do)
    absent = [each.name for each in versions.absent(found)]
    without = f" (without {', '.join(absent)})" if absent else ""
    return Check("PySpark", f"{found}{without}")


def check_extras(ledger: str | None) -> Iterator[Check]:
    """Check packages that only some pipelines need: the client of a ledger or a sink."""
    for package, extra, least, use in EXTRAS:
        found, do = _version(package), f"pip install 'semel[{extra}]'"
        needed = extra == "postgres" and (ledger or "").startswith("postgresql:")
        if found is not None or needed:
            yield _package(package, found, least, do)
        else:
            only = f"only if {use}: {do}"
            yield Check(package, "not installed", Health.WARNING, only)


def check_connect() -> Check:
    """Check the packages of a Spark Connect client."""
    absent = [name for name in CONNECT if _version(name) is None]
    if not absent:
        return Check("Spark Connect", ", ".join(f"{name} {_version(name)}" for name in CONNECT))
    do = "only if Spark Connect is used: pip install 'semel[connect]'"
    return Check("Spark Connect", f"not installed: {', '.join(absent)}", Health.WARNING, do)


def check_state() -> Check:
    """Check where a session of the user's own keeps the state of queries: the active session of
    this process, else one that spark-defaults.conf describes. Sessions of semel use RocksDB with
    changelogs.
    """
    from semel.spark import session

    what, own = "state of queries", "make_session: RocksDB with changelogs"
    try:
        place, settings = session.state_settings()
    except (OSError, UnicodeDecodeError) as error:
        return Check(what, str(error), Health.UNKNOWN, "make spark-defaults.conf readable")
    provider = settings.get(session.PROVIDER, "")
    if provider == session.ROCKSDB and settings.get(session.CHANGELOG, "").lower() == "true":
        return Check(what, f"{place}: RocksDB with changelogs; {own}")
    if provider == session.ROCKSDB:
        do = "no action needed if each micro-batch is meant to write a full snapshot; else set "
        do += f"{session.CHANGELOG}=true"
        return Check(what, f"{place}: RocksDB with full snapshots; {own}", Health.WARNING, do)
    in_memory = not provider or provider.endswith(".HDFSBackedStateStoreProvider")
    found = "in memory (Spark's default)" if in_memory else provider
    do = (
        "only if a query keeps state: before its first start, set "
        f"{session.PROVIDER}={session.ROCKSDB} and {session.CHANGELOG}=true"
    )
    return Check(what, f"{place}: {found}; {own}", Health.WARNING, do)


def _package(what: str, found: str | None, least: tuple[int, ...], do: str) -> Check:
    if found is None:
        return Check(what, "not installed", Health.MISSING, do)
    return (
        Check(what, found) if _numbers(found) >= least else Check(what, found, Health.MISSING, do)
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(written: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 3, 0) for `4.3.0.dev1`."""
    leading = re.match(r"\d+(?:\.\d+)*", written)
    return tuple(map(int, leading[0].split("."))) if leading else ()


def _temporary() -> Path:
    """Return where Spark spills: its first local directory, else the system's default."""
    first = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return Path(first or tempfile.gettempdir())
