"""One name is run once at a time, also within one process; and a restart in it does not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from semel.errors import ConfigurationError
from semel.spark import starting
from support.spark.driver_scripts import assert_once
from support.spark.sessions import Desk
from support.spark.settings import Settings
from support.spark.stateful_job import run_batch

RUNNING = r"pipeline 'charges-\d+' is running \(run 1, by this process on .*\)\. Stop that query"
LEASE_S = 240.0
AT_ONCE_S = 100.0
"""Less than the lease for which the beat of another process is watched, and long enough for a busy
machine.
"""


@pytest.fixture(autouse=True)
def watched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches another one's beat here is distinguished from who is only slow."""
    monkeypatch.setattr(starting, "OWNER_LEASE_S", LEASE_S)


def until(
    condition: Callable[[], bool], seconds: float = 180, what: Callable[[], object] = lambda: ""
) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, what()
        time.sleep(0.1)


def standing(desk: Desk, queries: list[StreamingQuery]) -> object:
    """What is known when the charges do not come."""
    return len(desk.charges()), [
        (each.isActive, each.status, each.lastProgress) for each in queries
    ]


def elsewhere(desk: Desk, settings: Settings) -> dict[str, Any]:
    return {"checkpoint": f"{settings.checkpoint}-2", "ledger": settings.ledger}


def test_a_second_query_under_one_name_in_one_session_is_refused(desk: Desk) -> None:
    desk.payments(files=6, rows=20)
    settings = desk.settings(trigger=0.0, delay_s=0.02)
    second = desk.settings(trigger=0.0, **elsewhere(desk, settings))
    first = desk.writer(settings).start()
    try:
        until(lambda: len(desk.charges()) > 20)
        with pytest.raises(ConfigurationError, match=RUNNING):
            desk.writer(second).start()
        until(lambda: len(desk.charges()) == 120)
        assert first.isActive
    finally:
        first.stop()
    assert first.exception() is None, "the healthy one was not fenced"
    assert_once(desk.charges(), desk.expected)

    desk.payments(files=1, rows=20)
    began = time.monotonic()
    again = desk.writer(settings).start()
    try:
        until(lambda: len(desk.charges()) > 120)
        assert time.monotonic() - began < AT_ONCE_S, "a start after a stop waits for nobody"
        until(lambda: len(desk.charges()) == 140)  # what is under way at a stop still arrives
    finally:
        again.stop()
    assert_once(desk.charges(), desk.expected)


def test_of_two_queries_that_start_at_once_one_delivers_and_one_is_refused(desk: Desk) -> None:
    desk.input.mkdir()
    settings = desk.settings(trigger=0.0)
    second = desk.settings(trigger=0.0, **elsewhere(desk, settings))
    queries = [desk.writer(each).start() for each in (settings, second)]
    try:
        desk.payments(files=3, rows=20)
        until(lambda: not all(query.isActive for query in queries))
        [refused] = [query for query in queries if not query.isActive]
        with pytest.raises(StreamingQueryException, match=r"ConfigurationError.* is running"):
            refused.awaitTermination()
        until(lambda: len(desk.charges()) == 60, what=lambda: standing(desk, queries))
        assert any(query.isActive for query in queries)
    finally:
        for query in queries:
            query.stop()
    assert_once(desk.charges(), desk.expected)


def test_of_two_threads_that_deliver_one_batch_one_is_refused(desk: Desk) -> None:
    desk.payments(files=2, rows=20)
    settings = desk.settings(sink_settings={"delay_s": 0.05})

    def deliver(_: int) -> object:
        try:
            return run_batch(desk.spark, settings, "2026-11-14")
        except ConfigurationError as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(deliver, range(2)))
    [refused] = [each for each in done if isinstance(each, ConfigurationError)]
    assert "is running (run 1, by this process" in str(refused)
    assert_once(desk.charges(), desk.expected)
    began = time.monotonic()
    assert run_batch(desk.spark, settings, "2026-11-14").again
    assert time.monotonic() - began < AT_ONCE_S


def test_a_query_that_failed_can_be_started_again_in_its_process_at_once(desk: Desk) -> None:
    desk.payments(files=1, rows=10)
    settings = desk.settings()
    told = desk.refused(
        settings, lambda frame: frame.selectExpr("customer", "null payment_id", "1")
    )
    assert "ConfigurationError" in told
    began = time.monotonic()
    desk.deliver(settings)
    assert time.monotonic() - began < AT_ONCE_S
    assert_once(desk.charges(), desk.expected)
