"""The testing kit: rows through an identity and a sink without Spark, crashed at every step."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.protocol import Capability
from semel.sinks.files import read
from semel.testing import CrashOutcome, PipelineUnderTest
from support.contract_sinks import faulty
from support.contract_sinks.honest import Box, arrived

Make = Callable[..., PipelineUnderTest]
IDS = {"entity": "customer", "event": "payment_id"}

FIRST = [
    {"customer": "ann", "payment_id": 1, "amount": 5},
    {"customer": "bob", "payment_id": 2, "amount": 7},
    {"customer": "ann", "payment_id": 3, "amount": 1},
]
NEXT = [{"customer": "bob", "payment_id": 4, "amount": 2}]
EVENTS = [("ann", 1), ("bob", 2), ("ann", 3)]


class Bank:
    """A destination in the memory of the test."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, object]] = []

    def charge(self, event: semel.Event) -> None:
        self.charges.append((event.entity, event.id))


@pytest.fixture
def bank() -> Bank:
    return Bank()


# -- one world


def test_what_was_delivered_is_what_arrived(semel_pipeline: Make, bank: Bank) -> None:
    pipeline = semel_pipeline(bank.charge, **IDS, arrived=lambda: bank.charges)
    pipeline.deliver(FIRST)
    pipeline.deliver(NEXT)
    assert pipeline.delivered == pipeline.arrived == [*EVENTS, ("bob", 4)]
    assert pipeline.outcome.exactly_once


def test_a_rejected_event_is_parked_and_an_unclassified_error_leaves_a_doubt(
    semel_pipeline: Make,
) -> None:
    def charge(event: semel.Event) -> None:
        if event.value["amount"] == 7:
            raise semel.Rejected("no such customer")
        if event.id == 3:
            raise TimeoutError("no reply")

    pipeline = semel_pipeline(charge, **IDS)
    pipeline.deliver(FIRST)
    assert pipeline.delivered == pipeline.arrived == [("ann", 1)]
    assert pipeline.parked == [("bob", 2)]
    assert pipeline.in_doubt == [("ann", 3)]
    assert not pipeline.outcome.exactly_once
    assert not pipeline.outcome.lost


def test_what_waits_behind_an_event_in_doubt_is_parked(semel_pipeline: Make) -> None:
    def charge(event: semel.Event) -> None:
        if event.id == 1:
            raise TimeoutError("no reply")

    pipeline = semel_pipeline(charge, **IDS)
    pipeline.deliver(FIRST)
    assert (pipeline.in_doubt, pipeline.parked) == ([("ann", 1)], [("ann", 3)])


def test_an_error_that_stops_the_query_is_raised_and_a_restart_goes_on(
    semel_pipeline: Make, bank: Bank
) -> None:
    broken = [True]

    def charge(event: semel.Event) -> None:
        if broken:
            raise semel.NotDelivered("the bank is closed")
        bank.charge(event)

    pipeline = semel_pipeline(charge, **IDS, arrived=lambda: bank.charges)
    with pytest.raises(semel.NotDelivered, match="the bank is closed"):
        pipeline.deliver(FIRST)
    assert pipeline.delivered == []
    broken.clear()
    pipeline.restart()
    assert pipeline.outcome.exactly_once


def test_rows_may_be_arrow_and_the_ids_may_be_positions_or_counted(
    semel_pipeline: Make, bank: Bank
) -> None:
    rows = {"topic": ["t"] * 3, "partition": [0, 1, 0], "offset": [4, 9, 5], "who": ["a", "b", "a"]}
    pipeline = semel_pipeline(bank.charge, identity="position", entity="who")
    pipeline.deliver(pa.table(rows))
    assert pipeline.delivered == [("a", 4), ("a", 5), ("b", 9)]
    counted = semel_pipeline(bank.charge, identity="counter", entity="who")
    counted.deliver(pa.table(rows))
    counted.deliver(pa.RecordBatch.from_pydict(rows))
    assert counted.delivered == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 4), ("b", 2)]


def test_a_function_of_batches_and_several_partitions_are_delivered_once(
    semel_pipeline: Make,
) -> None:
    batches: list[Any] = []
    sink = semel.sink(window=2, batches=True, name="charge")(batches.append)
    pipeline = semel_pipeline(sink, **IDS, partitions=3)
    pipeline.deliver(FIRST)
    assert sum(batch.num_rows for batch in batches) == 3
    assert pipeline.outcome.exactly_once


# -- crashed at every step


def played(outcomes: list[CrashOutcome], at_least: int) -> list[CrashOutcome]:
    assert len(outcomes) > at_least
    assert len({each.where for each in outcomes}) == len(outcomes)
    return outcomes


@pytest.mark.parametrize("window", [1, 2])
def test_a_crash_leaves_at_most_a_window_of_a_function_in_doubt(
    semel_pipeline: Make, bank: Bank, window: int
) -> None:
    sink = semel.sink(window=window, name="charge")(bank.charge)
    pipeline = semel_pipeline(sink, **IDS, arrived=lambda: bank.charges)
    doubts = 0
    for outcome in played(list(pipeline.crash_everywhere(FIRST, NEXT)), 20):
        assert not outcome.lost, outcome
        assert not outcome.repeated, outcome
        assert len(outcome.in_doubt) <= window, outcome
        assert outcome.exactly_once or outcome.in_doubt, outcome
        doubts = max(doubts, len(outcome.in_doubt))
    assert doubts == window
    for outcome in played(list(pipeline.fail_everywhere(FIRST, NEXT)), 20):
        assert not [*outcome.lost, *outcome.repeated], outcome


def test_policy_resend_repeats_only_what_was_in_doubt(semel_pipeline: Make, bank: Bank) -> None:
    sink = semel.sink(on_doubt="resend", name="charge")(bank.charge)
    pipeline = semel_pipeline(sink, **IDS, arrived=lambda: bank.charges)
    outcomes = list(pipeline.crash_everywhere(FIRST))
    assert any(outcome.repeated for outcome in outcomes)
    for outcome in outcomes:
        assert set(outcome.repeated) <= set(outcome.in_doubt), outcome
        assert set(outcome.arrived) == set(EVENTS), outcome


@pytest.mark.parametrize("can", [each for each in Capability if each is not Capability.OPAQUE])
def test_an_honest_sink_is_exact_wherever_it_crashes_or_fails(
    semel_pipeline: Make, tmp_path: Path, can: Capability
) -> None:
    path = str(tmp_path / "box.db")
    box = Box(name="box", path=path, can=can, chunk_rows=2)
    pipeline = semel_pipeline(box, **IDS, partitions=2, arrived=lambda: arrived(path))
    for outcome in played(list(pipeline.crash_everywhere(FIRST, NEXT)), 20):
        assert outcome.exactly_once, outcome
    for outcome in played(list(pipeline.fail_everywhere(FIRST, NEXT)), 20):
        assert outcome.exactly_once, outcome


def test_files_are_exact_wherever_they_crash(semel_pipeline: Make, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sink = semel.sinks.Files(name="files", url=folder)

    def rows() -> list[tuple[object, object]]:
        places = sorted(folder.glob("*/files")) if folder.exists() else []
        tables = [table for each in places for table in read(each)]
        return [(row["customer"], row["payment_id"]) for each in tables for row in each.to_pylist()]

    pipeline = semel_pipeline(
        sink, **IDS, arrived=rows, reset=lambda: shutil.rmtree(folder, ignore_errors=True)
    )
    for outcome in played(list(pipeline.crash_everywhere(FIRST, NEXT)), 10):
        assert outcome.exactly_once, outcome


# -- planted mistakes, each of which has to be found


def lost(outcomes: list[CrashOutcome]) -> bool:
    return any(outcome.lost for outcome in outcomes)


def repeated(outcomes: list[CrashOutcome]) -> bool:
    return any(set(outcome.repeated) - set(outcome.in_doubt) for outcome in outcomes)


def test_a_function_that_swallows_errors_loses_events(semel_pipeline: Make, bank: Bank) -> None:
    def charge(event: semel.Event) -> None:
        with suppress(Exception):
            remote(event)

    pipeline = semel_pipeline(charge, **IDS, arrived=lambda: bank.charges)
    remote = pipeline.remote(bank.charge)
    assert lost(list(pipeline.fail_everywhere(FIRST)))


def test_a_function_that_tries_again_itself_repeats_events(
    semel_pipeline: Make, bank: Bank
) -> None:
    def charge(event: semel.Event) -> None:
        try:
            remote(event)
        except TimeoutError:
            remote(event)

    pipeline = semel_pipeline(charge, **IDS, arrived=lambda: bank.charges)
    remote = pipeline.remote(bank.charge, "Bank.charge")
    outcomes = list(pipeline.fail_everywhere(FIRST))
    assert repeated(outcomes)
    assert any("Bank.charge()" in outcome.where for outcome in outcomes)


def test_a_function_that_calls_a_timeout_not_delivered_repeats_events(
    semel_pipeline: Make, bank: Bank
) -> None:
    def charge(event: semel.Event) -> None:
        try:
            remote(event)
        except TimeoutError as error:
            raise semel.NotDelivered(str(error)) from error

    pipeline = semel_pipeline(charge, **IDS, arrived=lambda: bank.charges)
    remote = pipeline.remote(bank.charge)
    assert repeated(list(pipeline.fail_everywhere(FIRST)))


def test_a_crash_cannot_be_swallowed(semel_pipeline: Make, bank: Bank) -> None:
    def charge(event: semel.Event) -> None:
        with suppress(BaseException):
            remote(event)

    pipeline = semel_pipeline(charge, **IDS, arrived=lambda: bank.charges)
    remote = pipeline.remote(bank.charge)
    for outcome in pipeline.crash_everywhere(FIRST):
        assert not outcome.lost, outcome
        assert not outcome.repeated, outcome


@pytest.mark.parametrize(
    ("can", "session"),
    [
        (Capability.REPEATABLE, faulty.KeyOfAttempt),
        (Capability.PROBING, faulty.NeverArrived),
    ],
)
def test_a_sink_that_claims_more_than_it_can_repeats_events(
    semel_pipeline: Make, tmp_path: Path, can: Capability, session: Any
) -> None:
    path = str(tmp_path / "box.db")
    box = Box(name="box", path=path, can=can, session=session)
    pipeline = semel_pipeline(box, **IDS, arrived=lambda: arrived(path))
    assert repeated(list(pipeline.crash_everywhere(FIRST)))


@pytest.mark.parametrize("session", [faulty.AlwaysArrived])
def test_a_sink_that_says_of_everything_that_it_arrived_loses_events(
    semel_pipeline: Make, tmp_path: Path, session: Any
) -> None:
    path = str(tmp_path / "box.db")
    box = Box(name="box", path=path, can=Capability.PROBING, session=session)
    pipeline = semel_pipeline(box, **IDS, arrived=lambda: arrived(path))
    assert lost(list(pipeline.crash_everywhere(FIRST)))


@pytest.mark.parametrize(
    ("session", "found"), [(faulty.TwoTransactions, repeated), (faulty.RowFirst, lost)]
)
def test_a_wrapped_call_shows_a_crash_between_two_transactions(
    semel_pipeline: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    session: Any,
    found: Callable[[list[CrashOutcome]], bool],
) -> None:
    path = str(tmp_path / "box.db")
    box = Box(name="box", path=path, can=Capability.TRANSACTIONAL, session=session)
    pipeline = semel_pipeline(box, **IDS, arrived=lambda: arrived(path))
    assert not found(list(pipeline.crash_everywhere(FIRST)))
    monkeypatch.setattr(session, "effect", pipeline.remote(session.effect))
    monkeypatch.setattr(session, "write", pipeline.remote(session.write))
    assert found(list(pipeline.crash_everywhere(FIRST)))


# -- what is refused


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "no parameter says which rows are the same event"),
        ({"entity": "customer", "identity": "guess"}, "unknown identity 'guess'"),
    ],
)
def test_a_pipeline_without_an_identity_is_refused(
    semel_pipeline: Make, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(semel.ConfigurationError, match=message):
        semel_pipeline(print, **parameters)


def test_a_sink_of_ones_own_needs_to_say_what_arrived(semel_pipeline: Make, tmp_path: Path) -> None:
    with pytest.raises(semel.ConfigurationError, match="sink 'box': pass arrived="):
        semel_pipeline(Box(name="box", path=str(tmp_path / "box.db")), **IDS)


@pytest.mark.parametrize(("rows", "message"), [([], "at least one row"), ([1, "a"], "int, str")])
def test_rows_that_are_not_rows_are_refused(
    semel_pipeline: Make, rows: list[Any], message: str
) -> None:
    with pytest.raises(semel.ConfigurationError, match=message):
        semel_pipeline(print, **IDS).deliver(rows)


def test_the_kit_does_not_import_spark() -> None:
    script = "import sys, semel.testing; assert 'pyspark' not in sys.modules, 'pyspark'"
    subprocess.run([sys.executable, "-c", script], check=True)
