"""Measures what metrics cost: small minibatches with an endpoint that is scraped, and without."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.rounds import folder, rounds
from semel.delivery import Assignment, Driver, LogObserver, Observers, PartitionDelivery
from semel.events import Attempt, Position
from semel.ledger import Journal, LedgerClient, open_store
from semel.monitoring import Monitoring
from semel.runtime import Process
from semel.sinks import Function
from semel.verify.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.progress import BenchmarkProgress

MINIBATCHES = 300
EVENTS = 100
SCRAPE_S = 1.0
"""More often than any Prometheus: the default is a minute."""
LENGTH = None


def measure(say: BenchmarkProgress, repetitions: int) -> dict[str, list[dict[str, Any]]]:
    """Run the same minibatches with metrics and without, interleaved."""
    with folder() as place:
        off, on = partial(_run, place, metrics=False), partial(_run, place, metrics=True)
        found = rounds(say, "metrics", repetitions, {"off": off, "on": on}, "ms")
    # Round 0 warms up. What two rounds without metrics differ by is the noise.
    plain, metered = found["off"][1:], found["on"][1:]
    ratios = [mine / other for mine, other in zip(metered, plain, strict=True)]
    noise = [later / before for before, later in pairwise(plain)]
    row = {
        "what": f"a minibatch of {EVENTS} events, scraped every {SCRAPE_S:g} s",
        "off ms": statistics.median(plain),
        "on ms": statistics.median(metered),
        "added %": 100 * (statistics.median(ratios) - 1),
        "spread of on/off %": 100 * (max(ratios) - min(ratios)),
        "spread of off/off %": 100 * (max(noise) - min(noise)),
    }
    return {"metrics on against off": [row]}


def _run(place: Path, *, metrics: bool) -> float:
    """Return the milliseconds of one minibatch."""
    url = f"sqlite:///{place}/{time.perf_counter_ns()}.db"
    sink = Function(name="bench", function=_nothing, window=EVENTS, batches=True)
    with closing(open_store(url)) as store, ExitStack() as stack:
        client, me = LedgerClient(store, "bench"), Process.here()
        observer: Any = LogObserver()
        monitor = None
        if metrics:
            port = free_port()
            monitor = Monitoring(metrics=port).open("bench", ["bench"], url, lambda: True)
            assert monitor is not None
            stack.callback(monitor.close)
            stack.enter_context(_scraped(port))
            observer = Observers([observer, monitor])
        driver = Driver(client, [sink], Position(), me, url, observer=observer)
        driver.start()
        if monitor is not None:
            monitor.knows(driver)
        began = time.perf_counter()
        for batch in range(MINIBATCHES):
            opening = driver.begin("query", batch)
            assignment = Assignment(
                "bench", opening, Position(), "t/0", Attempt(driver.run, batch + 1), me, 0
            )
            delivery = PartitionDelivery(assignment, [sink], client, Journal(client))
            driver.end(opening, delivery.run([_rows(batch)]))
        return 1000 * (time.perf_counter() - began) / MINIBATCHES


def _nothing(batch: pa.RecordBatch) -> None:
    """The engine alone."""


def _rows(batch: int) -> pa.RecordBatch:
    numbers = np.arange(batch * EVENTS, (batch + 1) * EVENTS)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * EVENTS),
            "partition": pa.array(np.zeros(EVENTS, np.int32)),
            "offset": pa.array(numbers),
        }
    )


@contextmanager
def _scraped(port: int) -> Iterator[None]:
    """Read the endpoint every second while the block runs, as a Prometheus would."""
    ended = threading.Event()

    def read() -> None:
        while not ended.wait(SCRAPE_S):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                answer.read()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
