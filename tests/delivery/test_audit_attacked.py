"""The audit log after what people do to a pipeline between two runs, and with late processes."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import semel
from semel.errors import NotDelivered
from semel.ledger import Ledger, Lifecycle
from semel.ledger.store.commit import Put
from semel.ledger.verbs.parked import SCAN_ROWS, resolve_parked
from semel.operate import find_event
from semel.protocol import ParkedState
from semel.sinks import AuditLog, Files
from semel.streams import stream_of_pipeline
from support.audit import audit_findings, audit_rows
from support.destinations import Crash, crash_after, lost
from support.pipeline import (
    GIVEN,
    INCREASING,
    KINDS,
    POSITION,
    World,
    crash_everywhere,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def audited(folder: Path, kind: str = "opaque", identity: object = GIVEN) -> World:
    """A started pipeline with an audit log."""
    destination, settings = KINDS[kind]()
    world = World(identity, audit=AuditLog(folder))  # type: ignore[arg-type]
    world.add(destination, **settings)
    world.start()
    return world


def crash_before_show(world: World, batch: int, text: str) -> None:
    """Complete a minibatch; the driver dies before its files are moved to their day."""
    opening = world.open(batch)
    reports = world.task(opening, text)
    driver = world.driver
    names = [sink.name for sink in world.sinks]
    driver._minibatches.complete(opening, reports, names, {}, [])


def rename(world: World, new: str) -> None:
    lifecycle = Lifecycle(world.client, stream_of_pipeline(world.client.pipeline))
    lifecycle.rename(new, stream_of_pipeline(new), "ann")
    world.take_name(new)


# -- rename


@pytest.mark.parametrize("crashed", [False, True])
def test_a_renamed_pipeline_continues_its_audit_log(folder: Path, crashed: bool) -> None:
    world = audited(folder)
    world.out.plan(lost)
    world.minibatch(0, "a1")
    world.resolve("a1", "delivered")
    if crashed:
        crash_before_show(world, 1, "a2 b3")
    else:
        world.minibatch(1, "a2 b3")
    rename(world, "charges")
    world.start()
    world.minibatch(1, "a2 b3")
    world.minibatch(2, "b4")
    known = dict.fromkeys((("a", "2"), ("b", "3"), ("b", "4")), "delivered")
    known[("a", "1")] = "in doubt"
    assert audit_findings(folder, "pay", known) == []
    assert {row["pipeline"] for row in audit_rows(folder, "pay")} == {"pay"}
    later = [row["event"] for row in audit_rows(folder, "pay") if row["attempt"] is None]
    assert later == ["1"]
    world.minibatch(3, "b5")
    world.minibatch(4, "b6")
    world.minibatch(5, "b7")
    [found] = find_event(
        Ledger(world.store.memory), "a", ["2"], pipeline="charges", audit=str(folder)
    )
    assert (found.state, found.source) == ("delivered", "audit log")


# -- late processes


def test_a_driver_that_wakes_up_late_removes_nothing_of_the_run_that_replaced_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It completed a minibatch, and is about to clean up; by position the next run adds to it."""
    world = audited(folder, identity=POSITION)
    late = world.driver
    opening = world.open(0)
    late.end(opening, world.task(opening, "a0 a1"))
    world.start()
    again = world.open(0)
    reports = world.task(again, "a0 a1 a2")
    late.audit.clean("pay", late.run, "0001-0000000000")  # type: ignore[union-attr]
    world.driver.end(again, reports)
    known = {("t/0", str(at)): "delivered" for at in range(3)}
    assert audit_findings(folder, "pay", known) == []


def test_what_a_crashed_run_left_aside_is_removed_by_the_next(folder: Path) -> None:
    world = audited(folder)
    world.task(world.open(0), "a1 b2")
    assert list((folder / "pay").glob("_aside/*/*.parquet"))
    world.start()
    world.minibatch(0, "a1 b2")
    assert not list((folder / "pay").glob("_aside/*/*.parquet"))


# -- another folder


def test_the_log_moves_to_another_folder_as_the_error_says(folder: Path, tmp_path: Path) -> None:
    world = audited(folder)
    world.minibatch(0, "a1")
    crash_before_show(world, 1, "a2")
    world.audit = AuditLog(tmp_path / "other")
    world.start()
    with pytest.raises(NotDelivered, match="copy the folder of the pipeline from there"):
        world.open(1)
    shutil.copytree(folder / "pay", tmp_path / "other" / "pay", dirs_exist_ok=True)
    world.start()
    world.minibatch(1, "a2")
    world.minibatch(2, "a3")
    known = {("a", str(at)): "delivered" for at in (1, 2, 3)}
    assert audit_findings(tmp_path / "other", "pay", known) == []


# -- many that were resolved


def test_what_was_resolved_is_read_in_a_few_passes_however_much_it_is(folder: Path) -> None:
    world = audited(folder)
    names = [f"e{at}" for at in range(1_300)]
    world.out.refuses.update(names)
    world.minibatch(0, " ".join(names))
    for at, row in world.parked_rows():
        put = replace(row, state=ParkedState.DISCARDED, by="ann", reason="looked")
        world.store.memory.commit([], [Put(at, put.dump())])
    world.start()
    world.store.scans.clear()
    world.open(1)
    assert sum(table == "parked" for table, _ in world.store.scans) < 3 * 1_300 // SCAN_ROWS + 15
    later = [row["event"] for row in audit_rows(folder, "pay") if row["attempt"] is None]
    assert Counter(later) == Counter(str(at) for at in range(1_300))


# -- a lost checkpoint in the middle of a minibatch


def half_delivered(folder: Path, kind: str, identity: object, *, calls: bool) -> World:
    """A minibatch is complete; of the next one a call (or each) arrived before everything died."""
    world = audited(folder, kind, identity)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    if calls:
        world.task(opening, "a3 b4 a5")
    else:
        world.out.plan(crash_after)
        with pytest.raises(Crash):
            world.task(opening, "a3 b4 a5")
    return world


def goes_on_without_checkpoint(world: World) -> None:
    world.clock.move(100)
    world.start()
    world.minibatch(0, "a1 b2 a3 b4 a5 b6", query="another")


def findings(folder: Path, *, ids_known: bool) -> str:
    """What is wrong with the rows of the events 1 to 6; empty if each is accounted for once."""
    rows = audit_rows(folder, "pay")
    counted = Counter(row["event"] for row in rows if row["attempt"])
    found = [re.search(r"; (\d+) delivered before these", row["why"] or "") for row in rows]
    more = {int(each[1]) for each in found if each is not None}
    if more and ids_known:
        return f"{more} events have no row"
    right = set(counted.values()) == {1} and sum(counted.values()) + sum(more) == 6
    return "" if right and set(counted) >= set("126") else f"{counted}, {more} more"


@pytest.mark.parametrize("identity", [GIVEN, INCREASING, POSITION], ids=["given", "inc", "pos"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_lost_checkpoint_left_half_done_has_its_rows(
    tmp_path: Path, kind: str, identity: object
) -> None:
    """A destination with progress knows the last event only, of each entity or partition."""
    ids_known = identity is GIVEN or not kind.startswith(("transactional", "sequenced"))
    for calls in (False, True):
        world = half_delivered(tmp_path / str(calls), kind, identity, calls=calls)
        goes_on_without_checkpoint(world)
        assert findings(tmp_path / str(calls), ids_known=ids_known) == ""


@pytest.mark.parametrize("kind", ["opaque", "probing", "transactional", "sequenced"])
def test_it_has_its_rows_wherever_the_next_run_crashes(tmp_path: Path, kind: str) -> None:
    folders: list[Path] = []

    def make() -> World:
        folders.append(tmp_path / str(len(folders)))
        return half_delivered(folders[-1], kind, GIVEN, calls=False)

    for told, world in crash_everywhere(make, goes_on_without_checkpoint):
        goes_on_without_checkpoint(world)
        assert findings(folders[-1], ids_known=True) == "", told


# -- a second stage


def test_what_was_resolved_at_a_second_stage_is_pruned_and_has_no_rows(
    folder: Path, tmp_path: Path
) -> None:
    def notify(event: semel.Event) -> None:
        if event.id == "1.0":
            raise OSError("the reply was lost")

    world = World(audit=AuditLog(folder))
    world.sinks.append(Files(name="out", url=str(tmp_path / "out"), then=semel.sink(notify)))
    world.start()
    world.minibatch(0, "a1")
    world.minibatch(1, "a2")
    [stage] = {at.key.split("/")[1] for at, _ in world.store.memory.scan("parked", "")}
    [(at, row)] = [each for each in world.parked_rows(stage) if each[1].doubted]
    resolve_parked(world.client, stage, at, ParkedState.DELIVERED, "ann", "looked")
    assert row.recorded is None
    for batch in range(2, 101):
        world.clock.move(8 * 86_400)
        world.minibatch(batch, f"a{batch + 1}")
    assert at not in [each for each, _ in world.parked_rows(stage)]
    assert {row["sink"] for row in audit_rows(folder, "pay")} == {"out"}
