"""`semel parked` and `semel resolve`: a person lists parked events and decides about them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Diverged, OutcomeUnknown
from semel.ledger.verbs.runs import Owners
from semel.protocol import OnReject
from support.command_line import beats, pipeline_at, read_json, refused, semel
from support.destinations import Database, lost
from support.pipeline import ORDERED_POSITION, World

Out = pytest.CaptureFixture[str]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Event 1 of a is in doubt, 3 and 5 of a wait behind it, event 2 of b is rejected."""
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    made.out.refuses.add("b2")
    made.out.plan(lost)
    made.minibatch(0, "a1 b2 a3 c4 a5=9")
    return made


def test_what_waits_is_listed_with_a_handle_and_how_many_wait_behind(
    world: World, capsys: Out
) -> None:
    told = read_json(capsys, "parked", "ls")
    assert [(each["event"], each["state"], each["behind"]) for each in told] == [
        ("pay/out/a/1", "held", 2),
        ("pay/out/b/2", "rejected", 0),
        ("pay/out/a/3", "waiting", 1),
        ("pay/out/a/5", "waiting", 0),
    ]
    status, out, _ = semel(capsys, "parked", "ls", "pay")
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == ["short", "event", "state", "why", "since", "resends", "behind"]
    assert len(lines) == 5
    assert lines[1].startswith("@")
    assert "pay/out/a/1" in lines[1]


def test_an_event_is_shown_with_its_payload_by_either_name(world: World, capsys: Out) -> None:
    told = read_json(capsys, "parked", "show", "a/5")
    assert told["row"]["value"]["v"] == 9
    status, out, _ = semel(capsys, "parked", "show", told["short"])
    assert status == 0
    assert "pay/out/a/5" in out
    assert "waiting: behind another event of its entity" in out
    assert "  v: 9" in out


def test_the_traceback_of_the_first_call_that_failed_is_shown(world: World, capsys: Out) -> None:
    status, out, _ = semel(capsys, "parked", "show", "a/1")
    assert status == 0
    assert "traceback of the first call that failed with this error:" in out
    assert "TimeoutError: no reply" in out.partition("traceback")[2].partition("payload:")[0]
    assert "in lost" in out
    assert "in lost" in read_json(capsys, "parked", "show", "a/1")["row"]["trace"]
    assert "traceback" not in semel(capsys, "parked", "show", "b/2")[1]


@pytest.mark.parametrize(
    ("decision", "state", "left"),
    [("delivered", "delivered", 3), ("resend", "resend", 4), ("discard", "discarded", 3)],
)
def test_a_person_resolves_an_event_and_may_say_it_twice(
    world: World, capsys: Out, decision: str, state: str, left: int
) -> None:
    for _ in range(2):
        told = read_json(capsys, "resolve", "a/1", decision, "--reason", "I looked", "--by", "ann")
        assert (told["event"], told["state"]) == ("pay/out/a/1", state)
    assert len(read_json(capsys, "parked", "ls")) == left
    [row] = [each for each in read_json(capsys, "parked", "ls", "--all") if each["id"] == 1]
    assert row["state"] == state
    shown = read_json(capsys, "parked", "show", row["short"])["row"]
    assert (shown["by"], shown["reason"]) == ("ann", "I looked")


def test_after_resend_the_running_pipeline_sends_it_and_what_waits(
    world: World, capsys: Out
) -> None:
    with beats(os.environ["SEMEL_LEDGER"]):
        told = read_json(capsys, "resolve", "a/1", "resend", "--reason", "not there")
    assert "@" in told["by"]
    assert "pipeline pay is running (run 1)" in told["next"]
    assert "it is sent, and the 2 behind it follow, before the next minibatch" in told["next"]
    assert "once no earlier call can still be in flight" in told["next"]
    world.clock.move(60.0)
    world.driver.drain()
    assert world.out.seen.split() == ["a1", "c4", "a1", "a3", "a5"]
    assert [each["id"] for each in read_json(capsys, "parked", "ls")] == [2]


def test_it_says_so_when_nobody_runs_who_could_send(world: World, capsys: Out) -> None:
    Owners(world.client).beat(1, "nonce-1", ended=True)
    status, out, _ = semel(capsys, "resolve", "b/2", "resend", "--reason", "the address is fixed")
    assert status == 0
    assert "pipeline pay does not seem to run (ended)" in out
    assert "once it is started" in out


def test_what_cannot_be_resolved_so_is_refused_in_one_line(world: World, capsys: Out) -> None:
    assert "is waiting" in refused(capsys, "resolve", "a/3", "resend", "--reason", "x")
    assert "there is no parked event" in refused(
        capsys, "resolve", "a/9", "resend", "--reason", "x"
    )
    assert "unknown decision" in refused(capsys, "resolve", "a/1", "retry", "--reason", "x")
    assert "--reason" in refused(capsys, "resolve", "a/1", "resend")
    assert "empty" in refused(capsys, "resolve", "a/1", "resend", "--reason", " ")
    assert "no pipeline 'nobody'" in refused(capsys, "parked", "ls", "nobody")
    assert "there is no parked event" in refused(capsys, "parked", "show", "@00000000000")


def test_where_nothing_is_parked_it_says_so(tmp_path: Path, capsys: Out) -> None:
    pipeline_at(tmp_path / "ledger.db").minibatch(0, "a1 b2")
    url = f"sqlite:///{tmp_path}/ledger.db"
    assert semel(capsys, "parked", "ls", "--ledger", url)[1] == "nothing is parked\n"
    assert read_json(capsys, "parked", "ls", "--ledger", url) == []


def test_with_positions_the_handle_names_source_partition_and_offset(
    tmp_path: Path, capsys: Out
) -> None:
    world = pipeline_at(tmp_path / "ledger.db", identity=ORDERED_POSITION)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2 a3")
    url = f"sqlite:///{tmp_path}/ledger.db"
    told = read_json(capsys, "parked", "ls", "--ledger", url)
    assert [each["event"] for each in told] == ["pay/out/a/t%2F0,1", "pay/out/a/t%2F0,3"]
    assert read_json(capsys, "parked", "show", told[0]["event"], "--ledger", url)["id"] == 1


def test_on_postgresql_it_is_the_same(postgres_url: str, capsys: Out) -> None:
    world = pipeline_at(postgres_url, Database(), on_reject=OnReject.BLOCK)
    world.out.refuses.add("a1")
    world.minibatch(0, "a1 b2 a3")
    at = ("--ledger", postgres_url)
    assert [each["state"] for each in read_json(capsys, "parked", "ls", *at)] == [
        "rejected",
        "waiting",
    ]
    status, out, _ = semel(capsys, "resolve", "a/1", "discard", "--reason", "x", *at, "--json")
    assert status == 0
    assert "the event behind it follows before the next minibatch" in json.loads(out)["next"]
    world.driver.drain()
    assert read_json(capsys, "parked", "ls", *at) == []
    world.store.memory.close()


# -- a minibatch that diverged


@pytest.fixture
def diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Minibatch 1.0 is complete; its replay had other content, and the query has stopped."""
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    made.minibatch(0, "a1 b2")
    made.start()
    with pytest.raises(Diverged, match=r"semel resolve pay/1\.0 as-recorded\|as-replayed"):
        made.minibatch(0, "a1 b2=9")
    return made


def end(world: World) -> None:
    Owners(world.client).beat(2, "nonce-2", ended=True)


def test_a_minibatch_that_diverged_stands_as_recorded(diverged: World, capsys: Out) -> None:
    end(diverged)
    for _ in range(2):
        told = read_json(
            capsys, "resolve", "pay/1.0", "as-recorded", "--reason", "x", "--by", "ann"
        )
        assert (told["minibatch"], told["state"]) == ("pay/1.0", "as-recorded")
    diverged.start()
    diverged.driver.end(diverged.open(0), [])
    diverged.minibatch(1, "c3")
    assert diverged.out.seen == "a1 b2 c3"


def test_or_it_is_delivered_anew_as_replayed(diverged: World, capsys: Out) -> None:
    end(diverged)
    status, out, _ = semel(
        capsys, "resolve", "pay/1.0", "as-replayed", "--reason", "the old is wrong"
    )
    assert status == 0
    assert "pay/1.0: as-replayed" in out
    assert "are delivered again" in out
    diverged.start()
    diverged.minibatch(0, "a1 b2=9")
    assert diverged.out.seen == "a1 b2 a1 b2"


def test_a_minibatch_is_not_judged_under_a_running_query(diverged: World, capsys: Out) -> None:
    said = ("as-replayed", "--reason", "x")
    with beats(os.environ["SEMEL_LEDGER"], run=2):
        assert "pipeline 'pay' is running (run 2)" in refused(capsys, "resolve", "pay/1.0", *said)
    end(diverged)
    assert "is not the current one, which is" in refused(capsys, "resolve", "pay/1.7", *said)
    assert "no pipeline 'nobody'" in refused(capsys, "resolve", "nobody/1.0", *said)
    assert "is not a minibatch" in refused(capsys, "resolve", "pay/seven", *said)
    assert "there is no parked event" in refused(
        capsys, "resolve", "pay/1.0", "delivered", "--reason", "x"
    )


def test_a_reason_is_not_cut_where_nobody_looks_at_a_terminal(world: World, capsys: Out) -> None:
    why = "the mailbox was full, " * 5

    def unknown(_: Callable[[], Any]) -> Any:
        raise OutcomeUnknown(why)

    world.out.plan(unknown)
    world.minibatch(1, "d9")
    _, out, _ = semel(capsys, "parked", "ls", "pay")
    assert why in out
