"""Witness, drivers and clusters for tests on Spark; a process of pytest has one cluster at most."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.verify.counting_house import CountingHouse
from semel.verify.households import Household
from semel.verify.standalone import ConnectServer, StandaloneCluster
from spark.driving import TESTS, Bed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use a cluster run in one process of xdist (`--dist loadgroup`)."""
    for item in items:
        if {"cluster", "connect"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("clusters"))


@pytest.fixture
def house() -> Iterator[CountingHouse]:
    """A counting house that only this test has."""
    with CountingHouse() as house:
        yield house


@pytest.fixture
def bed(house: CountingHouse, tmp_path: Path) -> Iterator[Bed]:
    """A test bed; every process that it started ends with the test."""
    with Household("drivers") as household:
        yield Bed(house, tmp_path, household)
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
