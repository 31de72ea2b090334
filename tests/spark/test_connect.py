"""The core of the promise through Spark Connect: the driver's part runs beside the server."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from semel import Ledger
from semel.protocol import Capability
from semel.verify.demo.standalone import ConnectServer, python_workers
from support.spark.driver_scripts import (
    Bed,
    assert_once,
    assert_ordered,
    missing,
    repeated,
    wait_for,
)
from support.spark.settings import Settings


def settings_of(bed: Bed, connect: ConnectServer, **changes: object) -> Settings:
    return bed.settings(master=connect.url, **changes)


@pytest.mark.rows("S14", "N8")
@pytest.mark.parametrize("capability", [each.value for each in Capability])
def test_every_capability_delivers_once_through_connect(
    bed: Bed, connect: ConnectServer, capability: str
) -> None:
    bed.payments(files=3, rows=10)
    bed.run(settings_of(bed, connect, sink=capability))
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


def test_positions_and_counters_deliver_once_through_connect(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.positions({0: [0, 1, 2, 5, 6, 9], 1: [3, 4]})
    by_position = {"identity": "position"}
    bed.run(settings_of(bed, connect, source="positions", max_files=3, identity=by_position))
    assert_once(bed.house.charges(), bed.expected)
    bed.expected.clear()
    before = len(bed.house.charges())
    bed.payments(files=2, rows=10, customers=2)
    counted = {"identity": "counter", "entity": "customer"}
    checkpoint = str(bed.folder / "counted")
    bed.run(settings_of(bed, connect, name="counted", identity=counted, checkpoint=checkpoint))
    charges = bed.house.charges()[before:]
    assert sorted((c.entity, c.event) for c in charges) == [
        (f"c{customer}", number) for customer in range(2) for number in range(1, 11)
    ]


@pytest.mark.rows("S15")
@pytest.mark.parametrize("capability", ["transactional", "repeatable", "sequenced"])
def test_workers_killed_at_each_step_repeat_nothing_through_connect(
    bed: Bed, connect: ConnectServer, capability: str
) -> None:
    steps = ["claim.after", "effect.before", "effect.after"]
    bed.payments(files=3, rows=20)
    for step in steps:
        bed.house.arm(step, after=2)
    told = {"steps": steps, "chunk_rows": 3}
    bed.run(settings_of(bed, connect, sink=capability, sink_settings=told))
    assert all(len(bed.house.taken(step)) == 1 for step in steps)
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


@pytest.mark.rows("S15", "N3")
def test_an_opaque_sink_whose_worker_is_killed_holds_at_most_its_window_through_connect(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.payments(files=2, rows=20)
    bed.house.arm("effect.after", after=5)
    bed.run(settings_of(bed, connect, sink_settings={"steps": ["effect.after"]}))
    charges = bed.house.charges()
    assert repeated(charges) == {}
    with Ledger(bed.settings().ledger or "") as ledger:
        parked = [row for _, row in ledger.rows("parked")]
    held = [row for row in parked if row["state"] == "held"]
    assert len(held) == 1
    waiting = {(row["entity"], row["event"]) for row in parked if row["state"] == "waiting"}
    assert missing(charges, bed.expected) == waiting


@pytest.mark.parametrize("step", ["open.after", "complete.before", "complete.after"])
def test_the_drivers_part_is_killed_beside_the_server_and_started_again(
    bed: Bed, connect: ConnectServer, step: str
) -> None:
    bed.payments(files=2, rows=10)
    bed.house.arm(step)
    told = settings_of(bed, connect, sink_settings={"steps": [step]})
    assert bed.start(told).wait() == 1, "the query failed, because its Python was killed"
    assert len(bed.house.taken(step)) == 1
    bed.run(told)
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


@pytest.mark.smoke
@pytest.mark.rows("N4")
def test_a_lost_checkpoint_repeats_nothing_through_connect(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.payments(files=2, rows=10)
    told = settings_of(bed, connect)
    bed.run(told)
    shutil.rmtree(told.checkpoint)
    bed.payments(files=1, rows=10)
    bed.run(told)
    assert_once(bed.house.charges(), bed.expected)


def test_what_is_refused_beside_the_server_says_why(bed: Bed, connect: ConnectServer) -> None:
    bed.payments(files=1, rows=10)
    told = settings_of(bed, connect)
    bed.run(told)
    bed.payments(files=1, rows=10)
    other = settings_of(bed, connect, identity={"entity": "customer", "event": "amount"})
    run = bed.start(other)
    assert run.wait() == 1
    assert "give the changed pipeline a new name" in run.said()
    assert len(bed.house.charges()) == 10


def test_the_ledger_beside_the_checkpoint_is_made_where_the_drivers_part_runs(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.payments(files=1, rows=10)
    told = settings_of(bed, connect, ledger=None)
    run = bed.start(told)
    wait_for(lambda: python_workers(connect.pid), run)
    run.finished()
    assert Path(told.checkpoint + ".semel.db").exists()
    assert_once(bed.house.charges(), bed.expected)


def test_the_kind_of_a_tasks_error_reaches_the_drivers_part_beside_the_server(
    bed: Bed, connect: ConnectServer
) -> None:
    bed.payments(files=1, rows=4, customers=1)
    bed.house.plan("away", event=2, times=None)
    told = settings_of(bed, connect, sink_settings={"retry": [0.01, 0.02, 0.05]})
    run = bed.start(told)
    assert run.wait() == 1
    assert re.search(r"^semel\.errors\.NotDelivered: .*away", run.said(), re.MULTILINE), run.said()
    assert "semel.spark.failures.Failed" not in run.said()
