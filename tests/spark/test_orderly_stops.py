"""A query that is stopped in order, in the middle of slow calls, has nothing in doubt."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semel.ledger import Ledger
from semel.protocol import ParkedState
from semel.verify.demo.standalone import ConnectServer
from semel.verify.process_group import ProcessGroup
from support.spark.driver_scripts import Bed, wait_for
from support.spark.pipeline_place import SLOW_CHARGES, TIMEOUT_S, PipelinePlace
from support.spark.reconcile import Account, seed
from support.spark.settings import Settings

STOPS = 100 if os.environ.get("SEMEL_SOAK") else 10
"""How often the query is stopped."""


def settings_of(bed: Bed, stops: int = STOPS, **changes: object) -> Settings:
    """A query into an OPAQUE sink whose calls are slow; each stop comes in the middle of some."""
    luck = random.Random(seed())
    bed.payments(files=stops, rows=40, customers=40)
    return bed.settings(
        sink="opaque",
        words={"partitions": 2},
        sink_settings={"chunk_rows": 4},
        delay_s=0.03,
        stops=[luck.randrange(2, 30) for _ in range(stops)],
        orderly=True,
        **changes,
    )


def ends_of(bed: Bed, settings: Settings) -> list[tuple[str, str]]:
    run = bed.start(settings, script="support.spark.sequential_job")
    run.finished(180 + 12 * len(settings.stops))
    return re.findall(r"^(stopped|ended) \w+: (.*)$", run.said(), re.MULTILINE)


@pytest.mark.rows("S21", "N3")
def test_a_query_that_is_stopped_in_order_again_and_again_has_nothing_in_doubt(bed: Bed) -> None:
    settings = settings_of(bed)
    assert ends_of(bed, settings) == [("stopped", "None")] * STOPS
    Account.of(bed.house, settings).assert_exact(bed.expected)


def test_stopped_as_spark_stops_it_the_same_query_has_windows_in_doubt(bed: Bed) -> None:
    settings = replace(settings_of(bed, 4), orderly=False)
    ends_of(bed, settings)
    assert Account.of(bed.house, settings).in_state(ParkedState.HELD)


def test_a_query_of_spark_connect_is_stopped_in_order_too(bed: Bed, connect: ConnectServer) -> None:
    settings = settings_of(bed, 3, master=connect.url)
    assert ends_of(bed, settings) == [("stopped", "None")] * 3
    Account.of(bed.house, settings).assert_exact(bed.expected)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PipelinePlace]:
    with ProcessGroup("orderly-stop") as group:
        yield PipelinePlace(tmp_path, group)


def test_a_command_or_sigterm_stops_a_pipeline_within_a_micro_batch_and_the_next_run_goes_on(
    place: PipelinePlace,
) -> None:
    expected = place.payments(1, 300)
    file = place.write("charges.toml", SLOW_CHARGES)
    place.variables = {"SLOW_S": "0.1"}

    first = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) > 10, first, TIMEOUT_S)
    told = json.loads(place.semel("stop", "charges", "--ledger", place.ledger, "--json"))
    first.finished(TIMEOUT_S)
    assert (told["ended"], told["complete"], told["in_doubt"]) == (True, False, 0)
    stopped_at = len(place.charged())
    assert stopped_at < len(expected)
    assert place.status("charges")["charge"]["in_doubt"] == 0

    second = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) > stopped_at + 10, second, TIMEOUT_S)
    second.kill(signal.SIGTERM)
    second.finished(TIMEOUT_S)
    assert "charges: drained" in second.said()
    assert len(place.charged()) < len(expected)
    assert place.status("charges")["charge"]["in_doubt"] == 0

    place.variables = {"SLOW_S": "0"}
    third = place.start("run", str(file), "--once")
    third.finished(TIMEOUT_S)
    assert Counter(place.charged()) == Counter(expected)
    assert "is not running" in place.semel_fails("stop", "charges", "--ledger", place.ledger)


def test_an_idle_pipeline_is_stopped_by_the_command_within_seconds(place: PipelinePlace) -> None:
    expected = place.payments(1, 5)
    file = place.write("charges.toml", SLOW_CHARGES)
    run = place.start("run", str(file))
    wait_for(lambda: len(place.charged()) == len(expected), run, TIMEOUT_S)
    said = place.semel("stop", "charges", "--ledger", place.ledger)
    run.finished(TIMEOUT_S)
    assert re.search(r"run 1 ended in order after \d", said)
    assert "minibatch 1.0 is complete; 0 events are in doubt" in said


RESENT = 40


@pytest.fixture
def released(place: PipelinePlace) -> Path:
    """A stopped pipeline without new input, and dead letters that a person released."""
    place.payments(1, RESENT)
    file = place.write("charges.toml", SLOW_CHARGES)
    place.variables = {"REFUSES": "1"}
    place.start("run", str(file), "--once").finished(TIMEOUT_S)
    where = ("--where", "state=rejected", "resend", "--reason", "the bank was closed")
    told = json.loads(place.semel("resolve", *where, "--yes", "--ledger", place.ledger, "--json"))
    assert told["resolved"] == RESENT
    place.variables = {"SLOW_S": "0.5"}
    return file


@pytest.mark.parametrize("how", ["SIGTERM", "SIGTERM of a run that is not a standby", "command"])
def test_a_run_that_sends_released_events_before_its_query_runs_is_stopped_between_two(
    place: PipelinePlace, released: Path, how: str
) -> None:
    once = ["--once"] if "not a standby" in how else []
    run = place.start("run", str(released), *once)
    wait_for(lambda: len(place.charged()) > 2, run, TIMEOUT_S)
    if how == "command":
        told = json.loads(place.semel("stop", "charges", "--ledger", place.ledger, "--json"))
        assert (told["ended"], told["in_doubt"]) == (True, 0)
    else:
        run.kill(signal.SIGTERM)
    run.finished(TIMEOUT_S)
    assert "charges: drained" in run.said()
    assert len(place.charged()) < RESENT
    with Ledger(place.ledger) as ledger:
        states = {row.state for _, row in ledger.parked("charges")}
    assert states == {ParkedState.DELIVERED, ParkedState.RESEND}

    place.variables = {}
    place.start("run", str(released), "--once").finished(TIMEOUT_S)
    assert sorted(place.charged()) == [*range(RESENT)]


def test_a_second_signal_ends_a_run_at_once_before_its_query_runs_too(
    place: PipelinePlace, released: Path
) -> None:
    place.variables = {"SLOW_S": "60"}
    run = place.start("run", str(released))
    wait_for(lambda: place.has_called(run), run, TIMEOUT_S)
    run.kill(signal.SIGTERM)
    time.sleep(1)
    assert run.process.poll() is None, "it waits for the call"
    run.kill(signal.SIGTERM)
    assert run.wait(30) == 128 + signal.SIGTERM, run.said()
    assert place.charged() == []
