"""Batch jobs: the same machine, with a name for its only minibatch.

Always true: a batch that is finished is never delivered again, however often a scheduler runs it;
its content is counted and compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from semel.ledger.scribe import Scribe
from semel.ledger.stores import open_store
from semel.spark import ledgers, refusals
from semel.spark.heartbeat import Heartbeat
from semel.spark.microbatches import deliver, make_driver, refuse_living, run_tasks
from semel.spark.task import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from semel.delivery import Agreement, Driver

QUERY = "batch"
"""Stands for Spark's query id, which a batch job does not have."""


@dataclass(frozen=True)
class Delivered:
    """What a batch job came to.

    Attributes:
        events: how many events the batch has, by sink.
        delivered: how many of them this very run delivered, by sink.
        suppressed: how many had been delivered by a run before, by sink.
        parked: how many wait for a person or for their turn, by sink.
        resent: how many that had been parked were sent now, because a person said so.
        again: whether the batch had been finished before, and was only compared.
    """

    events: Mapping[str, int]
    delivered: Mapping[str, int]
    suppressed: Mapping[str, int]
    parked: Mapping[str, int]
    resent: int = 0
    again: bool = False


def run_batch(frame: DataFrame, agreement: Agreement, ledger: str | None) -> Delivered:
    """Deliver the batch, or what is left of it; compare it if it is finished."""
    spark = frame.sparkSession
    refusals.refuse_session(spark, agreement)
    url = ledgers.resolve(ledger, None)
    ledgers.refuse_unreachable(url, spark)
    scribe = Scribe(open_store(url), agreement.name)
    refuse_living(scribe)
    driver = make_driver(scribe, agreement, uuid4().hex, spark)
    driver.start()
    heartbeat = Heartbeat(driver)
    heartbeat.start()
    try:
        if driver.finished() is not None:
            return _compared(frame, driver, agreement, url)
        return _delivered(frame, driver, agreement, url)
    finally:
        heartbeat.stop()
        heartbeat.join()


def _delivered(frame: DataFrame, driver: Driver, agreement: Agreement, url: str) -> Delivered:
    opening = driver.begin(QUERY, 0)
    if opening.settled:
        driver.end(opening, [])
        outcome = Outcome()
    else:
        outcome = deliver(frame, driver, opening, agreement, url)
    driver.finish(opening)
    return _told(driver, outcome)


def _compared(frame: DataFrame, driver: Driver, agreement: Agreement, url: str) -> Delivered:
    """Compare a finished batch with what comes now; nobody else sends what is parked of it."""
    outcome = run_tasks(frame, Task(agreement, url, driver.nonce, driver.recount()))
    driver.compare(outcome.reports)
    resent = driver.drain(waits=True)
    return replace(_told(driver, Outcome()), resent=resent, again=True)


def _told(driver: Driver, outcome: Outcome) -> Delivered:
    events = {sink: each.count for sink, each in (driver.finished() or {}).items()}
    delivered: Counter[str] = Counter(dict.fromkeys(events, 0))
    suppressed = Counter(delivered)
    for report in outcome.reports:
        delivered[report.sink] += report.delivered
        suppressed[report.sink] += report.suppressed
    return Delivered(events, dict(delivered), dict(suppressed), driver.parked())
