"""Part files on Spark: processes killed at every step, the checkpoint lost, manifests loaded."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from semel.errors import ConfigurationError, Diverged, EventsParked, Rejected
from semel.sinks.files import Files, committed, read
from semel.spark.deliver import deliver, deliver_batch
from semel.verify.demo.standalone import SMALL_JVM, StandaloneCluster, spark_environment
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.postgres import PostgresServer
from support.spark.clusters import LONG_S, SPECULATING, go_on
from support.spark.driver_scripts import Bed, Run, wait_for
from support.spark.files_job import DRIVER_STEPS, TABLE, TASK_STEPS
from support.spark.reconcile import seed
from support.spark.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("parquet", "lines")


def settings_of(bed: Bed, **changes: Any) -> Settings:
    told = {"url": str(bed.folder / "out"), "lease_s": 1.0, "deadline_s": 1.0}
    told |= changes.pop("told", {})
    return bed.settings(
        name="files",
        master=changes.pop("master", "local[2,20]"),
        words={"partitions": 2},
        sink_settings=told,
        **changes,
    )


def start(bed: Bed, settings: Settings) -> Run:
    return bed.start(settings, script="support.spark.files_job")


def rows_of(bed: Bed, sink: str) -> list[tuple[str, int]]:
    """What readers see, in the order of minibatches and files."""
    tables = read(f"{bed.folder}/out/files/{sink}")
    rows = [row for table in tables for row in table.to_pylist()]
    return [(row["customer"], row["payment_id"]) for row in rows]


def assert_exact(bed: Bed) -> None:
    """Manifests name every payment once, in order for each customer, and whole files only."""
    for sink in NAMES:
        rows = rows_of(bed, sink)
        assert sorted(rows) == sorted(bed.expected), sink
        last: dict[str, int] = {}
        for customer, payment in rows:
            assert last.get(customer, -1) < payment, f"{sink}: {payment} came too late"
            last[customer] = payment


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create()
    postgres.execute(TABLE, name)
    yield name
    postgres.drop(name)


@pytest.mark.rows("S16", "A5", "A6", "A7", "A12")
def test_workers_are_killed_at_every_step_and_at_any_time(bed: Bed) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=40, customers=15)
    steps = [*TASK_STEPS, "claim.after", "take.after"]
    for step in steps:
        bed.house.arm(step, after=luck.randrange(2 if step == "take.after" else 8))
    run = start(bed, settings_of(bed, told={"steps": steps}))
    kills = 12  # a task may fail 20 times, and on a busy machine each kill may meet the same one
    while run.process.poll() is None:
        time.sleep(luck.uniform(0.5, 2.0))
        if kills and luck.random() < 0.5 and (workers := run.workers()):
            kills -= 1
            with suppress(ProcessLookupError):
                os.kill(luck.choice(workers), signal.SIGKILL)
    run.finished()
    assert {each.name for each in bed.house.taken()} == set(steps)
    assert_exact(bed)


@pytest.mark.rows("S16", "A6", "A15", "A16")
def test_the_driver_is_killed_around_manifest_and_load_and_the_checkpoint_is_lost(
    bed: Bed, postgres: PostgresServer, database: str
) -> None:
    luck = random.Random(seed())
    bed.payments(files=3, rows=40, customers=15)
    told = {"load": postgres.url(database), "steps": DRIVER_STEPS}
    settings = settings_of(bed, told=told, steps=["complete.after"])
    for number, step in enumerate(luck.sample([*DRIVER_STEPS, "complete.after"], 2)):
        bed.house.arm(step, after=number)
    code, seen = 1, [0, 0]
    for _ in range(3):
        run = start(bed, settings)
        code = run.wait()
        seen = [len(rows_of(bed, sink)) for sink in NAMES]
        if code == 0:
            break
        assert code < 0, run.said()
        bed.end_leftovers()
        if len(bed.house.taken()) == 2:  # a reader has seen what was published until now
            shutil.rmtree(settings.checkpoint)
    assert code == 0
    assert seen == [len(bed.expected)] * 2
    assert_exact(bed)
    loaded = postgres.execute("select customer, payment_id from events", database)
    assert sorted(loaded) == sorted(bed.expected)
    found = list(committed(f"{bed.folder}/out/files/parquet"))
    assert {each.minibatch.generation for each in found} == {1, 2}
    [(keys,)] = postgres.execute("select count(*) from semel_loads", database)
    assert keys == len(found)


@pytest.mark.rows("S16", "A17")
def test_two_copies_of_a_task_leave_one_file_whichever_puts_it_in_its_place(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    house = bed.house
    house.arm("aside", "stop")
    bed.payments(files=1, rows=40, customers=8)
    told = {"steps": ["aside", "take.after"]}
    run = start(bed, settings_of(bed, master=cluster.url, told=told, conf=SPECULATING))
    original = wait_for(lambda: house.taken("aside"), run, LONG_S)[0].pid
    wait_for(lambda: house.asked().get("take.after"), run, LONG_S)
    go_on(original)  # its file is written aside, and another attempt has the partition
    run.finished(LONG_S)
    assert_exact(bed)


@pytest.mark.rows("S16")
def test_a_batch_job_leaves_its_files_once_however_often_it_is_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = str(tmp_path / "out")
    words: dict[str, Any] = {
        "to": Files(url=url),
        "name": "nightly",
        "entity": "customer",
        "event": "id",
        "partitions": 2,
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
    }
    frame = spark.range(30).selectExpr("concat('c', id % 4) as customer", "id")
    for batch in ("monday", "tuesday"):
        assert deliver_batch(frame, batch=batch, **words).delivered == {"files": 30}
    folders = [f"{url}/nightly@{batch}/files" for batch in ("monday", "tuesday")]
    before = [path.stat() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]
    again = deliver_batch(frame, batch="monday", **words)
    assert again.again
    assert again.delivered == {"files": 0}
    after = [path.stat() for path in sorted((tmp_path / "out").rglob("*")) if path.is_file()]
    assert after == before, "a file was written again"
    with pytest.raises(Diverged, match="nightly@monday"):
        deliver_batch(frame.where("id < 29"), batch="monday", **words)
    for folder in folders:
        rows = [row["id"] for table in read(folder) for row in table.to_pylist()]
        assert sorted(rows) == list(range(30))


class Warehouse:
    """A loader that refuses its first manifest."""

    def __init__(self) -> None:
        self.calls = 0

    def known(self, manifest: Any) -> bool:
        """Nothing is known."""
        return manifest is None

    def load(self, manifest: Any) -> None:
        """Refuse the first."""
        del manifest
        self.calls += 1
        if self.calls == 1:
            raise Rejected("the warehouse is closed")


def test_a_batch_job_whose_second_stage_refuses_a_manifest_says_which_one_it_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    def load(manifest: Any) -> None:
        raise Rejected("the warehouse is closed")

    frame = spark.range(30).selectExpr("concat('c', id % 4) as customer", "id")
    with pytest.raises(EventsParked, match=r"sink 'lake.then': 1 \(1 rejected\)\. Look"):
        deliver_batch(
            frame,
            to=Files(name="lake", url=str(tmp_path / "lake"), then=load),
            name="nightly",
            batch="monday",
            entity="customer",
            event="id",
            partitions=2,
            ledger=f"sqlite:///{tmp_path}/ledger.db",
        )


def test_a_batch_job_is_not_finished_without_a_sink_whose_files_are_not_named_yet(
    spark: SparkSession, tmp_path: Path
) -> None:
    loads = Warehouse()
    sinks = [Files(name=name, url=str(tmp_path / name), then=loads) for name in ("old", "further")]
    words: dict[str, Any] = {
        "name": "nightly",
        "batch": "monday",
        "entity": "customer",
        "event": "id",
        "partitions": 2,
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
    }
    frame = spark.range(30).selectExpr("concat('c', id % 4) as customer", "id")
    with pytest.raises(Rejected, match="the warehouse is closed"):
        deliver_batch(frame, to=sinks[0], **words)
    with pytest.raises(ConfigurationError, match=r"sink 'old' was removed.*Start once with it"):
        deliver_batch(frame, to=sinks[1], **words)
    done = deliver_batch(frame, to=sinks, **words)  # it joins at a batch that is complete
    assert (done.delivered, done.again) == ({"old": 0, "further": 30}, False)
    for sink in sinks:
        tables = read(f"{sink.url}/nightly@monday/{sink.name}")
        assert sorted(row["id"] for each in tables for row in each.to_pylist()) == list(range(30))
    assert deliver_batch(frame, to=sinks[1], **words).again


@pytest.mark.parametrize("streaming", [False, True])
def test_columns_that_a_format_cannot_hold_are_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path, *, streaming: bool
) -> None:
    words: dict[str, Any] = {
        "to": Files(url=str(tmp_path / "out"), format="csv"),
        "name": "nested",
        "entity": "customer",
        "event": "id",
        "ledger": f"sqlite:///{tmp_path}/ledger.db",
    }
    columns = ["'c' as customer", "1 as id", "array(1, 2) as lines"]
    source = spark.readStream.format("rate").load() if streaming else spark.range(1)
    act: Callable[..., Any] = deliver if streaming else partial(deliver_batch, batch="one")
    with pytest.raises(ConfigurationError, match="column 'lines' has type list"):
        act(source.selectExpr(*columns), **words)
    assert list(tmp_path.iterdir()) == []


def test_the_example_runs_and_says_what_it_did(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLES / "files.py"), str(tmp_path / "out")]
    with ProcessGroup("examples") as group:
        environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = group.start(command, environment, log).wait(300)
    said = log.read_text(errors="replace")
    assert code == 0, said
    assert "committed: 12 orders in 3 minibatches" in said
    assert "checkpoint lost, all read again: 12 orders" in said
    assert "rows in the manifest of each minibatch: [4, 4, 4]" in said
