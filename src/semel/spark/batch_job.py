"""Batch jobs: the protocol of a streaming pipeline, with one named minibatch.

Always true: a finished batch is never delivered again, however often a scheduler runs it; its
content is counted and compared.
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
from semel.spark.foreach_batch import deliver, run_tasks
from semel.spark.heartbeat import Heartbeat
from semel.spark.starting import make_driver, refuse_living, withdraw
from semel.spark.task import Task, TaskOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from semel.delivery import Driver, PipelineSpec

QUERY = "batch"
"""Stands for Spark's query id, which a batch job does not have."""

log = logging.getLogger("semel")


@dataclass(frozen=True)
class Delivered:
    """The result of a batch job; counts are by sink.

    Attributes:
        events: events of the batch.
        delivered: events that this run delivered.
        suppressed: events that an earlier run had delivered.
        parked: events not delivered that wait for a decision or behind another event.
        dropped: events in doubt that on_doubt="skip" dropped in this run.
        resent: how many parked events were sent because of a decision to resend them.
        again: whether the batch was finished before and only compared now.
    """

    events: Mapping[str, int]
    delivered: Mapping[str, int]
    suppressed: Mapping[str, int]
    parked: Mapping[str, int]
    resent: int = 0
    again: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict)


def run_batch(
    frame: DataFrame, spec: PipelineSpec, ledger: str | None, *, fail_on_parked: bool
) -> Delivered:
    """Deliver the batch or the rest of it; compare it if it is finished.

    Raises `EventsParked` at the end if events of the batch are parked and `fail_on_parked` is set.
    """
    spark = frame.sparkSession
    checks.refuse_session(spark, spec)
    url = checkpoints.resolve(ledger, None)
    checkpoints.refuse_unreachable(url, spark)
    client = LedgerClient(open_store(url), spec.name)
    driver = make_driver(client, spec, uuid4().hex, spark)
    driver.recorder.unknown = "a batch job has no streaming query"
    heartbeat = Heartbeat(driver)
    with starting_pipeline(url, spec.name):
        refuse_living(client)
        driver.start()
        heartbeat.start()
    try:
        if driver.finished() is not None:
            result = _compared(frame, driver, spec, url)
        else:
            result = _delivered(frame, driver, spec, url)
        if fail_on_parked and any(result.parked.values()):
            raise _parked(driver, result)
        return result
    except (ConfigurationError, Diverged):
        withdraw(driver, heartbeat)
        raise
    finally:
        heartbeat.stop()
        heartbeat.join()


def _delivered(frame: DataFrame, driver: Driver, spec: PipelineSpec, url: str) -> Delivered:
    opening = driver.begin(QUERY, 0)
    if opening.settled:
        driver.end(opening, [])
        outcome = TaskOutcome()
    else:
        outcome = deliver(frame, driver, opening, spec, url)
    driver.finish(opening)
    return _result(driver, outcome)


def _compared(frame: DataFrame, driver: Driver, spec: PipelineSpec, url: str) -> Delivered:
    """Compare a finished batch with the rows of this run, and send its resolved parked events."""
    outcome = run_tasks(frame, Task(spec, url, driver.nonce, driver.recount()))
    driver.compare(outcome.reports)
    resent = driver.drain(waits=True)
    result = _result(driver, TaskOutcome())
    missing = {sink: sum(states.values()) for sink, states in driver.undelivered().items()}
    before = {sink: count - missing.get(sink, 0) for sink, count in result.events.items()}
    waiting = sum(result.parked.values())
    if waiting:
        log.warning(
            "pipeline %r: the batch was finished before; events that are still parked (list them "
            "with `semel parked ls`): %d",
            spec.name,
            waiting,
        )
    return replace(result, suppressed=before, resent=resent, again=True)


def _parked(driver: Driver, result: Delivered) -> EventsParked:
    """Return the error for a finished batch with parked events."""
    name = driver.client.pipeline
    counts = {
        sink: ", ".join(
            f"{count} {state.value}" for state, count in states.items() if not state.final
        )
        for sink, states in driver.undelivered().items()
        if result.parked.get(sink)
    }
    each = "; ".join(
        f"sink {sink!r}: {_share(result.parked[sink], result.events.get(sink))} ({states})"
        for sink, states in counts.items()
    )
    error = EventsParked(
        f"pipeline {name!r}: the batch is finished, but some events are parked and were not "
        f"delivered: {each}. Look at them with `semel parked ls {name}`, resolve each with `semel "
        "resolve EVENT delivered|resend|discard --reason ...`, then run the batch again: it sends "
        "the events to resend and repeats nothing. fail_on_parked=False returns instead of raising"
    )
    error.result = result
    return error


def _result(driver: Driver, outcome: TaskOutcome) -> Delivered:
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
    """Return `count of events`; a stage after files has only a count of manifests."""
    return f"{count}" if events is None else f"{count} of {events}"
