"""Services over HTTP on real Spark: workers and drivers are killed, and a service is restarted."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Ledger
from semel.ledger.rows import ParkedRow
from semel.protocol import ParkedState
from semel.verify.demo.standalone import SMALL_JVM, spark_environment
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.http_witness import HttpWitness
from support.spark.driver_scripts import Bed, Name, Run, wait_for
from support.spark.reconcile import seed
from support.spark.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
WINDOW = 4
PARTITIONS = 2
STEPS = ["claim.after", "span.before", "span.after"]


class Services:
    """One service that absorbs repeats and one that does not, with every way to call them."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.absorbing = HttpWitness(delay_s=0.02, journal=bed.folder / "absorbing")
        self.counting = HttpWitness(absorbs=False, delay_s=0.02, journal=bed.folder / "counting")

    def settings(self, **changes: Any) -> Settings:
        plain = self.counting.url
        usual = {"timeout_s": 5.0, "deadline_s": 10.0, "lease_s": 2.0}
        sinks: dict[str, Any] = {
            "keyed": {"url": f"{self.absorbing.url}/keyed", "idempotency": True, **usual},
            "opaque": {"url": f"{plain}/opaque", "window": WINDOW, **usual},
        }
        return self.bed.settings(
            sink_settings={**sinks, **changes.pop("sink_settings", {})},
            words={"partitions": PARTITIONS},
            master="local[2,12]",
            **changes,
        )

    def seen(self, path: str) -> list[Name]:
        """Give what was asked at a path, in the order of arrival."""
        effects = [*self.absorbing.effects(), *self.counting.effects()]
        bodies = [each.body for each in effects if each.path == path]
        return [(body["customer"], body["payment_id"]) for body in bodies]

    def wait_for_share(self, share: float, run: Run) -> None:
        wait_for(lambda: len(self.seen("/keyed")) > share * len(self.bed.expected), run, 120)

    def parked(self, settings: Settings, sink: str) -> list[ParkedRow]:
        assert settings.ledger is not None
        with Ledger(settings.ledger) as ledger:
            return [row for _, row in ledger.parked(settings.name, sink)]

    def assert_exact(self, settings: Settings, sink: str) -> None:
        seen = self.seen(f"/{sink}")
        assert sorted(seen) == sorted(self.bed.expected), "lost or repeated"
        assert_ordered(seen)
        assert self.parked(settings, sink) == []

    def assert_told(self, settings: Settings, sink: str, *, in_doubt_max: int) -> None:
        seen, parked = self.seen(f"/{sink}"), self.parked(settings, sink)
        held = {(row.scope, row.event) for row in parked if row.state is ParkedState.HELD}
        waiting = {(row.scope, row.event) for row in parked if row.state is ParkedState.WAITING}
        assert len(seen) == len(set(seen)), "repeated"
        assert set(seen) <= set(self.bed.expected)
        assert set(self.bed.expected) - set(seen) <= held | waiting, "lost"
        assert not waiting & set(seen)
        assert len(held) <= in_doubt_max
        assert_ordered(seen)

    def close(self) -> None:
        self.absorbing.stop()
        self.counting.stop()


@pytest.fixture
def services(bed: Bed) -> Iterator[Services]:
    made = Services(bed)
    yield made
    made.close()


def assert_ordered(seen: list[Name]) -> None:
    last: dict[str, Any] = {}
    for entity, event in seen:
        assert entity not in last or last[entity] < event
        last[entity] = event


def kill_driver(run: Run) -> None:
    """Kill both halves of a driver; its workers notice by themselves."""
    for pid in (run.jvm, run.pid):
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
    run.wait()


@pytest.mark.rows("S17", "S21", "N3")
def test_workers_and_drivers_are_killed_at_any_time_and_at_steps(
    bed: Bed, services: Services
) -> None:
    luck = random.Random(seed())
    bed.payments(files=6, rows=60, customers=30)
    settings = services.settings(sink_settings={"steps": STEPS})
    for step in STEPS:
        bed.house.arm(step, after=luck.randrange(4))
    crashes = len(STEPS)
    run = bed.start(settings, script="support.spark.http_job")
    for share in (0.2, 0.4):
        services.wait_for_share(share, run)
        time.sleep(luck.uniform(0.0, 0.3))
        for worker in run.workers()[:1]:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            crashes += 1
    services.wait_for_share(0.6, run)
    kill_driver(run)
    bed.end_leftovers()
    bed.start(settings, script="support.spark.http_job").finished(300)
    assert {each.name for each in bed.house.taken()} == set(STEPS)
    services.assert_exact(settings, "keyed")
    doubt = WINDOW * (crashes + PARTITIONS)
    services.assert_told(settings, "opaque", in_doubt_max=doubt)


@pytest.mark.rows("S17", "A13", "A14", "N3")
def test_a_service_is_restarted_half_way_and_the_query_goes_on(
    bed: Bed, services: Services
) -> None:
    bed.payments(files=4, rows=40, customers=20)
    plain = services.counting.url
    fast = {"timeout_s": 1.0, "deadline_s": 2.0, "lease_s": 2.0}
    asked = {"url": f"{plain}/asked", "probe": f"{plain}/requests/{{semel.key}}", **fast}
    settings = services.settings(max_files=4, sink_settings={"asked": asked})
    run = bed.start(settings, script="support.spark.http_job")
    wait_for(lambda: len(services.seen("/keyed")) > 20, run, 180)
    services.absorbing.stop()
    time.sleep(1.0)
    services.absorbing.start()
    wait_for(lambda: len(services.seen("/asked")) > 20, run, 180)
    services.counting.stop()
    time.sleep(1.0)
    services.counting.start()
    run.finished(300)
    services.assert_exact(settings, "keyed")
    services.assert_exact(settings, "asked")
    services.assert_told(settings, "opaque", in_doubt_max=WINDOW * PARTITIONS)


def test_the_example_runs_and_says_what_it_did(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLES / "http_service.py"), str(tmp_path / "out")]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "after start 1: 12 charges of 12 payments" in said
    assert "checkpoint lost, read again: 12 charges of 12 payments" in said
