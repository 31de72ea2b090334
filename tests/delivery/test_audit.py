"""The audit log has a row for every event of every complete minibatch, whatever crashes when."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semel
from semel.errors import ConfigurationError, NotDelivered
from semel.ledger import Ledger, Pruning
from semel.operate import find_event, prune_audit
from semel.protocol import Capability
from semel.sinks import AuditLog, event_text, event_texts
from semel.sinks.files.storage import Folder, Writing
from semel.testing import CrashOutcome, PipelineUnderTest
from support.audit import audit_findings, audit_rows
from support.contract_sinks.honest import Box, arrived
from support.destinations import Post, Register, lost
from support.pipeline import GIVEN, POSITION, World, crash_everywhere

Make = Callable[..., PipelineUnderTest]
IDS = {"entity": "customer", "event": "payment_id"}
FIRST = [{"customer": who, "payment_id": number} for who, number in (("ann", 1), ("bob", 2))]
NEXT = [{"customer": "ann", "payment_id": 3}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


def expected(outcome: CrashOutcome) -> dict[tuple[str, str], str]:
    """The outcome that the ledger records of each event."""
    known = {"delivered": outcome.delivered, "in doubt": outcome.in_doubt, "parked": outcome.parked}
    return {(name[0], str(name[1])): state for state, names in known.items() for name in names}


def with_steps(pipeline: PipelineUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is done to files be steps that can crash and fail."""
    for kind, name in ((Writing, "keep"), (Folder, "move"), (Folder, "remove_folder")):
        monkeypatch.setattr(kind, name, pipeline.remote(getattr(kind, name)))


# -- wherever it crashes


@pytest.mark.parametrize("way", ["crash_everywhere", "fail_everywhere"])
def test_wherever_it_crashes_or_fails_each_event_of_a_function_has_one_true_row(
    semel_pipeline: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def charge(event: semel.Event) -> None:
        if event.id == 2:
            raise semel.Rejected("no such customer")

    pipeline = semel_pipeline(charge, **IDS, partitions=2, audit=folder)
    with_steps(pipeline, monkeypatch)
    outcomes = list(getattr(pipeline, way)(FIRST, NEXT))
    assert len(outcomes) > 20
    assert any("Folder.move" in outcome.where for outcome in outcomes)
    for outcome in outcomes:
        assert outcome.error is None, outcome
        assert len(expected(outcome)) == 3, outcome
        assert audit_findings(folder, outcome.pipeline, expected(outcome)) == [], outcome


@pytest.mark.parametrize("can", [each for each in Capability if each is not Capability.OPAQUE])
def test_wherever_an_exact_sink_crashes_each_event_is_recorded_as_delivered_once(
    semel_pipeline: Make,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    can: Capability,
) -> None:
    path = str(tmp_path / "box.db")
    box = Box(name="box", path=path, can=can)
    pipeline = semel_pipeline(box, **IDS, arrived=lambda: arrived(path), audit=folder)
    with_steps(pipeline, monkeypatch)
    for outcome in pipeline.crash_everywhere(FIRST, NEXT):
        assert outcome.exactly_once, outcome
        assert audit_findings(folder, outcome.pipeline, expected(outcome)) == [], outcome


def test_a_planted_row_and_a_missing_one_are_found(semel_pipeline: Make, folder: Path) -> None:
    pipeline = semel_pipeline(charge_nothing, **IDS, audit=folder)
    pipeline.deliver(FIRST)
    known = expected(pipeline.outcome)
    assert audit_findings(folder, "test-1", known) == []
    [file] = (folder / "test-1").glob("day=*/*.parquet")
    shutil.copy(file, file.with_name("copy.parquet"))
    assert "('ann', '1') has 2 rows" in audit_findings(folder, "test-1", known)
    file.with_name("copy.parquet").unlink()
    assert audit_findings(folder, "test-1", {**known, ("ann", "1"): "parked"}) == [
        "('ann', '1') is delivered, but should be parked"
    ]
    file.unlink()
    assert audit_findings(folder, "test-1", known) == [
        "('ann', '1') has 0 rows",
        "('bob', '2') has 0 rows",
    ]


def charge_nothing(event: semel.Event) -> None:
    del event


# -- what is in a row


def audited(folder: Path, identity: Any = None, **settings: Any) -> tuple[World, Post]:
    """A started pipeline to an OPAQUE destination, with an audit log."""
    world = World(identity or GIVEN, audit=AuditLog(folder))
    post = Post()
    world.add(post, **settings)
    world.start()
    return world, post


def test_a_row_has_where_and_when_and_by_which_attempt(folder: Path) -> None:
    world, post = audited(folder)
    post.refuses.add("b2")
    world.minibatch(0, "a1 b2")
    [first, second] = audit_rows(folder, "pay")
    assert first == {
        "pipeline": "pay",
        "sink": "out",
        "partition": "0",
        "entity": "a",
        "event": "1",
        "osn": 1,
        "minibatch": "1.0",
        "attempt": "1.1",
        "time": first["time"],
        "outcome": "delivered",
        "why": None,
    }
    assert first["time"].timestamp() == world.clock.wall()
    assert (second["outcome"], second["why"]) == ("parked", "b2 is refused")


def test_a_complete_minibatch_that_runs_again_gets_no_second_row(folder: Path) -> None:
    world, _ = audited(folder)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2")
    assert audit_findings(folder, "pay", {("a", "1"): "delivered", ("b", "2"): "delivered"}) == []


def test_a_lost_checkpoint_gives_no_event_a_second_row(folder: Path) -> None:
    world, _ = audited(folder)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a1 b2 a3", query="another")
    known = {("a", "1"): "delivered", ("b", "2"): "delivered", ("a", "3"): "delivered"}
    assert audit_findings(folder, "pay", known) == []


def test_a_source_partition_that_has_more_on_a_replay_keeps_both_files(folder: Path) -> None:
    for shown in (False, True):
        shutil.rmtree(folder, ignore_errors=True)
        world, _ = audited(folder, POSITION)
        world.minibatch(0, "a0 a1")
        if not shown:  # the driver died before it moved the file
            [file] = (folder / "pay").glob("day=*/*.parquet")
            text = world.streams()[0].audited or {}
            [part] = text.values()
            aside = folder / "pay" / part["aside"]
            aside.parent.mkdir(parents=True)
            file.rename(aside)
        world.start()
        world.minibatch(0, "a0 a1 a2")
        known = {("t/0", str(at)): "delivered" for at in range(3)}
        assert audit_findings(folder, "pay", known) == []


def test_what_a_replaced_attempt_wrote_is_never_seen(folder: Path) -> None:
    world, _ = audited(folder)
    opening = world.open(0)
    world.task(opening, "a1 b2")
    reports = world.task(opening, "a1 b2")  # the first attempt came to its end, and does not count
    world.driver.end(opening, reports)
    assert {row["attempt"] for row in audit_rows(folder, "pay")} == {"1.2"}
    assert audit_findings(folder, "pay", {("a", "1"): "delivered", ("b", "2"): "delivered"}) == []
    assert not list((folder / "pay").glob("_aside/*"))


def test_a_folder_that_cannot_be_written_stops_the_query_and_leaves_no_doubt(folder: Path) -> None:
    world, post = audited(folder)
    folder.write_text("not a folder")
    with pytest.raises(NotDelivered, match=r"the audit log at .* could not be written"):
        world.minibatch(0, "a1 b2")
    folder.unlink()
    world.start()
    world.minibatch(0, "a1 b2")
    assert post.seen == "a1 b2"
    assert world.parked() == []
    assert audit_findings(folder, "pay", {("a", "1"): "delivered", ("b", "2"): "delivered"}) == []


def test_a_lost_file_stops_the_query_and_is_named(folder: Path) -> None:
    world, _ = audited(folder)
    world.minibatch(0, "a1 b2")
    shutil.rmtree(folder)
    world.start()
    with pytest.raises(NotDelivered, match="If audit= named another folder before"):
        world.minibatch(0, "a1 b2")


def test_without_an_audit_log_the_ledger_has_no_word_of_it(tmp_path: Path) -> None:
    world = World()
    world.add(Register())
    world.start()
    world.minibatch(0, "a1")
    assert not [text for text in world.store.memory.rows().values() if "audited" in text]


# -- what is resolved later


def parked_and_resolved(folder: Path) -> World:
    world, post = audited(folder)
    post.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    world.resolve("a1", "delivered")
    return world


def goes_on(world: World) -> None:
    """A restart drains what waited, and records what was resolved."""
    world.clock.move(100)
    world.start()
    world.minibatch(1, "b4")


def test_what_was_resolved_has_a_row_more_wherever_it_crashes(tmp_path: Path) -> None:
    folders: list[Path] = []

    def make() -> World:
        folders.append(tmp_path / str(len(folders)))
        return parked_and_resolved(folders[-1])

    worlds = 0
    for what, world in crash_everywhere(make, goes_on):
        worlds += 1
        world.start()
        world.minibatch(1, "b4")
        later = [row for row in audit_rows(folders[-1], "pay") if row["attempt"] is None]
        found = sorted(f"{row['entity']}{row['event']} {row['outcome']}" for row in later)
        assert found == [each for each in world.parked() if each.endswith("delivered")], what
        assert "a1 delivered" in found, what
        known = {("a", "1"): "in doubt", ("b", "2"): "delivered", ("a", "3"): "parked"}
        known |= {("b", "4"): "in doubt" if "b4 held" in world.parked() else "delivered"}
        assert audit_findings(folders[-1], "pay", known) == [], what
    assert worlds > 10


def test_a_file_of_resolved_events_that_a_crash_prevented_is_written_by_the_next_run(
    folder: Path,
) -> None:
    world = parked_and_resolved(folder)
    goes_on(world)
    [file] = (folder / "pay").glob("day=*/resolved-*.parquet")
    before = file.read_bytes()
    file.unlink()
    world.start()
    world.minibatch(2, "b5")
    assert file.read_bytes() == before


# -- finding


def test_find_asks_the_audit_log_where_the_ledger_has_pruned(folder: Path) -> None:
    world = parked_and_resolved(folder)
    goes_on(world)
    for batch in range(2, 5):
        world.clock.move(8 * 86_400)
        world.minibatch(batch, f"c{batch + 10}")
    ledger = Ledger(world.store.memory)
    old = {each.key for each, _ in world.parked_rows()}
    Pruning(world.client, audited=True).run(["out"])
    assert old
    assert not world.parked_rows()
    assert [each.state for each in find_event(ledger, "b", ["2"])] == ["not seen"]
    for event, outcome, why in (("1", "delivered", "ann: looked"), ("2", "delivered", None)):
        [found] = find_event(ledger, "a" if event == "1" else "b", [event], audit=str(folder))
        assert (found.state, found.why, found.source) == (outcome, why, "audit log")
        assert found.osn == (int(event), int(event))
        assert str(found.minibatch) == "1.0"
    [newest] = find_event(ledger, "c", ["14"], audit=str(folder))
    assert (newest.state, newest.source) == ("delivered", "ledger")
    [never] = find_event(ledger, "c", ["99"], audit=str(folder))
    assert (never.state, never.source) == ("not seen", "ledger")


def test_an_event_that_was_not_recorded_as_resolved_is_not_pruned(folder: Path) -> None:
    world = parked_and_resolved(folder)
    for batch in range(1, 4):
        world.minibatch(batch, f"c{batch + 10}")
    world.clock.move(8 * 86_400)
    Pruning(world.client, audited=True).run(["out"])
    assert "a1 delivered" in world.parked()
    Pruning(world.client).run(["out"])
    assert "a1 delivered" not in world.parked()


def test_a_folder_that_has_no_audit_log_is_not_taken_for_an_answer(folder: Path) -> None:
    world, _ = audited(folder)
    world.minibatch(0, "a1")
    ledger = Ledger(world.store.memory)
    with pytest.raises(ConfigurationError, match=r"nothing of pipeline 'pay'.*that audit= of"):
        find_event(ledger, "c", ["99"], audit=str(folder.parent / "typo"))
    with pytest.raises(ConfigurationError, match="there is no audit log"):
        prune_audit(str(folder.parent / "typo"), 7)


# -- retention


def test_old_days_are_removed_and_a_driver_does_not_miss_them(folder: Path) -> None:
    world, _ = audited(folder)
    world.minibatch(0, "a1")
    world.clock.move(3 * 86_400)
    world.minibatch(1, "a2")
    log = AuditLog(folder)
    assert log.prune(date(1970, 1, 2)) == {"pay": ["1970-01-01"]}
    assert [row["event"] for row in audit_rows(folder, "pay")] == ["2"]
    assert log.prune(date(1970, 1, 2)) == {}
    assert log.prune(date(1970, 1, 9)) == {"pay": ["1970-01-04"]}
    world.start()
    world.minibatch(1, "a2")  # Spark did not commit it: it is shown once more
    assert audit_rows(folder, "pay") == []


# -- names


@pytest.mark.parametrize(
    "ids",
    [
        [(1,), (-7,)],
        [("x",), ("a,b%",)],
        [(1, "x"), (2, "a,b"), (3, "50%")],
        [("a", "b,c"), ("a,b", "c")],
    ],
)
def test_ids_are_written_in_columns_as_they_are_one_by_one(ids: list[tuple[Any, ...]]) -> None:
    columns = [pa.array(part) for part in zip(*ids, strict=True)]
    one_by_one = [event_text(each if len(each) > 1 else each[0]) for each in ids]
    assert event_texts(columns).to_pylist() == one_by_one
    assert len(set(one_by_one)) == len(ids)


@pytest.mark.parametrize(
    ("url", "message"), [("", "must be a folder"), ("ftp://x", "not a supported place")]
)
def test_what_is_no_folder_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AuditLog(url)
