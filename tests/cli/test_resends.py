"""Resends that a person asked for: the log and `semel status` show the outcome."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from support.command_line import pipeline_at, read_json, semel
from support.destinations import away, lost
from support.pipeline import World

Out = pytest.CaptureFixture[str]
Log = pytest.LogCaptureFixture


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Event 1 of a is in doubt, and 3 of a waits behind it."""
    made = pipeline_at(tmp_path / "ledger.db")
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    made.out.plan(lost)
    made.minibatch(0, "a1 c2 a3")
    return made


def ask(capsys: Out) -> None:
    read_json(capsys, "resolve", "a/1", "resend", "--reason", "not there", "--by", "ann")


def sink(capsys: Out) -> dict[str, object]:
    [told] = read_json(capsys, "status", "pay")["sinks"]
    found: dict[str, object] = told["resends"]
    return found


def test_a_resend_is_logged_with_who_asked_and_what_came_of_it(
    world: World, capsys: Out, caplog: Log
) -> None:
    caplog.set_level(logging.INFO, logger="semel")
    ask(capsys)
    world.out.plan(away)
    world.driver.drain(waits=True)
    world.driver.drain(waits=True)
    said = [each.getMessage() for each in caplog.records if "resend" in each.getMessage()]
    assert len(said) == 3
    place = "pipeline 'pay', sink 'out': resend"
    assert said[0].startswith(f"{place} 1 of event 1 of 'a', requested by ann: resend (")
    assert said[1] == f"{place} 2 of event 1 of 'a', requested by ann: delivered (sent)"
    assert said[2] == f"{place} 1 of event 3 of 'a', next in its queue: delivered (sent)"
    assert {each.levelname for each in caplog.records if "resend" in each.getMessage()} == {"INFO"}


def test_the_status_shows_a_resend_that_waits_and_the_last_outcome(
    world: World, capsys: Out
) -> None:
    assert sink(capsys) == {"asked": 0, "sending": 0, "last": None}
    ask(capsys)
    assert sink(capsys) == {"asked": 1, "sending": 0, "last": None}
    assert "pay, sink out: resends: 1 to be sent\n" in semel(capsys, "status")[1]
    world.out.plan(away)
    world.driver.drain(waits=True)
    last = sink(capsys)["last"]
    assert isinstance(last, dict)
    assert (last["id"], last["state"], last["by"]) == (1, "resend", "ann")
    world.driver.drain(waits=True)
    world.driver.drain(waits=True)
    last = sink(capsys)["last"]
    assert isinstance(last, dict)
    assert last["state"] == "delivered"
    out = semel(capsys, "status")[1]
    assert "pay, sink out: resends: the last, a/3: delivered at 20" in out


def test_a_delivered_event_is_shown_in_words_that_do_not_contradict_each_other(
    world: World, capsys: Out
) -> None:
    read_json(capsys, "resolve", "a/1", "delivered", "--reason", "seen", "--by", "ann")
    out = " ".join(semel(capsys, "parked", "show", "a/1")[1].split())
    assert "state delivered: a person recorded that it arrived" in out
    assert "was in doubt yes" in out
    assert "may have arrived" not in out
    world.driver.drain(waits=True)
    out = " ".join(semel(capsys, "parked", "show", "a/3")[1].split())
    assert "state delivered: sent again, and the destination took it" in out
    assert "was in doubt no" in out
