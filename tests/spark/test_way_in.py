"""The whole way: producers that retry, an ingress, an inbox, a pipeline on Spark, and a witness.

Everything between the first and the last is killed. With 200,000 events it takes longer than the
suite allows a test: `SEMEL_SOAK=1 pytest -o faulthandler_timeout=0 tests/spark/test_way_in.py`.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Self

import pytest

from semel.streams import Inbox, NewEvent
from support.ingress_soak import STREAM, Soak
from support.spark.driver_scripts import Bed, Run, assert_once, assert_ordered, wait_for

LARGE = bool(os.environ.get("SEMEL_SOAK"))
EVENTS, INGRESS_KILLS, DRIVER_KILLS = (200_000, 20, 6) if LARGE else (6_000, 4, 2)
CHUNK_ROWS = 500 if LARGE else 50
PATIENCE_S = 1_800.0 if LARGE else 240.0


@pytest.mark.needs("sources")
@pytest.mark.rows("S1", "S2", "S3", "S17", "A1", "A11", "A21", "O1", "O3", "N4")
def test_what_an_ingress_acknowledged_is_delivered_once_and_in_order_whatever_is_killed(
    bed: Bed,
) -> None:
    url = f"sqlite:///{bed.folder / 'inbox.db'}"
    soak = Soak(url, EVENTS, INGRESS_KILLS, pruned=True)
    with Inbox(url, STREAM) as inbox:
        inbox.create()
    # Workers are killed too, after the destination has taken a chunk.
    for number in range(1, 1 + DRIVER_KILLS):
        bed.house.arm("effect.after", after=number * EVENTS // (2 * CHUNK_ROWS * DRIVER_KILLS))
    settings = bed.settings(
        name="way-in",
        source="semel.inbox",
        sink="transactional",
        sink_settings={"steps": ["effect.after"], "chunk_rows": CHUNK_ROWS},
        identity={"entity": "entity", "event": "event", "increasing": True},
        words={"partitions": 2},
        trigger=0.0,
        options={"ledger": url, "stream": STREAM, "latency": "1s", "reader": "way-in"},
    )
    charged = Charged(bed, soak)
    driver = bed.start(settings)
    wait_for(lambda: "started" in driver.said(), driver)
    with ThreadPoolExecutor(2) as side, Pruner(url) as pruner:
        producing = side.submit(soak.run)
        pruning = side.submit(pruner.run)
        for number in range(1, DRIVER_KILLS + 1):
            goal = number * EVENTS // (DRIVER_KILLS + 1)
            wait_for(partial(charged.reached, goal), driver, PATIENCE_S)
            kill(bed, driver)
            if number == 1:
                with Inbox(url, STREAM) as inbox:
                    inbox.repartition(3)
            if number == DRIVER_KILLS:
                shutil.rmtree(settings.checkpoint)
            driver = bed.start(settings)
        wait_for(partial(charged.reached, EVENTS), driver, PATIENCE_S)
        producing.result(PATIENCE_S)
        with Inbox(url, STREAM) as inbox:  # the next micro-batch completes the one before
            for number in (1, 2, 3):
                inbox.append([NewEvent(b"{}", entity="last")])
                wait_for(partial(charged.reached, EVENTS + number), driver, PATIENCE_S)
        wait_for(lambda: pruner.events > 0, driver, PATIENCE_S)
        pruner.stop.set()
        pruning.result(PATIENCE_S)
    kill(bed, driver)
    print(f"{dict(soak.seen)} in {soak.seconds:.1f} s")  # noqa: T201 - with the seed
    assert soak.seen["killed"] == INGRESS_KILLS
    assert len(bed.house.taken()) >= 1, "workers were killed as well"
    charges = bed.house.charges()
    last = [("last", number) for number in (1, 2, 3)]
    assert_once(charges, [*soak.acknowledged.values(), *last])
    assert_ordered(charges)


class Charged:
    """How many events the witness has, asked now and then: an answer has all of them."""

    def __init__(self, bed: Bed, soak: Soak) -> None:
        self._bed = bed
        self._soak = soak
        self._known = 0
        self._asked_at = 0.0

    def reached(self, goal: int) -> bool:
        if self._soak.failures:  # its events never come
            raise self._soak.failures[0]
        now = time.monotonic()
        if now - self._asked_at >= 0.2 + self._known / 20_000:
            self._known, self._asked_at = len(self._bed.house.charges()), now
        return self._known >= goal


class Pruner:
    """Removes what the query has completed, as soon as it has."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self.stop = threading.Event()
        self.events = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()

    def run(self) -> None:
        with Inbox(self._ledger, STREAM) as inbox:
            while not self.stop.wait(0.5):
                self.events += inbox.prune(keep_s=0).events


def kill(bed: Bed, driver: Run) -> None:
    driver.kill()
    driver.wait()
    bed.end_leftovers()
