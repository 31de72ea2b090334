"""Speculation on a real cluster: two copies of a task live at once, and each event counts once."""

from __future__ import annotations

import sys

import pytest

from semel.verify.standalone import StandaloneCluster, spark_environment
from spark.accounts import Account
from spark.clusters import (
    LONG_S,
    SPECULATING,
    calls_of,
    driver,
    go_on,
    partitions,
    wait_until_complete,
)
from spark.driving import TESTS, Bed, wait_for

ROWS = 40


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
            "steps": ["effect.after", "take.after"],
            "chunk_rows": 2,
            "span_chunks": 1,
            "lease_s": LONG_S,  # nobody asks the ledger again before he reports
        },
        trigger=0.2,
        conf=SPECULATING,
    )
    chunk = 2 if capability == "transactional" else 1  # what one effect holds
    house.arm("effect.after", "stop", after=3)
    bed.payments(files=1, rows=ROWS, customers=8)
    with driver(bed, settings) as run:
        # The copy takes the partition over while the original is alive; then both go on.
        original = wait_for(lambda: house.taken("effect.after"), run, LONG_S)[0].pid
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
        fresh = calls_of(payments(ROWS, 2 * ROWS), chunk)
        house.arm("effect.after", "stop", after=fresh - 1)
        bed.payments(files=1, rows=ROWS, customers=8)
        original = wait_for(lambda: house.taken("effect.after")[1:], run, LONG_S)[0].pid
        assert len(house.charges()) == charged + ROWS
        copy = wait_for(lambda: house.taken("take.after"), run, LONG_S)[0].pid
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
        sink_settings={"steps": ["effect.after", "take.after"], "chunk_rows": 2},
        conf={**SPECULATING, "spark.task.maxFailures": "1"},  # on five hosts, four would not do
        delay_s=0.1,
    )
    house.arm("effect.after", "stop", after=3)
    bed.payments(files=2, rows=2 * ROWS, customers=8)
    run = bed.start(settings)
    original = wait_for(lambda: house.taken("effect.after"), run, LONG_S)[0].pid
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
from spark import job
from spark.settings import Settings
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
    process = bed.household.start(
        [sys.executable, "-c", TRIES, *paths],
        spark_environment(bed.household.folder, [TESTS]),
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
