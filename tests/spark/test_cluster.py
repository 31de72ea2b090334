"""Executors die on a real cluster, their number changes, and one query feeds several sinks."""

from __future__ import annotations

from functools import partial

import pytest

from semel.protocol import ParkedState
from semel.verify.demo.charge_server import Charge
from semel.verify.demo.standalone import StandaloneCluster
from support.spark.clusters import (
    ADAPTIVE,
    BOTH,
    LONG_S,
    completed,
    executor_of,
    kill,
    partition_of,
    partitions,
    release,
)
from support.spark.driver_scripts import Bed, Name, assert_once, assert_ordered, names, wait_for
from support.spark.reconcile import FIVE, Account, judge_held

ROWS = 48
CUSTOMERS = 8


def charged(bed: Bed, sink: str, event: int) -> list[int]:
    """Give the processes that charged an event."""
    return [
        charge.pid
        for charge in bed.house.charges(sink)
        if charge.event == event and charge.pid is not None
    ]


def number(name: Name) -> int:
    assert isinstance(name[1], int)
    return name[1]


@pytest.mark.rows("S5", "A11")
def test_one_bucket_is_one_task_on_two_executors_under_adaptive_execution_and_skew(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    bed.payments(files=1, rows=400, customers=20)
    settings = bed.settings(
        master=cluster.url,
        sink="transactional",
        sink_settings={"chunk_rows": 50},
        where="payment_id % 20 = 7 or payment_id < 40",  # c7 has ten times as much as the others
        conf={**BOTH, **ADAPTIVE},
    )
    bed.expected = [name for name in bed.expected if name[0] == "c7" or number(name) < 40]
    run = bed.start(settings, "batch", "b", script="support.spark.stateful_job")
    run.finished(LONG_S)
    charges = bed.house.charges()
    assert_once(charges, bed.expected)
    assert_ordered(charges)
    tasks = {(charge.partition, charge.attempt) for charge in charges}
    assert len(tasks) == len({place for place, _ in tasks}) == len({task for _, task in tasks}) == 2
    assert len({charge.pid for charge in charges}) == 2
    for charge in charges:
        assert charge.partition == partition_of(charge.entity)


@pytest.mark.rows("S5", "S10", "S14", "S15", "S20", "O8", "O21", "N1")
def test_executors_are_killed_in_the_middle_of_partitions_twice_in_a_row(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    bed.payments(files=len(FIVE), rows=ROWS, customers=CUSTOMERS)
    settings = bed.settings(
        master=cluster.url,
        sink=FIVE,
        sink_settings={"chunk_rows": 2, "span_chunks": 2, "lease_s": 1.0, "deadline_s": 1.0},
        conf={**BOTH, "spark.sql.execution.arrow.maxRecordsPerBatch": "6"},
    )
    assert partition_of("c0") == partition_of("c1")
    slow = [("opaque", 33), *((sink, batch * ROWS + 16) for batch, sink in enumerate(FIVE))]
    slow.sort(key=lambda each: each[1])  # of c0, and in the first minibatch later of c1 too
    for sink, payment in slow:
        bed.house.plan("slow", sink=sink, event=payment, seconds=LONG_S)
    run = bed.start(settings)
    for sink, payment in slow:
        wait_for(partial(charged, bed, sink, payment), run, LONG_S)
        kill(executor_of(cluster, charged(bed, sink, payment)[0]))
    run.finished(LONG_S)

    told = Account.of(bed.house, settings, "opaque")
    told.assert_told(bed.expected, in_doubt_max=len(slow))
    release(bed, settings, "opaque")
    for sink in FIVE:
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)
    for charge in bed.house.charges():
        if charge.sink != "opaque":
            assert isinstance(charge.event, int)
            place = ((1, charge.event // ROWS), partition_of(charge.entity))
            assert (charge.minibatch, charge.partition) == place
    for sink in ("transactional", "sequenced"):  # each goes on at the exact record
        calls = [call for call in bed.house.calls() if call.sink == sink and call.status == 200]
        assert sum(call.events for call in calls) == len(bed.expected)
    assert len({charge.pid for charge in bed.house.charges()}) > 2


@pytest.mark.rows("S5", "S15", "A17")
def test_a_partition_that_one_core_began_is_ended_by_two(
    bed: Bed, cluster: StandaloneCluster, postgres_url: str
) -> None:
    bed.payments(files=2, rows=ROWS, customers=CUSTOMERS)
    settings = bed.settings(
        master=cluster.url,
        ledger=postgres_url,
        sink="transactional",
        sink_settings={"chunk_rows": 2},
        delay_s=0.1,
        conf={**BOTH, "spark.cores.max": "1"},
    )
    run = bed.start(settings)
    wait_for(lambda: len(bed.house.charges()) >= 6, run, LONG_S)
    run.kill()  # its executor goes on for a moment, and is a guest of the next run
    run.wait()
    run = bed.start(bed.settings(**{**vars(settings), "conf": BOTH}))
    run.finished(LONG_S)
    charges = bed.house.charges()
    assert_once(charges, bed.expected)
    assert_ordered(charges)
    by_run: dict[int, list[Charge]] = {}
    for charge in charges:
        assert charge.attempt is not None
        by_run.setdefault(charge.attempt[0], []).append(charge)
    assert set(by_run) == {1, 2}
    begun, ended = ({(each.minibatch, each.partition) for each in by_run[run]} for run in (1, 2))
    assert begun & ended
    assert len({charge.pid for charge in by_run[2]}) == 2


SEVERAL = ["transactional", "opaque", "repeatable"]


@pytest.mark.rows("S14", "S20", "O4")
def test_each_sink_of_a_query_has_its_own_record_and_the_query_is_computed_once(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    bed.payments(files=2, rows=40, customers=CUSTOMERS)
    bed.expected = [name for name in bed.expected if number(name) % 40 < 35]
    settings = bed.settings(
        master=cluster.url,
        sink=SEVERAL,
        sink_settings={"chunk_rows": 4},
        where="payment_id % 40 < 35",
        counted=True,
        conf=BOTH,
    )
    rejected, doubted = ("c0", 8), ("c1", 9)
    bed.house.plan("reject", sink="transactional", event=8, times=None)
    bed.house.plan("lost", sink="opaque", event=9)
    run = bed.start(settings)
    run.finished(LONG_S)

    asked = bed.house.asked()
    assert {f"row/{payment}": 1 for _, payment in bed.expected} == {
        name: count for name, count in asked.items() if name.startswith("row/")
    }
    books = {sink: Account.of(bed.house, settings, sink) for sink in SEVERAL}
    books["repeatable"].assert_exact(bed.expected)
    letters = books["transactional"]
    assert letters.in_state(*ParkedState) == {rejected} == letters.in_state(ParkedState.REJECTED)
    assert_once(letters.charges, [name for name in bed.expected if name != rejected])
    assert_ordered(letters.charges)
    books["opaque"].assert_told(bed.expected, in_doubt_max=1)
    assert books["opaque"].held == {doubted}
    assert release(bed, settings, "opaque") == 1
    Account.of(bed.house, settings, "opaque").assert_exact(bed.expected)


@pytest.mark.rows("S20", "S21")
def test_one_sinks_stop_stops_the_minibatch_and_what_the_others_have_done_stands(
    bed: Bed,
) -> None:
    bed.payments(files=2, rows=40, customers=CUSTOMERS)
    settings = bed.settings(sink=SEVERAL, sink_settings={"chunk_rows": 4, "on_doubt": "stop"})
    bed.house.plan("lost", sink="opaque", event=16)
    run = bed.start(settings)
    assert run.wait(LONG_S) == 1
    assert "HeldInDoubt" in run.said()
    assert "event 16 of 'c0' is in doubt" in run.said()
    assert completed(settings) == -1
    assert not any(number(name) >= 40 for name in names(bed.house.charges()))
    before = bed.house.charges("transactional")
    mine = {name for name in bed.expected[:17] if partition_of(name[0]) == partition_of("c0")}
    assert mine <= set(names(before))
    assert {row["state"] for row in partitions(settings, 0, "transactional").values()} == {
        "pending"
    }

    assert judge_held(bed.house, settings, "opaque") == 1
    bed.run(settings, LONG_S)
    for sink in SEVERAL:
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)
    assert bed.house.charges("transactional")[: len(before)] == before
