"""A classic session in pytest's own process, and queries that run in it to their end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from semel import Ledger
from semel.protocol import ParkedState
from semel.spark.session import make_session
from semel.verify.demo.charge_server import Charge
from semel.verify.demo.standalone import SMALL_JVM
from support.spark import query_job
from support.spark.driver_scripts import TESTS, Bed, assert_ordered, missing, names, repeated
from support.spark.settings import Settings

Query = Callable[[DataFrame], DataFrame]

_numbers = count(1)
"""Folders of tests that are gone give their names to later ones; numbers do not."""

SENTENCE = re.compile(r"^semel\.errors\.(\w+: .*)$", re.MULTILINE)


def own_session(folder: Path) -> SparkSession:
    """Start a session whose workers find what tests import, and that writes into `folder` only."""
    paths = [str(TESTS), str(TESTS.parent / "src")]
    return make_session(
        "tests",
        settings={
            "spark.driver.extraJavaOptions": (
                f"{SMALL_JVM} -Dderby.system.home={folder} -Djava.io.tmpdir={folder}"
            ),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(paths),
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )


def without_jvm() -> None:
    """End the JVM that sessions of this process had, and wait until it is gone.

    Its input is closed, and it ends: py4j's own `shutdown` waits for ever for a connection that
    another thread reads from.
    """
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(30)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def finish(writer: DataStreamWriter) -> None:
    """Start a query and wait for its end. Raises what ended it."""
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def stopped_by(writer: DataStreamWriter) -> str:
    """Start a query that does not come to a good end; give semel's one sentence in what the user
    sees, the error's name before it.
    """
    query = writer.start()
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    sentences: set[str] = set(SENTENCE.findall(str(raised.value)))
    assert len(sentences) == 1, f"not one clear sentence:\n{raised.value}"
    assert sentences == set(SENTENCE.findall(str(query.exception())))
    return sentences.pop()


@dataclass(eq=False, kw_only=True)
class Desk(Bed):
    """A bed whose queries run in pytest's own process; it shares its charge server with others."""

    spark: SparkSession
    begun: int = 0

    number: int = field(default_factory=_numbers.__next__)

    @property
    def name(self) -> str:
        """The name of a pipeline that no other test has at the shared charge server."""
        return f"charges-{self.number}"

    def settings(self, **changes: Any) -> Settings:
        """Return the settings of a query."""
        return super().settings(**{"name": self.name, **changes})

    def charges(self, sink: str | None = None) -> list[Charge]:
        """Give the charges since the test began."""
        found = self.house.charges()[self.begun :]
        return [charge for charge in found if sink in (None, charge.sink)]

    def writer(self, settings: Settings, query: Query = lambda frame: frame) -> DataStreamWriter:
        """Make the writer of what `settings` say; `query` is what becomes of the source."""
        return query_job.writer(settings, query(query_job.source(settings, self.spark)))

    def deliver(self, settings: Settings, query: Query = lambda frame: frame) -> None:
        """Run it to its end. Raises what ended it."""
        finish(self.writer(settings, query))

    def refused(self, settings: Settings, query: Query = lambda frame: frame) -> str:
        """Run what does not come to a good end; give what the user sees."""
        return stopped_by(self.writer(settings, query))

    def lose_checkpoint(self) -> None:
        """Throw the checkpoint away, as people do."""
        shutil.rmtree(self.folder / "checkpoint")

    def assert_told(self, settings: Settings, *, in_doubt_max: int = 0) -> None:
        """Every event was charged once and in order, but for those that the ledger holds in doubt
        or behind one of them; no more are in doubt than said.
        """
        assert settings.ledger is not None
        charges = self.charges()
        with Ledger(settings.ledger) as ledger:
            rows = [row for _, row in ledger.parked(settings.name)]
        held = {(row.scope, row.event) for row in rows if row.state is ParkedState.HELD}
        waiting = {(row.scope, row.event) for row in rows if row.state is ParkedState.WAITING}
        assert repeated(charges) == {}
        assert set(names(charges)) <= set(self.expected)
        assert missing(charges, self.expected) <= held | waiting, "lost"
        assert not waiting & set(names(charges))
        assert len(held) <= in_doubt_max
        assert_ordered(charges)
