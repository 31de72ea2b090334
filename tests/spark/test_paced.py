"""Pacing on Spark: a source of its own is held until the next marker is due, and killed then."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from semel import Ledger
from semel.operate import read_status
from support.spark.driver_scripts import Bed, assert_once, assert_ordered, wait_for

LATENCY_S = 4.0


@pytest.mark.rows("O1", "O2", "O7", "O22", "N7")
def test_micro_batches_of_sparks_file_source_end_when_markers_are_due_and_a_kill_repeats_nothing(
    bed: Bed,
) -> None:
    bed.payments(files=1, rows=4)
    settings = bed.settings(
        sink="transactional",
        trigger=0.0,
        max_files=1_000,
        words={"application": "payments", "latency_s": LATENCY_S},
    )
    enough = threading.Event()

    def arrive() -> None:
        while not enough.wait(0.2):
            bed.payments(files=1, rows=4)

    arriving = threading.Thread(target=arrive)
    driver = bed.start(settings)
    wait_for(bed.house.charges, driver)
    arriving.start()
    try:
        ledger = str(settings.ledger)
        wait_for(partial(has_markers, ledger, 4), driver)
        driver.kill()  # most of the time it waits for a marker
        driver.wait()
        bed.end_leftovers()
        before = len(markers(ledger))
        driver = bed.start(settings)
        wait_for(partial(has_markers, ledger, before + 3), driver)
    finally:
        enough.set()
        arriving.join()
    count = len(bed.expected)
    wait_for(lambda: sum(row["events"] for row in markers(ledger)) >= count, driver)
    driver.kill()
    driver.wait()
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())

    rows = markers(ledger)
    paced = [(one, two) for one, two in pairwise(rows) if two["interval_s"]]
    assert len(paced) >= 4
    for one, two in paced:
        assert two["at"] - one["at"] >= 0.9 * two["interval_s"] - 0.1
        assert "payments" in two["reason"]
        assert "logOffset" in two["positions"]["0"]
    assert max(two["interval_s"] for _, two in paced) > 0.2 * LATENCY_S
    assert sum(row["events"] for row in rows) == count
    with Ledger(ledger) as found:
        pacing = read_status(found, settings.name, watch=False).pacing
    assert pacing is not None
    assert (pacing.application, pacing.latency_s) == ("payments", LATENCY_S)
    assert pacing.p99_s is not None


def has_markers(ledger: str, count: int) -> bool:
    return len(markers(ledger)) >= count


def markers(ledger: str) -> list[dict[str, Any]]:
    """The rows of the markers of the pipeline, in their order."""
    with Ledger(ledger) as found:
        rows = [(at, row) for at, row in found.rows("markers") if "/" in at]
    return [row for _, row in sorted(rows, key=lambda each: each[1]["at"])]
