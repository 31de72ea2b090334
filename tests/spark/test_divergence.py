"""A query that does not give the same rows for the same input is found out, and a person judges."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from support.spark.driver_scripts import assert_once, names, repeated
from support.spark.sessions import Desk
from support.spark.settings import Settings

pytestmark = pytest.mark.rows("O24", "N5")

TOLD = re.compile(
    r"partition 0of1: events \[(\d+), (\d+)\) of the order were recorded with (digest )?(\w+), and "
    r"the replay has (digest )?(\w+) \(starting with event (.+?)\)"
)
SINKS = ["opaque", "repeatable", "probing", "transactional", "sequenced"]


def at_random(frame: DataFrame) -> DataFrame:
    """Other values each time the query is started."""
    return frame.withColumn("amount", (sql.rand() * 1_000_000).cast("bigint"))


def settings_of(desk: Desk, sink: str, **changes: Any) -> Settings:
    quick = {} if sink == "opaque" else {"chunk_rows": 2, "lease_s": 0.5, "deadline_s": 1.0}
    told = {**quick, **changes.pop("sink_settings", {})}
    words = {"partitions": 1}
    return desk.settings(sink=sink, sink_settings=told, words=words, max_files=2, **changes)


def crash(desk: Desk, sink: str) -> None:
    """Charge something; the worker dies in all attempts that Spark makes."""
    desk.payments(files=2, rows=10)
    desk.house.arm("effect.after", after=3, times=4)
    with pytest.raises(StreamingQueryException):
        desk.deliver(settings_of(desk, sink, sink_settings={"steps": ["effect.after"]}), at_random)
    assert 0 < len(desk.charges()) < 20


def resolve(desk: Desk, minibatch: str, decision: str) -> None:
    """A person says what is right, on the command line."""
    ledger = desk.settings().ledger
    command = [str(Path(sys.executable).with_name("semel")), "resolve", f"{desk.name}/{minibatch}"]
    said = [*command, decision, "--reason", "looked at it", "--ledger", str(ledger)]
    done = subprocess.run(said, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("sink", SINKS)
def test_a_replay_with_other_values_stops_and_names_what_differs(desk: Desk, sink: str) -> None:
    crash(desk, sink)
    before = desk.charges()
    told = desk.refused(settings_of(desk, sink), at_random)
    assert told.startswith(f"Diverged: pipeline {desk.name!r}, sink 'charge', minibatch 1.0, ")
    found = TOLD.search(told)
    assert found, told
    start, stop, recorded, replayed = int(found[1]), int(found[2]), found[4], found[6]
    assert start < stop <= 20
    assert recorded != replayed
    assert re.fullmatch(r"[0-9a-f]{32}", recorded)
    assert re.fullmatch(r"[0-9a-f]{32}", replayed)
    assert re.match(r"\d+ of 'c\d'", found[7])
    assert f"`semel resolve {desk.name}/1.0 as-recorded|as-replayed" in told
    assert desk.charges() == before


@pytest.mark.parametrize("sink", ["opaque", "transactional", "sequenced"])
def test_as_recorded_what_was_delivered_stands_and_the_rest_is_delivered(
    desk: Desk, sink: str
) -> None:
    crash(desk, sink)
    desk.refused(settings_of(desk, sink), at_random)
    before = desk.charges()
    resolve(desk, "1.0", "as-recorded")
    desk.payments(files=1, rows=10)
    desk.deliver(settings_of(desk, sink), at_random)
    assert desk.charges()[: len(before)] == before
    desk.assert_told(desk.settings(), in_doubt_max=4 if sink == "opaque" else 0)


@pytest.mark.parametrize("sink", ["opaque", "transactional", "sequenced"])
def test_as_replayed_all_of_the_minibatch_is_delivered_anew(desk: Desk, sink: str) -> None:
    crash(desk, sink)
    desk.refused(settings_of(desk, sink), at_random)
    before = desk.charges()
    resolve(desk, "1.0", "as-replayed")
    desk.payments(files=1, rows=10)
    desk.deliver(settings_of(desk, sink), at_random)
    after = desk.charges()[len(before) :]
    assert_once(after, desk.expected)
    assert repeated(desk.charges()) == dict.fromkeys(names(before), 2)
    assert len({charge.osn for charge in after}) == len(after)


def test_code_that_was_changed_under_a_finished_minibatch_is_found_out(desk: Desk) -> None:
    """Spark's commit of the last batch is lost, and a filter was added meanwhile."""
    desk.payments(files=2, rows=10)
    settings = settings_of(desk, "transactional")
    desk.deliver(settings)
    before = desk.charges()
    for file in (desk.folder / "checkpoint" / "commits").glob("*0*"):
        file.unlink()
    told = desk.refused(settings, lambda frame: frame.where("amount != 7"))
    place = f"Diverged: pipeline {desk.name!r}, sink 'charge', minibatch 1.0, partition 0of1: "
    assert told.startswith(place)
    digests = (
        r"complete with 20 events and digest (\w+), but a replay has 19 events and digest (\w+)"
    )
    found = re.search(digests, told)
    assert found, told
    assert found[1] != found[2]
    resolve(desk, "1.0", "as-recorded")
    desk.payments(files=1, rows=10)
    desk.deliver(settings, lambda frame: frame.where("amount != 7"))
    assert desk.charges()[:20] == before
    assert_once(desk.charges(), desk.expected)


def test_the_same_code_under_a_finished_minibatch_is_no_news(desk: Desk) -> None:
    desk.payments(files=2, rows=10)
    settings = settings_of(desk, "opaque")
    desk.deliver(settings)
    before = desk.charges()
    for file in (desk.folder / "checkpoint" / "commits").glob("*0*"):
        file.unlink()
    desk.deliver(settings)
    assert desk.charges() == before
    assert Counter(names(before)) == Counter(desk.expected)
