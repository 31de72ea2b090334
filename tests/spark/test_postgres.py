"""PostgreSQL on Spark: processes killed at every step, the server restarted, a lost checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel.verify.demo.standalone import SMALL_JVM, spark_environment
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.postgres import PostgresServer
from support.spark.driver_scripts import Bed, Run, wait_for
from support.spark.postgres_job import STEPS, TABLES, WAYS
from support.spark.reconcile import seed
from support.spark.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"chunk_rows": 4, "deadline_s": 5.0, "lease_s": 2.0}


class Witness:
    """The destination's own tables."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self._server, self._name = server, name
        self.url = server.url(name)
        server.execute(TABLES, name)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self._server.execute(statement, self._name)

    def count(self) -> int:
        [(count,)] = self.ask("select count(*) from each")
        return int(count)

    def assert_exact(self, bed: Bed) -> None:
        """Every payment once in each table, in order for each customer, and the sums are right."""
        for way in WAYS:
            rows = self.ask(f"select customer, payment_id from {way} order by at")
            assert sorted(rows) == sorted(bed.expected), way
            last: dict[str, int] = {}
            for customer, payment in rows:
                assert last.get(customer, -1) < payment, f"{way}: {payment} came too late"
                last[customer] = payment
        sums: dict[str, int] = {}
        for customer, payment in bed.expected:
            sums[customer] = sums.get(customer, 0) + int(payment) % 100  # type: ignore[arg-type]
        assert dict(self.ask("select customer, balance from balances")) == sums


@pytest.fixture
def witness(postgres: PostgresServer) -> Iterator[Witness]:
    name = postgres.create()
    yield Witness(postgres, name)
    postgres.drop(name)


def settings_of(bed: Bed, witness: Witness, **changes: Any) -> Settings:
    steps = list(changes.pop("task_steps", ()))
    return bed.settings(
        name="postgres",
        master="local[2,20]",
        words={"partitions": 2},
        sink_settings={**SMALL, "url": witness.url, "steps": steps},
        **changes,
    )


def start(bed: Bed, settings: Settings) -> Run:
    return bed.start(settings, script="support.spark.postgres_job")


@pytest.mark.rows("S10", "S15", "S17", "A9", "A14", "O10", "O23", "N1")
def test_workers_are_killed_at_every_step_and_at_any_time(bed: Bed, witness: Witness) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=40, customers=15)
    steps = [*STEPS, "claim.after", "take.after"]
    for step in steps:
        often = {"take.sent": 2, "take.after": 2, "claim.after": 6}.get(step, 30)
        bed.house.arm(step, after=luck.randrange(often))
    run = start(bed, settings_of(bed, witness, task_steps=steps))
    kills = 12  # a task may fail 20 times, and on a busy machine each kill may meet the same one
    while run.process.poll() is None:
        time.sleep(luck.uniform(0.5, 2.0))
        if kills and witness.count() and luck.random() < 0.5 and (workers := run.workers()):
            kills -= 1
            with suppress(ProcessLookupError):
                os.kill(luck.choice(workers), signal.SIGKILL)
    run.finished()
    assert {each.name for each in bed.house.taken()} == set(steps)
    witness.assert_exact(bed)


@pytest.mark.rows("S15", "S17", "A9", "N1")
def test_the_driver_is_killed_the_server_restarts_and_the_checkpoint_is_lost(
    bed: Bed, witness: Witness, postgres: PostgresServer
) -> None:
    luck = random.Random(seed())
    bed.payments(files=3, rows=60, customers=25)
    settings = settings_of(bed, witness)
    run = start(bed, settings)
    enough = luck.randrange(5, 60)
    wait_for(lambda: witness.count() >= enough, run, 120)
    kill_driver(run, luck)
    run = start(bed, settings)
    wait_for(lambda: witness.count() >= enough + 50, run, 120)
    postgres.restart()
    run.finished()
    witness.assert_exact(bed)

    shutil.rmtree(settings.checkpoint)
    bed.payments(files=1, rows=60, customers=25)
    start(bed, settings).finished()
    witness.assert_exact(bed)
    assert PostgresServer.password not in run.said()


def kill_driver(run: Run, luck: random.Random) -> None:
    halves = [pid for pid in (run.pid, run.jvm) if pid is not None]
    luck.shuffle(halves)
    for pid in halves:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


@pytest.mark.rows("S17")
def test_the_example_books_once_also_without_its_checkpoint(
    postgres_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLES / "postgres.py"), postgres_url, str(tmp_path / "out")]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "booked: {'c0': 18, 'c1': 22, 'c2': 26}" in said
    assert "checkpoint lost, read again: {'c0': 18, 'c1': 22, 'c2': 26}" in said


@pytest.mark.needs("sources")
@pytest.mark.rows("S1", "S17", "O4")
def test_the_example_counts_clicks_that_came_over_http(postgres_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    script = str(EXAMPLES / "rest_to_postgres.py")
    command = [sys.executable, script, postgres_url, str(tmp_path / "out")]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    windows = [
        ("cart", "09:00", 1),
        ("home", "09:00", 3),
        ("home", "09:01", 1),
        ("cart", "09:02", 1),
    ]
    assert f"windows: {windows}" in said
