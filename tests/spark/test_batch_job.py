"""Batch jobs: run again after a crash they go on, after their end they do nothing."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from semel import Event, Ledger, sink
from semel.errors import Diverged, EventsParked, SemelError
from semel.ledger.client import LedgerClient
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.parked import read_parked, resolve_parked
from semel.protocol import ParkedState
from semel.spark.deliver import deliver_batch
from semel.verify.demo.standalone import spark_environment
from support.spark.charge_sinks import make_sink
from support.spark.driver_scripts import TESTS, Bed, Run, assert_once, assert_ordered, wait_for
from support.spark.positions_table import SCHEMA as POSITIONS
from support.spark.sessions import Desk
from support.spark.settings import Settings
from support.spark.stateful_job import run_batch

COUNTER = {"identity": "counter", "entity": "customer"}


def start(bed: Bed, settings: Settings, batch: str) -> Run:
    bed.starts += 1
    told = bed.folder / f"settings-{bed.starts}.json"
    settings.save(told)
    log = bed.folder / f"driver-{bed.starts}.log"
    environment = spark_environment(bed.group.folder, [TESTS])
    command = [sys.executable, "-m", "support.spark.stateful_job", str(told), "batch", batch]
    return Run(bed.group.start(command, environment, log), log)


@pytest.mark.rows("A9", "A11", "S4", "N1")
def test_a_batch_whose_driver_is_killed_goes_on_at_the_exact_record(bed: Bed) -> None:
    bed.payments(files=3, rows=20)
    settings = bed.settings(sink="transactional", sink_settings={"chunk_rows": 2, "delay_s": 0.05})
    run = start(bed, settings, "2026-11-14")
    wait_for(lambda: len(bed.house.charges()) > 12, run)
    run.kill()
    run.wait()
    bed.end_leftovers()
    before = bed.house.charges()
    assert len(before) < 60
    run = start(bed, settings, "2026-11-14")
    run.finished()
    assert f"suppressed={{'charge': {len(before)}}}" in run.said()
    assert f"delivered={{'charge': {60 - len(before)}}}" in run.said()
    assert_once(bed.house.charges(), bed.expected)
    assert_ordered(bed.house.charges())


@pytest.mark.rows("A10")
@pytest.mark.parametrize("identity", ["given", "counter"])
def test_a_finished_batch_delivers_nothing_again_and_leaves_one_row(
    desk: Desk, identity: str
) -> None:
    desk.payments(files=2, rows=10)
    words: dict[str, Any] = {"identity": COUNTER} if identity == "counter" else {}
    settings = desk.settings(**words)
    first = run_batch(desk.spark, settings, "2026-11-14")
    assert (first.events, first.delivered, first.again) == ({"charge": 20}, {"charge": 20}, False)
    before = desk.charges()
    assert len(before) == 20
    again = run_batch(desk.spark, settings, "2026-11-14")
    assert (again.events, again.delivered, again.again) == ({"charge": 20}, {"charge": 0}, True)
    assert desk.charges() == before
    assert settings.ledger is not None
    with Ledger(settings.ledger) as ledger:
        assert ledger.pipelines() == [f"{desk.name}@2026-11-14"]
        tables = ("open", "streams", "events", "sequences", "parked", "heads", "journal")
        assert [ledger.count(table) for table in tables] == [0] * 7
        assert ledger.count("pipelines") == 1
    desk.payments(files=1, rows=10)
    with pytest.raises(
        Diverged, match=r"finished with 20 events and digest \w+, and this run has 30"
    ):
        run_batch(desk.spark, settings, "2026-11-14")
    assert desk.charges() == before
    run_batch(desk.spark, desk.settings(where="payment_id >= 20", **words), "2026-11-15")
    assert len(desk.charges()) == 30


@pytest.mark.rows("S20")
def test_two_dates_are_filled_at_once(desk: Desk) -> None:
    desk.payments(files=4, rows=10)
    dates = {f"2026-11-{day}": f"payment_id % 4 = {day - 10}" for day in (10, 11, 12, 13)}
    delayed = {"delay_s": 0.02}

    def fill(date: str) -> Any:
        settings = desk.settings(where=dates[date], sink_settings=delayed)
        return run_batch(desk.spark, settings, date)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(fill, dates))
    assert [each.delivered for each in done] == [{"charge": 10}] * 4
    assert_once(desk.charges(), desk.expected)
    with ThreadPoolExecutor(4) as pool:
        assert all(each.again for each in pool.map(fill, dates))
    assert_once(desk.charges(), desk.expected)


@pytest.mark.parametrize(
    ("sink", "identity"),
    [
        ("opaque", "given"),
        ("opaque", "counter"),
        ("transactional", "position"),
        ("transactional", "counter"),
        ("sequenced", "given"),
    ],
)
def test_a_batch_whose_workers_die_goes_on(desk: Desk, sink: str, identity: str) -> None:
    desk.payments(files=2, rows=10)
    source = desk.spark.read.schema("customer string, payment_id bigint, amount bigint")
    frame = source.json(str(desk.input)).coalesce(1)
    words: dict[str, Any] = {"entity": "customer", "event": "payment_id", "partitions": 1}
    if identity == "counter":
        words = {**COUNTER, "partitions": 1, "order_by": "payment_id"}
        desk.expected = [(who, int(str(at)) // 4 + 1) for who, at in desk.expected]
    if identity == "position":
        frame = positions(desk)
        words = {"identity": "position"}
    given: dict[str, Any] = {} if sink == "opaque" else {"chunk_rows": 2}
    steps = ("effect.after",)
    ledger = f"sqlite:///{desk.folder / 'ledger.db'}"

    def run() -> Any:
        to = make_sink(sink, desk.house.url, steps=steps, **given)
        named: dict[str, Any] = {"name": desk.name, "batch": "b", "ledger": ledger}
        return deliver_batch(frame, to=to, fail_on_parked=False, **named, **words)

    desk.house.arm("effect.after", after=3, times=4)
    with pytest.raises(Exception, match=r".") as ended:
        run()
    assert not isinstance(ended.value, SemelError)
    begun = desk.charges()
    assert 0 < len(begun) < 20
    done = run()
    assert desk.charges()[: len(begun)] == begun
    settings = desk.settings(name=f"{desk.name}@b")
    desk.assert_told(settings, in_doubt_max=4 if sink == "opaque" else 0)
    assert done.events == {"charge": 20}
    assert run().again
    desk.assert_told(settings, in_doubt_max=4 if sink == "opaque" else 0)


def positions(desk: Desk) -> Any:
    """A static frame of Kafka's shape: what a batch read of a topic gives."""
    desk.positions({0: list(range(20))})
    rows = json.loads(Path(desk.table).read_text())["partitions"]["0"]
    values = [("t", 0, *row) for row in rows]
    return desk.spark.createDataFrame(values, POSITIONS).coalesce(1)


@pytest.mark.rows("S21")
def test_a_batch_with_parked_events_fails_until_a_person_has_resolved_them(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen, ledger = tmp_path / "seen", f"sqlite:///{tmp_path}/batch.db"

    def out(event: Event) -> None:
        with seen.open("a") as file:
            file.write(f"{event.entity}{event.id}\n")
        if event.id == 1:
            raise TimeoutError("no reply")

    frame = desk.spark.createDataFrame([("a", 1), ("a", 2), ("b", 3)], "c string, id bigint")
    words: dict[str, Any] = {"entity": "c", "event": "id", "ledger": ledger, "partitions": 1}
    words |= {"to": sink(name="out")(out), "name": "mail", "batch": "d"}
    for before in False, True:  # a job that is run again says so again, and repeats nothing
        caplog.clear()
        with pytest.raises(EventsParked) as failed:
            deliver_batch(frame, **words)
        said = str(failed.value)
        assert "sink 'out': 2 of 3 (1 held, 1 waiting)" in said
        assert "`semel parked ls mail@d`" in said
        assert "parked" in caplog.text
        result: Any = failed.value.result
        assert (result.parked, result.again) == ({"out": 2}, before)
        assert (result.delivered, result.suppressed) == ({"out": 1 - before}, {"out": int(before)})
    assert deliver_batch(frame, fail_on_parked=False, **words).parked == {"out": 2}
    assert sorted(seen.read_text().split()) == ["a1", "b3"]
    client = LedgerClient(open_store(ledger), "mail@d")
    [held] = [at for at, row, _ in read_parked(client, "out") if row.state is ParkedState.HELD]
    resolve_parked(client, "out", held, ParkedState.DELIVERED, "ann", "seen in the mailbox")
    client.store.close()
    again = deliver_batch(frame, **words)
    assert (again.resent, again.parked, again.again) == (1, {"out": 0}, True)
    assert sorted(seen.read_text().split()) == ["a1", "a2", "b3"]
