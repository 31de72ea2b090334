"""`semel resolve --where`: many parked events are decided at once, after they were counted."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.errors import LedgerUnavailable
from semel.events import Minibatch
from semel.ledger import Ledger, LedgerClient, change_parked, open_store
from semel.ledger.rows import HeadRow, ParkedRow
from semel.ledger.store.commit import Key, Put, Requirement, Store, Update
from semel.ledger.verbs.parked import head_key, parked_key, read_parked, resolve_parked
from semel.operate import resolve_many, utc_text
from semel.protocol import OnReject, ParkedState
from support.command_line import pipeline_at, read_json, refused, semel
from support.destinations import Post, lost
from support.pipeline import World, crash_everywhere, world_of

Out = pytest.CaptureFixture[str]
REASON = ("--reason", "seen in the mailbox", "--by", "ann")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Event 1 of a is in doubt, 3 of a waits behind it; 2 of b and 4 of d are rejected."""
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    made.out.refuses.update({"b2", "d4"})
    made.out.plan(lost)
    made.minibatch(0, "a1 b2 a3 d4 e5")
    return made


def contents(world: World) -> list[tuple[Key, str]]:
    tables = ("parked", "heads", "owners", "open", "sequences", "streams")
    return [row for table in tables for row in world.store.memory.scan(table, "")]


def test_without_yes_it_counts_by_sink_state_and_reason_and_changes_nothing(
    world: World, capsys: Out
) -> None:
    before = contents(world)
    status, out, err = semel(capsys, "resolve", "--where", "sink=out", "discard", *REASON)
    assert (status, err) == (0, "")
    assert out.splitlines()[0].split() == ["pipeline", "sink", "state", "why", "events"]
    assert "rejected" in out
    assert "for example pay/out/a/1, pay/out/b/2, pay/out/d/4" in out
    assert "not decidable as they are: 1 waiting" in out
    assert "3 of 4 parked events would be discarded (by ann)" in out
    assert "Nothing was changed: run it with --yes" in out
    told = read_json(capsys, "resolve", "--where", "sink=out", "discard", *REASON)
    assert (told["dry_run"], told["chosen"], told["resolved"]) == (True, 3, 0)
    assert told["not_decidable"] == {"waiting": 1}
    assert sum(group["count"] for group in told["groups"]) == 3
    assert contents(world) == before


def test_with_yes_each_event_keeps_who_decided_and_why(world: World, capsys: Out) -> None:
    told = read_json(capsys, "resolve", "--where", "state=rejected", "resend", *REASON, "--yes")
    assert (told["resolved"], told["changed_meanwhile"], told["dry_run"]) == (2, 0, False)
    assert world.parked() == ["a1 held", "b2 resend", "a3 waiting", "d4 resend"]
    for _, row in world.parked_rows():
        if row.state is ParkedState.RESEND:
            assert (row.by, row.reason) == ("ann", "seen in the mailbox")
    world.out.refuses.clear()
    world.driver.drain()
    assert world.out.seen.split() == ["a1", "e5", "b2", "d4"]


def test_a_second_time_it_finds_nothing_left_to_decide(world: World, capsys: Out) -> None:
    arguments = ("resolve", "--where", "state=held or state=rejected", "delivered", *REASON)
    assert read_json(capsys, *arguments, "--yes")["resolved"] == 3
    again = read_json(capsys, *arguments, "--yes")
    assert (again["chosen"], again["resolved"]) == (0, 0)


def test_an_event_that_was_released_is_meant_only_where_the_filter_says_so(
    world: World, capsys: Out
) -> None:
    read_json(capsys, "resolve", "--where", "entity=b", "resend", *REASON, "--yes")
    told = read_json(capsys, "resolve", "--where", "sink=out", "discard", *REASON)
    assert (told["chosen"], told["not_decidable"]) == (2, {"resend": 1, "waiting": 1})
    told = read_json(capsys, "resolve", "--where", "state=resend", "discard", *REASON, "--yes")
    assert told["resolved"] == 1
    assert "b2 discarded" in world.parked()


def test_what_cannot_be_meant_is_refused_in_one_line(world: World, capsys: Out) -> None:
    del world
    where = ("--where", "sink=out")
    assert "character 6" in refused(capsys, "resolve", "--where", "sink out", "discard", *REASON)
    assert "one decision" in refused(capsys, "resolve", *where, "a/1", "discard", *REASON)
    assert "unknown decision 'drop'" in refused(capsys, "resolve", *where, "drop", *REASON)
    assert "decides about a minibatch" in refused(capsys, "resolve", *where, "as-recorded", *REASON)
    assert "empty" in refused(capsys, "resolve", *where, "discard", "--reason", " ")
    assert "must not begin" in refused(
        capsys, "resolve", *where, "discard", "--reason", "as-replayed: x"
    )
    assert "--yes belongs to --where" in refused(
        capsys, "resolve", "a/1", "discard", *REASON, "--yes"
    )


def test_a_row_that_cannot_be_read_is_reported_and_the_others_are_decided(
    world: World, capsys: Out
) -> None:
    [at] = [at for at, row in world.parked_rows() if row.event == 2]
    world.store.memory.commit([], [Put(at, '{"broken":1}')])
    status, out, err = semel(capsys, "resolve", "--where", "sink=out", "discard", *REASON, "--yes")
    assert status == 2
    assert "2 events: discarded" in out
    assert "is damaged" in err
    del world.store.memory


# -- what happens at the same time


def parked_world() -> World:
    world = world_of(Post(), on_reject=OnReject.BLOCK)
    world.out.refuses.update({"a1", "b2", "c3"})
    world.minibatch(0, "a1 b2 c3 a4 b5")
    world.out.refuses.clear()
    return world


def decide(world: World, decision: str = "resend", **others: Any) -> Any:
    ledger = Ledger(world.store)
    return resolve_many(
        ledger,
        others.pop("where", "sink=out"),
        decision,
        by="ann",
        reason="fixed",
        dry_run=False,
        clock=world.clock,
        **others,
    )


def test_what_another_person_or_the_query_changed_meanwhile_is_left_and_counted() -> None:
    world = parked_world()

    class Moves:
        """Between reading and deciding, others act: one discards a1, the query sends b2."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.acted = inner, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
            if not self.acted:
                self.acted = True
                world.resolve("a1", "discarded")
                world.resolve("b2", "resend")
                world.driver.drain()
            self.inner.commit(requirements, updates)

    ledger = Ledger(Moves(world.store))
    found = resolve_many(
        ledger, "sink=out", "resend", by="bob", reason="all", dry_run=False, clock=world.clock
    )
    assert (found.chosen.total, found.resolved, found.changed) == (3, 1, 2)
    assert found.changed_examples == ["pay/out/a/1", "pay/out/b/2"]
    rows = {row.event: row for _, row in world.parked_rows()}
    assert (rows[1].state, rows[1].by) == (ParkedState.DISCARDED, "ann")
    assert (rows[2].state, rows[2].by) == (ParkedState.DELIVERED, "ann")
    assert (rows[3].state, rows[3].by) == (ParkedState.RESEND, "bob")
    world.driver.drain()
    assert sorted(world.out.seen.split()) == ["a4", "b2", "b5", "c3"]


def test_a_lost_reply_is_recognised_even_if_the_query_has_gone_on_since() -> None:
    world = parked_world()

    def reply_lost_and_sent(act: Callable[[], Any]) -> Any:
        act()
        world.store.script.clear()
        world.driver.drain()
        raise LedgerUnavailable("the reply was lost")

    world.store.script.append(reply_lost_and_sent)
    found = decide(world)
    assert (found.resolved, found.changed) == (3, 0)
    assert sorted(world.out.seen.split()) == ["a1", "a4", "b2", "b5", "c3"]


@pytest.mark.parametrize("decision", ["resend", "delivered", "discard"])
def test_after_a_crash_at_any_call_the_same_command_decides_the_rest(decision: str) -> None:
    for what, world in crash_everywhere(parked_world, lambda world: decide(world, decision)):
        again = decide(world, decision)
        states = [row.state for _, row in world.parked_rows() if row.event in (1, 2, 3)]
        final = {"resend": "resend", "delivered": "delivered", "discard": "discarded"}[decision]
        assert states == [ParkedState(final)] * 3, what
        assert again.resolved in (0, 3), what
        world.driver.drain()
        sent = {"resend": "a1 a4 b2 b5 c3"}.get(decision, "a4 b5")
        assert sorted(world.out.seen.split()) == sent.split(), what
        assert not world.heads(), what


def test_two_people_and_a_query_at_once_decide_each_event_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    world = pipeline_at(url, on_reject=OnReject.BLOCK)
    names = [f"{'abcdefghij'[number % 10]}{number}" for number in range(1, 301)]
    world.out.refuses.update(names)
    world.minibatch(0, " ".join(names))
    found: list[Any] = []

    def person(decision: str, by: str) -> None:
        store = open_store(url)
        found.append(
            resolve_many(Ledger(store), "sink=out", decision, by=by, reason="r", dry_run=False)
        )
        store.close()

    threads = [
        threading.Thread(target=person, args=each)
        for each in (("discard", "ann"), ("delivered", "bob"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [row for _, row in world.parked_rows() if row.by is not None]
    by = {"ann": ParkedState.DISCARDED, "bob": ParkedState.DELIVERED}
    assert all(row.state is by[str(row.by)] for row in rows)
    assert sum(each.resolved for each in found) == len(rows)
    for each in found:
        assert each.resolved == sum(row.by == each.by for row in rows)
        assert each.chosen.total == each.resolved + each.changed


def test_heads_that_move_all_the_time_do_not_keep_it_from_ending() -> None:
    world = parked_world()
    client = LedgerClient(world.store, "pay", world.clock)

    class Busy:
        """The head of a moves before each of the first commits."""

        def __init__(self) -> None:
            self.left = 6

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

        def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
            if self.left:
                self.left -= 1
                at = head_key("pay", "out", ("a", "a"))
                head = HeadRow.load(str(client.read_one(at)), at)
                bumped = replace(head, version=head.version + 1)
                world.store.memory.commit([], [Put(at, bumped.dump())])
            world.store.commit(requirements, updates)

    found = resolve_many(
        Ledger(Busy()),
        "sink=out",
        "resend",
        by="ann",
        reason="fixed",
        dry_run=False,
        clock=world.clock,
    )
    assert (found.resolved, found.changed) == (3, 0)
    world.driver.drain()
    assert not world.heads()


def test_no_change_is_made_twice() -> None:
    world = parked_world()
    from semel.ledger import ParkedChange, decided

    rows = read_parked(world.client, "out")
    change = [
        ParkedChange(at, text, row, decided(row, ParkedState.RESEND, "ann", "x"))
        for at, row, text in rows
        if row.event == 1
    ]
    assert change_parked(world.client, "out", change) == {change[0].key}
    resolve_parked(world.client, "out", change[0].key, ParkedState.DISCARDED, "bob", "no")
    assert change_parked(world.client, "out", change) == set()
    assert "a1 discarded" in world.parked()


# -- very many


def many(store: Store, count: int, why: str = "TimeoutError: no reply") -> None:
    """Park events straight in the store, as many minibatches would."""
    for start in range(0, count, 2_000):
        updates: list[Update] = []
        for number in range(start, min(start + 2_000, count)):
            row = ParkedRow(
                entity=f"e{number}",
                scope=f"e{number}",
                event=number,
                minibatch=Minibatch(1, number // 1_000),
                partition="0",
                position=number % 1_000,
                osn=number + 1,
                state=ParkedState.REJECTED,
                why=f"{why} {number}",
                at=1_000.0 + number,
                blocks=False,
            )
            updates.append(Put(parked_key("pay", "out", row), row.dump()))
        store.commit([], updates)


def test_memory_does_not_grow_with_the_number_of_parked_events(tmp_path: Path) -> None:
    peaks = []
    for count in (2_000, 12_000):
        world = pipeline_at(tmp_path / f"{count}.db")
        many(world.store.memory, count)
        ledger = Ledger(world.store.memory)
        tracemalloc.start()
        found = resolve_many(ledger, "why~timeout", "discard", by="a", reason="r", dry_run=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found.resolved == count
        assert len(found.chosen.to_json()) == 1, "numbers in a reason make no group of their own"
        world.store.memory.close()
    assert peaks[1] < 1.5 * peaks[0] + 200_000


def test_reasons_that_all_differ_are_counted_together_after_a_while() -> None:
    from semel.operate.bulk.scanning import GROUPS_MAX, OTHER, ChosenEvent, ParkedGroups

    groups = ParkedGroups()
    world = parked_world()
    at, row, text = read_parked(world.client, "out")[0]
    for number in range(GROUPS_MAX + 50):
        name = "".join(chr(97 + int(digit)) for digit in f"{number:04}")
        groups.add(ChosenEvent("pay", "out", at, text, replace(row, why=name)))
    made = groups.to_json()
    assert len(made) == GROUPS_MAX + 1
    assert made[0] == {
        "pipeline": "pay",
        "sink": "out",
        "state": "rejected",
        "why": OTHER,
        "count": 50,
    }


def test_long_work_says_how_far_it_is(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.cli.output import ProgressLine

    monkeypatch.setattr(ProgressLine, "EVERY_S", 0.0)
    world = pipeline_at(tmp_path / "ledger.db")
    many(world.store.memory, 450)
    world.store.memory.close()
    ledger = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    status, out, err = semel(
        capsys, "resolve", "--where", "state=rejected", "discard", *REASON, "--yes", *ledger
    )
    assert status == 0
    assert "450 events: discarded" in out
    assert err.splitlines() == [
        "200 events read, 200 resolved",
        "400 events read, 400 resolved",
        "450 events read, 450 resolved",
    ]


def test_status_says_how_old_the_oldest_parked_event_is(world: World, capsys: Out) -> None:
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert sink["oldest_parked_since"].endswith("Z")
    at, row, text = read_parked(world.client, "out")[-1]
    old = replace(row, at=int(time.time()) - 3 * 3_600)
    del text
    world.store.memory.commit([], [Put(at, old.dump())])
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert sink["oldest_parked_since"] == utc_text(old.at)
    assert "oldest parked" in semel(capsys, "status")[1]
    assert "3 h ago" in semel(capsys, "status")[1]
    semel(capsys, "resolve", "--where", "sink=out", "delivered", *REASON, "--yes")
    world.driver.drain()
    [sink] = read_json(capsys, "status", "pay")["sinks"]
    assert sink["oldest_parked_since"] is None
