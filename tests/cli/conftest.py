"""No test of a command uses the ledger of the developer, or waits long for a heartbeat."""

from __future__ import annotations

import pytest

from semel.operate import status


@pytest.fixture(autouse=True)
def _no_ledger_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_LEDGER", raising=False)


@pytest.fixture(autouse=True)
def _runs_beat_faster_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of `beats` write heartbeats often, so silent runs need not be watched for long."""
    monkeypatch.setattr(status, "WATCH_S", 0.4)
