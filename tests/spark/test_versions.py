"""What is otherwise from one version of PySpark to the next, below Spark: salts, and refusals."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyspark
import pytest

from semel.errors import ConfigurationError
from semel.spark import versions
from semel.spark.deliver import deliver, deliver_batch
from semel.spark.failures import SEARCHED, Stopped
from semel.verify.demo import standalone
from support.spark.version_needs import has, not_skipped, require

ROOT = Path(__file__).parents[2]
GIVEN: dict[str, Any] = {"entity": "customer", "event": "payment_id"}


def test_the_hash_of_an_integer_is_that_of_spark() -> None:
    """As `select hash(value)` gives it; test_repartition.py compares more, with Spark itself."""
    told = {0: 933211791, 1: -559580957, -1: -1604776387, 42: 29417773}
    assert versions.spark_hash(np.array(list(told))).tolist() == list(told.values())


def test_each_bucket_has_a_salt_whose_hash_is_that_buckets_own() -> None:
    for count in [*range(1, 201), 1000]:
        salts = versions.salts(count)
        found = versions.spark_hash(np.array(salts)) % count
        assert found.tolist() == list(range(count)), count
        assert 0 <= min(salts) <= max(salts) < 2**31


@pytest.mark.parametrize("version", ["3.4.4", "3.4.0.dev0", "2.4.8", "unreadable", ""])
def test_a_version_before_the_oldest_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    for start in (deliver, lambda *args, **words: deliver_batch(*args, batch="b", **words)):
        with pytest.raises(ConfigurationError) as refused:
            start(frame(), to=print, name="charges", **GIVEN)
        told = f"pipeline 'charges': PySpark has version {version or 'unknown'}, but semel needs"
        assert str(refused.value).startswith(f"{told} 3.5 or later")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9", "4.0.1", "4.3.0", "4.10.0", "5.0.0.dev1"])
def test_the_oldest_and_every_later_version_is_taken(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    monkeypatch.setattr(versions, "find_spec", lambda _: "there")
    versions.refuse_version("charges")
    versions.refuse_server(frame(), "charges")


@pytest.mark.parametrize(("client", "server"), [("3.5.9", "4.3.0"), ("4.3.0", "3.5.9")])
def test_spark_connect_before_4_0_is_refused_by_the_version(
    monkeypatch: pytest.MonkeyPatch, client: str, server: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", client)
    monkeypatch.setattr(versions, "find_spec", lambda _: "there")
    with pytest.raises(ConfigurationError) as refused:
        deliver(frame(server), to=print, name="charges", **GIVEN)
    told = str(refused.value)
    assert "uses Spark Connect, which semel supports from version 4.0" in told
    assert "has version 3.5.9" in told


def test_pyspark_3_5_on_a_python_without_distutils_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    monkeypatch.setattr(versions, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"3\.5\.9 needs .*distutils.*setuptools"):
        deliver(frame(), to=print, name="charges", **GIVEN)


def frame(server: str | None = None) -> Any:
    """A frame of a classic session; or of a Connect server of some version."""
    if server is None:
        return SimpleNamespace(isStreaming=True, _jdf=None)
    session = SimpleNamespace(version=server, is_stopped=False)
    return SimpleNamespace(isStreaming=True, sparkSession=session)


def test_which_version_it_is_is_asked_in_one_file_only() -> None:
    asked = re.compile(
        r"pyspark\.__version__|repartitionById|\.collat|spark\.version\b|to_arrow_schema"
    )
    found = {
        path.name
        for path in (ROOT / "src" / "semel").rglob("*.py")
        if asked.search(path.read_text())
    }
    assert found == {"versions.py"}


def test_the_table_of_the_docs_has_each_feature_with_its_version() -> None:
    text = (ROOT / "docs" / "spark-versions.md").read_text()
    for each in versions.FEATURES:
        major, minor = each.since
        assert f"| {each.name} | {major}.{minor} |" in text, each.name


def test_a_smoke_test_that_is_skipped_has_failed() -> None:
    place = ("test_smoke.py", 1, "test")
    for outcome, told in (("skipped", "failed"), ("passed", "passed"), ("failed", "failed")):
        report = pytest.TestReport("test", place, {}, outcome, None, "call")  # type: ignore[arg-type]
        assert not_skipped(report).outcome == told


def test_a_test_goes_without_what_its_version_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(pytest.skip.Exception, match=r"needs PySpark 4\.0, and this is 3\.5\.9"):
        require("collations")
    monkeypatch.setattr(pyspark, "__version__", "4.0.5")
    require("collations")
    assert not has("positions")


@pytest.mark.parametrize(
    ("said", "is_one"),
    [
        ("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group", True),
        ("Job 12 cancelled part of cancelled job group 8f3e", True),
        ("Job aborted due to stage failure: Job 12 cancelled by nobody", False),
        ("", False),
    ],
)
def test_a_job_that_was_cancelled_is_known_by_the_words_of_each_version(
    said: str, is_one: bool
) -> None:
    assert versions.is_cancelled(said) is is_one


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("python -m pyspark.daemon", True),  # 3.5
        ("python -m pyspark.daemon pyspark.worker", True),
        ("python -m pyspark.daemon pyspark.sql.worker.plan_data_source_read", False),
        ("python -m semel.verify.demo.charge_server", False),
    ],
)
def test_the_workers_of_tasks_are_known_by_the_command_of_each_version(
    command: str, is_one: bool
) -> None:
    assert bool(standalone._DAEMON.search(command)) is is_one


ENDS = {
    "3.5": r".+(\r\n|\r|\n): (java.lang.InterruptedException|java.io.InterruptedIOException)",
    "4.0": r"((.|\r\n|\r|\n)*)(java.lang.InterruptedException|java.io.InterruptedIOException)",
}
"""What each Spark searches for after the words of py4j, to know that a query was only stopped."""


@pytest.mark.parametrize("version", ENDS)
def test_the_end_of_a_stopped_query_is_in_the_words_each_version_searches_for(version: str) -> None:
    said = f"Traceback (most recent call last):\n  File x\nStopped: {Stopped('by a person')}\n"
    assert re.search(re.escape(SEARCHED) + ENDS[version], said)
