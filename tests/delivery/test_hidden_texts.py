"""A secret of a pipeline file that a sink's error repeats is neither recorded nor logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import semel
from semel.delivery.parking.resend import Resending
from semel.protocol import ParkedState
from semel.sinks import AuditLog
from support.audit import audit_rows
from support.pipeline import World

SECRET = "hunter2-{hunter2}"
URL = f"https://bank.example/charge?key={SECRET}"


def raises(error: Callable[[str], Exception]) -> Callable[[semel.Event], None]:
    """A function of a user whose error repeats what it was called with."""

    def charge(event: semel.Event) -> None:
        if event.id == 2:
            raise error(f"no reply from {URL}")

    return charge


def recorded(world: World) -> str:
    """Everything that the ledger has."""
    tables = ("parked", "events", "streams", "journal", "heads", "open", "outcomes")
    return " ".join(text for each in tables for _, text in world.store.memory.scan(each, ""))


@pytest.mark.parametrize("error", [RuntimeError, semel.Rejected, semel.OutcomeUnknown])
def test_what_a_sink_says_is_recorded_without_the_secret(
    error: Callable[[str], Exception], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    world = World(audit=AuditLog(tmp_path))
    world.client = replace(world.client, hidden=(SECRET,))
    world.sinks.append(semel.sink(window=1)(raises(error)))
    world.start()
    world.minibatch(0, "a1 a2 b3")
    name = world.sinks[0].name
    [(at, row)] = [each for each in world.parked_rows(name) if each[1].event == 2]
    assert "no reply from https://bank.example/charge?key=***" in row.why
    world.resolve("a2", "resend", name)
    again = Resending(world.client, world.sinks[0], world.process("sender"), world.runtime)
    again.drain()
    [row] = [row for each, row in world.parked_rows(name) if each == at]
    assert row.attempts == 1
    assert row.state in (ParkedState.HELD, ParkedState.REJECTED)
    for place in (recorded(world), caplog.text, str(audit_rows(tmp_path, "pay"))):
        assert "bank.example" in place
        assert SECRET not in place
        assert "hunter2" not in place
