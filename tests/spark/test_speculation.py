"""Speculation on a real cluster: two copies of a task live at once, and each event counts once."""

from __future__ import annotations

import sys

import pytest

from semel.verify.demo.standalone import StandaloneCluster, spark_environment
from support.spark.clusters import (
    LONG_S,
    SPECULATING,
    calls_of,
    driver,
    go_on,
    hold_both,
    partition_of,
    partitions,
    stop_in_the_middle,
    wait_until_complete,
)
from support.spark.driver_scripts import TESTS, Bed, wait_for
from support.spark.reconcile import Account

ROWS = 40
STEPS = ["claim.after", "effect.after", "take.after"]


@pytest.mark.rows("S19", "A17")
@pytest.mark.parametrize("capability", ["transactional", "repeatable"])
def test_two_copies_of_a_task_deliver_each_event_once_whichever_of_them_spark_prefers(
    bed: Bed, cluster: StandaloneCluster, capability: str
) -> None:
    house = bed.house
    settings = bed.settings(
        master=cluster.url,
        sink=capability,
        sink_settings={
            "steps": STEPS,
            "chunk_rows": 2,
            "span_chunks": 1,
            "lease_s": LONG_S,  # no attempt asks the ledger again before it reports
        },
        trigger=0.2,
        conf=SPECULATING,
    )
    chunk = 2 if capability == "transactional" else 1  # what one effect holds
    hold_both(bed)
    bed.payments(files=1, rows=ROWS, customers=8)
    with driver(bed, settings) as run:
        # The copy takes the partition over while the original is alive; then both go on.
        original = stop_in_the_middle(bed, run, settings, 0, lambda _: 3)
        wait_for(lambda: house.asked().get("take.after"), run, LONG_S)
        go_on(original)
        wait_until_complete(run, settings, 0)
        Account.of(house, settings).assert_exact(bed.expected)
        assert len({call.attempt for call in house.calls() if call.status == 200}) == 3

        # The original has delivered everything; before it can say so, a copy takes the partition
        # over. Spark prefers the original's report and kills the copy: the minibatch is run again.
        takes = house.asked()["take.after"]
        charged = len(house.charges())
        house.arm("take.after", "stop")
        hold_both(bed)
        bed.payments(files=1, rows=ROWS, customers=8)

        def all_but_one(partition: str) -> int:
            fresh = payments(ROWS, 2 * ROWS)
            here = [each for each in fresh if partition_of(each[0]) == partition]
            return calls_of(here, chunk) - 1

        original = stop_in_the_middle(bed, run, settings, 1, all_but_one)
        copy = wait_for(lambda: house.taken("take.after"), run, LONG_S)[0].pid
        assert len(house.charges()) == charged + ROWS
        assert copy != original
        row = next(row for row in partitions(settings, 1).values() if row["process"]["pid"] == copy)
        go_on(original)
        wait_until_complete(run, settings, 1)
        assert house.asked()["take.after"] >= takes + 2
        now = partitions(settings, 1)[row["partition"]]
        assert now["attempt"] > row["attempt"]
        Account.of(house, settings).assert_exact(bed.expected)

        # And the query goes on.
        bed.payments(files=1, rows=ROWS, customers=8)
        wait_until_complete(run, settings, 2)
    Account.of(house, settings).assert_exact(bed.expected)


@pytest.mark.rows("S19")
def test_a_task_that_fails_because_it_was_replaced_does_not_end_the_query(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    house = bed.house
    settings = bed.settings(
        master=cluster.url,
        sink="transactional",
        sink_settings={"steps": STEPS, "chunk_rows": 2, "lease_s": LONG_S},
        conf={**SPECULATING, "spark.task.maxFailures": "1"},  # on five hosts, four would not do
        delay_s=0.1,
    )
    hold_both(bed)
    bed.payments(files=2, rows=2 * ROWS, customers=8)
    run = bed.start(settings)
    original = stop_in_the_middle(bed, run, settings, 0, lambda _: 3)
    wait_for(lambda: house.asked().get("take.after"), run, LONG_S)
    wait_for(lambda: len({call.attempt for call in house.calls()}) == 3, run, LONG_S)
    go_on(original)
    run.finished(LONG_S)
    Account.of(house, settings).assert_exact(bed.expected)
    assert any(call.status == 409 and call.pid == original for call in house.calls())


def payments(start: int, stop: int) -> list[tuple[str, int]]:
    return [(f"c{payment % 8}", payment) for payment in range(start, stop)]


TRIES = """
import sys
from pathlib import Path
from semel.errors import ConfigurationError
from support.spark import query_job as job
from support.spark.settings import Settings
spark = None
for path in sys.argv[1:]:
    settings = Settings.load(Path(path))
    spark = spark or job.session(settings)
    try:
        job.writer(settings, job.source(settings, spark)).start()
    except ConfigurationError as error:
        job.say(f"refused: {error}")
"""


@pytest.mark.rows("S19")
def test_speculation_is_refused_before_an_event_moves_where_no_destination_fences(bed: Bed) -> None:
    bed.payments(files=1, rows=ROWS)
    made = [
        bed.settings(sink=sink, conf={"spark.speculation": "true"})
        for sink in ("opaque", "probing", ["transactional", "opaque"])
    ]
    for place, settings in enumerate(made):
        settings.save(bed.folder / f"{place}.json")
    log = bed.folder / "tries.log"
    paths = [str(bed.folder / f"{place}.json") for place in range(len(made))]
    process = bed.group.start(
        [sys.executable, "-c", TRIES, *paths],
        spark_environment(bed.group.folder, [TESTS]),
        log,
    )
    assert process.wait(LONG_S) == 0, log.read_text()
    refused = [line for line in log.read_text().splitlines() if line.startswith("refused: ")]
    assert len(refused) == len(made)
    assert all("Set spark.speculation=false" in line for line in refused)
    assert [" is opaque:" in refused[0], " is probing:" in refused[1]] == [True, True]
    assert bed.house.calls() == []
    assert not (bed.folder / "ledger.db").exists()
    assert not (bed.folder / "checkpoint").exists()
