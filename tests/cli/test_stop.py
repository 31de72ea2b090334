"""`semel stop` asks a run to stop and waits for its end, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.errors import StopRequested
from support.command_line import pipeline_at, read_json, refused, semel
from support.pipeline import World

Out = pytest.CaptureFixture[str]


@pytest.fixture(params=["sqlite", "postgresql"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    url = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "postgresql":
        url = str(request.getfixturevalue("postgres_url"))
    monkeypatch.setenv("SEMEL_LEDGER", url)
    return pipeline_at(url)


@contextmanager
def driving(world: World) -> Iterator[None]:
    """A driver whose heartbeat ends the run as soon as it is asked to stop."""
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            if world.driver.beat():
                world.driver.beat(ended=True)
                return

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_a_running_pipeline_is_stopped_and_who_did_it_is_kept(world: World, capsys: Out) -> None:
    world.minibatch(0, "a1 b2")
    with driving(world):
        done = read_json(capsys, "stop", "pay", "--by", "ann")
    assert done.pop("seconds") >= 0
    assert done == {
        "pipeline": "pay",
        "run": 1,
        "ended": True,
        "gone": False,
        "taken_over": None,
        "minibatch": "1.0",
        "complete": True,
        "in_doubt": 0,
    }
    [row] = read_json(capsys, "ledger", "ls", "owners")
    assert row["payload"]["stop"]["by"] == "ann"
    assert "pipeline 'pay' is not running" in refused(capsys, "stop", "pay")


def test_a_run_that_does_not_end_stays_asked_to_stop(world: World, capsys: Out) -> None:
    opening = world.open(0)
    status, out, err = semel(capsys, "stop", "pay", "--wait", "0")
    assert status == 1
    assert "run 1 on host is asked to stop" in err
    assert "run 1 has not ended after 0.0 s, and stays asked to stop" in out
    assert "minibatch 1.0 is not complete: the next start delivers the rest; 0 events are" in out
    with pytest.raises(StopRequested):
        world.task(opening, "a1 b2")
    assert world.out.seen == ""


def test_a_standby_that_takes_over_is_named(world: World, capsys: Out) -> None:
    world.minibatch(0, "a1")
    timer = threading.Timer(0.5, world.start)
    timer.start()
    status, out, _ = semel(capsys, "stop", "pay", "--wait", "60")
    timer.join()
    assert status == 0
    assert "run 1 ended after" in out
    assert "run 2 took over" in out


def test_a_pipeline_that_is_not_there_is_not_stopped(world: World, capsys: Out) -> None:
    world.minibatch(0, "a1")
    assert "there is no pipeline 'charge'" in refused(capsys, "stop", "charge")
