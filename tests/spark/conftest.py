"""Witness, drivers and clusters for tests on Spark; a process of pytest has one cluster at most."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from semel.verify.demo.charge_server import ChargeServer
from semel.verify.demo.standalone import ConnectServer, StandaloneCluster
from semel.verify.process_group import ProcessGroup
from support.kafka_fixture import ONE_OF_A_RUN
from support.spark.class_archive import archive
from support.spark.driver_scripts import TESTS, Bed
from support.spark.sessions import Desk, own_session, without_jvm
from support.spark.version_needs import has, not_skipped, reason

OLD_WARNINGS = (
    "ignore:distutils Version classes are deprecated:DeprecationWarning",
    "ignore:The distutils package is deprecated:DeprecationWarning",
    "ignore:unclosed <socket:ResourceWarning",
)
"""What an older PySpark itself gives cause for: 3.5 compares versions by distutils, and 3.5 and 4.0
leave the sockets of `collect` to the garbage collector.
"""


def pytest_configure(config: pytest.Config) -> None:
    if not has("quiet"):
        for each in OLD_WARNINGS:
            config.addinivalue_line("filterwarnings", each)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use a cluster run in one process of xdist (`--dist loadgroup`), and so do all
    that have a session in it.
    """
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        needed = [name for mark in item.iter_markers("needs") for name in mark.args]
        absent = [name for name in (*needed, *({"connect"} & used)) if not has(name)]
        if absent:
            item.add_marker(pytest.mark.skip(reason=reason(absent[0])))
            item.own_markers = [mark for mark in item.own_markers if mark.name != "smoke"]
        if {*ONE_OF_A_RUN} & used:
            continue  # it has a process already
        if {"cluster", "connect"} & used:
            item.add_marker(pytest.mark.xdist_group("clusters"))
        elif "spark" in used:
            item.add_marker(pytest.mark.xdist_group("sessions"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A smoke test is run: one that is skipped, for whatever reason, has failed."""
    report = yield
    return not_skipped(report) if item.get_closest_marker("smoke") else report


@pytest.fixture
def house() -> Iterator[ChargeServer]:
    """A charge server that only this test has."""
    with ChargeServer() as house:
        yield house


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drivers find the archive of their classes."""
    with ChargeServer() as house, ProcessGroup("classes") as group:
        archive(Bed(house, tmp_path_factory.mktemp("classes"), group))


@pytest.fixture
def bed(classes: None, house: ChargeServer, tmp_path: Path) -> Iterator[Bed]:
    """A test bed; every process that it started ends with the test."""
    with ProcessGroup("drivers") as group:
        yield Bed(house, tmp_path, group)
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[StandaloneCluster]:
    """A standalone cluster of two workers with one core each, on two loopback addresses."""
    with StandaloneCluster(python_path=[TESTS]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connect() -> Iterator[ConnectServer]:
    """A Spark Connect server on `local[2,4]`."""
    with ConnectServer(python_path=[TESTS]) as connect:
        yield connect


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """The JVM below this process of pytest: the first session starts it, and it ends with us."""
    yield
    without_jvm()


@pytest.fixture(scope="module")
def spark(jvm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A classic session in this process, on `local[2,4]`; for tests that kill no driver."""
    spark = own_session(tmp_path_factory.mktemp("spark"))
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def desks(spark: SparkSession) -> Iterator[tuple[ChargeServer, ProcessGroup]]:
    """What all desks of a module share."""
    with ChargeServer() as house, ProcessGroup("desks") as group:
        yield house, group


@pytest.fixture
def desk(
    spark: SparkSession, desks: tuple[ChargeServer, ProcessGroup], tmp_path: Path
) -> Iterator[Desk]:
    """A test bed in this process: queries run in its own session."""
    house, group = desks
    yield Desk(house, tmp_path, group, spark=spark, begun=len(house.charges()))
    shutil.rmtree(tmp_path, ignore_errors=True)
