"""Errors on their way from a task to the driver, and from the driver's part to Spark."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from semel import errors
from semel.errors import Fenced, LedgerUnavailable, NotDelivered, SemelError
from semel.events import Event
from semel.sinks import Retry
from semel.sinks import sink as make_sink
from semel.spark.deliver import deliver
from semel.spark.failures import SEARCHED, TEXT_MAX, Failed, Stopped, for_spark, marked, raised
from support.spark.query_job import source
from support.spark.sessions import Desk, stopped_by
from support.spark.version_needs import has

TOKEN = "5f0c1a"
FORGED = 'declined\nsemel.errors.Fenced: a later attempt has it\n[semel 000000 Fenced "x"]\x1b[31m'


def through_spark(raising: Callable[[], object], token: str) -> Exception:
    """What the driver gets of an error that a task raised: its traceback, between other texts."""
    told = ""
    try:
        raising()
    except SemelError as error:
        told = "".join(traceback.format_exception(marked(error, token)))
    return RuntimeError(f"Job aborted: Task 0 failed 4 times: {told}\n\tat java.lang.Thread.run")


def raising(error: Exception) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


@pytest.mark.parametrize("kind", [Fenced, LedgerUnavailable, NotDelivered])
def test_the_kind_of_a_tasks_error_reaches_the_driver(kind: type[SemelError]) -> None:
    made = raised(through_spark(raising(kind("pipeline 'pay': event 7")), TOKEN), TOKEN)
    assert type(made) is kind
    assert str(made) == "pipeline 'pay': event 7"


def test_a_kind_that_a_sinks_author_derived_is_the_one_it_was_derived_from() -> None:
    class Busy(NotDelivered):
        def __init__(self, host: str, port: int) -> None:
            super().__init__(f"{host}:{port} is busy")

    made = raised(through_spark(raising(Busy("here", 80)), TOKEN), TOKEN)
    assert (type(made), str(made)) == (NotDelivered, "here:80 is busy")


def test_what_a_destination_says_is_never_taken_for_the_kind_of_an_error() -> None:
    made = raised(through_spark(raising(NotDelivered(f"HTTP 503: {FORGED}")), TOKEN), TOKEN)
    assert type(made) is NotDelivered
    assert str(made).startswith("HTTP 503: declined\\nsemel.errors.Fenced: a later")
    assert str(made).isprintable()


def test_an_error_that_is_not_semels_is_none_whatever_stands_in_it() -> None:
    foreign = RuntimeError(f"ValueError: {FORGED}")
    assert raised(foreign, TOKEN) is foreign


def test_the_task_raises_foreign_text_escaped_and_leaves_its_own_as_it_is() -> None:
    own = Fenced("pipeline 'pay': replaced")
    assert marked(own, TOKEN) is own
    told = str(through_spark(raising(NotDelivered(FORGED)), TOKEN))
    assert "\x1b" not in told
    assert "\nsemel.errors.Fenced" not in told


@pytest.mark.parametrize(
    "error",
    [
        Fenced(f"{SEARCHED} {'x' * 100_000}"),
        RuntimeError(f"{SEARCHED} {'x' * 100_000}"),
        RuntimeError("\n".join([SEARCHED, *["\tat org.apache.spark.Here"] * 5_000, "the reason"])),
        RuntimeError("\n".join([SEARCHED, *["a line of the worker"] * 5_000, "the reason"])),
    ],
)
def test_what_leaves_the_drivers_part_is_short_and_not_searched(error: Exception) -> None:
    made = for_spark(error)
    assert len(str(made)) <= TEXT_MAX + 100
    assert SEARCHED not in str(made)
    if not isinstance(error, SemelError):
        assert type(made) is Failed
    if "the reason" in str(error):
        assert str(made).endswith("the reason")


def test_an_error_of_semel_that_is_short_leaves_as_it_is() -> None:
    error = Fenced("pipeline 'pay': a later run has it")
    assert for_spark(error) is error


# -- on Spark


def interrupts(spark: SparkSession, error: Exception) -> bool:
    """Whether Spark takes what Python raised for the end that `query.stop()` asked for."""
    try:
        raise error
    except Exception:
        text = traceback.format_exc()
    jvm: Any = spark._jvm
    thrown = jvm.py4j.Py4JException(f"An exception was raised by the Python Proxy: {text}")
    streaming = jvm.org.apache.spark.sql.execution.streaming
    execution = streaming.runtime if has("streaming.runtime") else streaming
    return bool(execution.StreamExecution.isInterruptionException(thrown, spark._jsc.sc()))


def cancelled(spark: SparkSession) -> Exception:
    """What a job ends with that was cancelled, as `query.stop()` does it."""
    context = spark.sparkContext
    ended: list[Exception] = []

    def run() -> None:
        context.setJobGroup("stopped", "to be stopped", interruptOnCancel=True)
        try:
            spark.range(2).foreach(_wait)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    tracker = context.statusTracker()
    while not tracker.getJobIdsForGroup("stopped"):
        thread.join(0.05)
    context.cancelJobGroup("stopped")
    thread.join(60)
    return ended[0]


def _wait(row: object) -> None:
    import time

    time.sleep(30)


def test_a_stop_that_cancelled_the_job_is_known_by_spark_whatever_the_job_said(
    spark: SparkSession,
) -> None:
    said = cancelled(spark)
    assert len(str(said)) > TEXT_MAX, "so long that Spark's search would overflow its stack"
    made = raised(said, TOKEN)
    assert type(made) is Stopped
    assert interrupts(spark, made)


def test_no_text_of_an_error_is_too_long_for_spark(spark: SparkSession) -> None:
    said = f"{SEARCHED} {'x' * 100_000} java.lang.InterruptedException"
    assert not interrupts(spark, for_spark(RuntimeError(said)))
    assert not interrupts(spark, for_spark(Fenced(said)))
    assert interrupts(spark, Stopped(said))


def test_what_a_sink_says_at_length_stops_the_query_with_one_short_sentence(desk: Desk) -> None:
    @make_sink(retry=Retry(first_s=0.01, most_s=0.01, for_s=0.02))
    def away(event: Event) -> None:
        raise errors.NotDelivered(f"HTTP 503: {FORGED} {SEARCHED} {'x' * 100_000}")

    desk.payments(files=1, rows=4)
    settings = desk.settings()
    writer = deliver(
        source(settings, desk.spark),
        to=away,
        name=desk.name,
        entity="customer",
        event="payment_id",
        ledger=settings.ledger,
        partitions=1,
    )
    writer = writer.option("checkpointLocation", settings.checkpoint).trigger(availableNow=True)
    said = stopped_by(writer)
    assert said.startswith("NotDelivered: ")
    assert "HTTP 503: declined\\nsemel.errors.Fenced" in said
    assert len(said) <= TEXT_MAX + 100
