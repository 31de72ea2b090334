"""Batch jobs: the same machine, with a name for its only minibatch.

Always true: a batch that is finished is never delivered again, however often a scheduler runs it;
its content is counted and compared.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from semel.errors import ConfigurationError, Diverged, EventsParked
from semel.ledger import LedgerClient, open_store, starting_pipeline
from semel.spark import checkpoints, checks
from semel.spark.failures import tell
from semel.spark.foreach_batch import deliver, make_driver, refuse_living, run_tasks, withdraw
from semel.spark.heartbeat import Heartbeat
from semel.spark.task import Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from semel.delivery import Driver, PipelineSpec

QUERY = "batch"
"""Stands for Spark's query id, which a batch job does not have."""

log = logging.getLogger("semel")


@dataclass(frozen=True)
class Delivered:
    """What a batch job came to.

    Attributes:
        events: how many events the batch has, by sink.
        delivered: how many of them this very run delivered, by sink.
        suppressed: how many had been delivered by a run before, by sink.
        parked: how many were not delivered and wait for a person or for their turn, by sink.
        dropped: how many were in doubt and dropped by on_doubt="skip", in this run, by sink.
        resent: how many that had been parked were sent now, because a person said so.
        again: whether the batch had been finished before, and was only compared.
    """

    events: Mapping[str, int]
    delivered: Mapping[str, int]
    suppressed: Mapping[str, int]
    parked: Mapping[str, int]
    resent: int = 0
    again: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict)


def run_batch(
    frame: DataFrame, agreement: PipelineSpec, ledger: str | None, *, fail_on_parked: bool
) -> Delivered:
    """Deliver the batch, or what is left of it; compare it if it is finished.

    Raises `EventsParked` at the very end, where events of it are parked, if that is asked for.
    """
    spark = frame.sparkSession
    checks.refuse_session(spark, agreement)
    url = checkpoints.resolve(ledger, None)
    checkpoints.refuse_unreachable(url, spark)
    client = LedgerClient(open_store(url), agreement.name)
    driver = make_driver(client, agreement, uuid4().hex, spark)
    heartbeat = Heartbeat(driver)
    with starting_pipeline(url, agreement.name):
        refuse_living(client)
        driver.start()
        heartbeat.start()
    try:
        if driver.finished() is not None:
            told = _compared(frame, driver, agreement, url)
        else:
            told = _delivered(frame, driver, agreement, url)
        if fail_on_parked and any(told.parked.values()):
            raise _parked(driver, told)
        return told
    except (ConfigurationError, Diverged):
        withdraw(driver, heartbeat)
        raise
    finally:
        heartbeat.stop()
        heartbeat.join()


def _delivered(frame: DataFrame, driver: Driver, agreement: PipelineSpec, url: str) -> Delivered:
    opening = driver.begin(QUERY, 0)
    if opening.settled:
        driver.end(opening, [])
        outcome = Outcome()
    else:
        outcome = deliver(frame, driver, opening, agreement, url)
    driver.finish(opening)
    place = f"pipeline {agreement.name!r}, minibatch {opening.row.minibatch}"
    tell(place, outcome, judged=opening.row.continues)
    return _told(driver, outcome)


def _compared(frame: DataFrame, driver: Driver, agreement: PipelineSpec, url: str) -> Delivered:
    """Compare a finished batch with what comes now; nobody else sends what is parked of it."""
    outcome = run_tasks(frame, Task(agreement, url, driver.nonce, driver.recount()))
    driver.compare(outcome.reports)
    resent = driver.drain(waits=True)
    told = _told(driver, Outcome())
    missing = {sink: sum(states.values()) for sink, states in driver.undelivered().items()}
    before = {sink: count - missing.get(sink, 0) for sink, count in told.events.items()}
    waiting = sum(told.parked.values())
    if waiting:
        log.warning(
            "pipeline %r: the batch was finished before; events that are still parked (`semel "
            "parked ls` shows them): %d",
            agreement.name,
            waiting,
        )
    return replace(told, suppressed=before, resent=resent, again=True)


def _parked(driver: Driver, told: Delivered) -> EventsParked:
    """Say how many events of a finished batch are parked, and what to do."""
    name = driver.client.pipeline
    counts = {
        sink: ", ".join(
            f"{count} {state.value}" for state, count in states.items() if not state.final
        )
        for sink, states in driver.undelivered().items()
        if told.parked.get(sink)
    }
    each = "; ".join(
        f"sink {sink!r}: {_share(told.parked[sink], told.events.get(sink))} ({states})"
        for sink, states in counts.items()
    )
    error = EventsParked(
        f"pipeline {name!r}: the batch is finished, and events of it are parked and were not "
        f"delivered: {each}. Look at them with `semel parked ls {name}`, say with `semel resolve "
        "EVENT delivered|resend|discard --reason ...` what becomes of each, then run the batch "
        "again: it sends what is to be sent and repeats nothing. fail_on_parked=False returns "
        "instead of raising"
    )
    error.result = told
    return error


def _told(driver: Driver, outcome: Outcome) -> Delivered:
    events = {sink: each.count for sink, each in (driver.finished() or {}).items()}
    delivered: Counter[str] = Counter(dict.fromkeys(events, 0))
    suppressed, dropped = Counter(delivered), Counter(delivered)
    for report in outcome.reports:
        delivered[report.sink] += report.delivered
        suppressed[report.sink] += report.suppressed
        dropped[report.sink] += report.dropped
    parked = driver.parked()
    return Delivered(events, dict(delivered), dict(suppressed), parked, dropped=dict(dropped))


def _share(count: int, events: int | None) -> str:
    """How many of the events; of a stage after files only how many manifests."""
    return f"{count}" if events is None else f"{count} of {events}"
