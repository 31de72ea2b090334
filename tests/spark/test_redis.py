"""Redis on Spark: processes killed at every step, the server restarted, a lost checkpoint."""

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
from semel.verify.servers.redis import RedisServer
from support.spark.driver_scripts import Bed, Run, wait_for
from support.spark.reconcile import seed
from support.spark.redis_job import STEPS
from support.spark.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"chunk_rows": 3, "deadline_s": 5.0, "lease_s": 2.0}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that keeps what it acknowledged."""
    server = RedisServer(settings={"appendfsync": "always"})
    yield server
    server.close()


def delivered(server: RedisServer) -> int:
    """How many events the last of the sinks has counted."""
    return int(server.execute("GET", "count") or 0)


def assert_exact(server: RedisServer, bed: Bed) -> None:
    """Every payment once in each list and stream, in order, and every sum is right."""
    paid: dict[str, list[int]] = {}
    for customer, payment in sorted(bed.expected, key=lambda each: each[1]):
        paid.setdefault(customer, []).append(int(payment))  # type: ignore[arg-type]
    for customer, payments in paid.items():
        found = server.execute("LRANGE", f"paid:{customer}", 0, -1)
        assert [int(each) for each in found] == payments
        logged = server.execute("XRANGE", f"log:{customer}", "-", "+")
        assert [int(fields[b"id"]) for _, fields in logged] == payments
        total = sum(payment % 100 for payment in payments)
        assert int(server.execute("GET", f"sum:{customer}")) == total
    assert delivered(server) == len(bed.expected)


def settings_of(bed: Bed, server: RedisServer, **changes: Any) -> Settings:
    steps = list(changes.pop("task_steps", ()))
    return bed.settings(
        name="redis",
        master="local[2,20]",
        words={"partitions": 2},
        sink_settings={**SMALL, "url": server.url(), "steps": steps},
        **changes,
    )


def start(bed: Bed, settings: Settings) -> Run:
    return bed.start(settings, script="support.spark.redis_job")


@pytest.mark.rows("S11", "S15", "S17", "N1")
def test_workers_are_killed_at_every_step_and_at_any_time(bed: Bed, server: RedisServer) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=40, customers=15)
    steps = [*STEPS, "claim.after", "take.after"]
    for step in steps:
        often = {"take.sent": 2, "take.after": 2, "claim.after": 6, "session.open": 6}
        bed.house.arm(step, after=luck.randrange(often.get(step, 30)))
    run = start(bed, settings_of(bed, server, task_steps=steps))
    kills = 12  # a task may fail 20 times, and on a busy machine each kill may meet the same one
    while run.process.poll() is None:
        time.sleep(luck.uniform(0.5, 2.0))
        if kills and delivered(server) and luck.random() < 0.5 and (workers := run.workers()):
            kills -= 1
            with suppress(ProcessLookupError):
                os.kill(luck.choice(workers), signal.SIGKILL)
    run.finished()
    assert {each.name for each in bed.house.taken()} == set(steps)
    assert_exact(server, bed)


@pytest.mark.rows("S15", "S17", "N1")
def test_the_driver_is_killed_the_server_restarts_and_the_checkpoint_is_lost(
    bed: Bed, server: RedisServer
) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=60, customers=25)
    settings = settings_of(bed, server)
    run = start(bed, settings)
    enough = luck.randrange(5, 120)
    wait_for(lambda: delivered(server) >= enough, run, 120)
    kill_driver(run, luck)
    run = start(bed, settings)
    wait_for(lambda: delivered(server) >= min(enough + 60, 200), run, 120)
    server.restart(signal.SIGKILL)
    run.finished()
    assert_exact(server, bed)

    shutil.rmtree(settings.checkpoint)
    bed.payments(files=1, rows=60, customers=25)
    start(bed, settings).finished()
    assert_exact(server, bed)
    assert RedisServer.password not in run.said()


def kill_driver(run: Run, luck: random.Random) -> None:
    halves = [pid for pid in (run.pid, run.jvm) if pid is not None]
    luck.shuffle(halves)
    for pid in halves:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()


@pytest.mark.rows("S17")
def test_the_example_counts_once_also_without_its_checkpoint(
    server: RedisServer, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLES / "redis_counters.py"), server.url()]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start([*command, str(tmp_path / "out")], environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "counted: {'c0': 18, 'c1': 22, 'c2': 26}" in said
    assert "checkpoint lost, read again: {'c0': 18, 'c1': 22, 'c2': 26}" in said
