"""The heartbeat of a run goes on whatever those do who only look at the run."""

from __future__ import annotations

import logging
import time

import pytest

from semel.delivery import Observers
from semel.ledger import Owners
from semel.spark import heartbeat
from semel.spark.heartbeat import Heartbeat
from support.destinations import Post
from support.pipeline import GIVEN, world_of


class Broken:
    """An observer with a mistake, such as an exporter of metrics."""

    def __init__(self) -> None:
        self.asked = 0

    def observe(self, event: object) -> None:
        del event
        self.asked += 1
        raise KeyError("a mistake of the observer")


def test_an_observer_that_fails_does_not_make_a_run_look_dead(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby would take over from a run that lives."""
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.01)
    world = world_of(Post(), GIVEN)
    broken = Broken()
    world.driver.observer = Observers((broken, world.driver.observer))
    owners = Owners(world.client)
    beating = Heartbeat(world.driver)
    with caplog.at_level(logging.WARNING, "semel"):
        beating.start()
        ends = time.monotonic() + 10
        while broken.asked < 3 and time.monotonic() < ends:
            time.sleep(0.01)
        assert beating.is_alive()
        beating.stop()
        beating.join(10)
    owner = owners.owner()
    assert owner is not None
    assert owner.beat >= 3
    assert owner.ended, "the next start need not wait"
    assert "KeyError: 'a mistake of the observer'" in caplog.text
