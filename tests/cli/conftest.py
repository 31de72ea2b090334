"""No test of a command depends on the ledger of whoever runs it, or waits long for a heartbeat."""

from __future__ import annotations

import pytest

from semel.operate import status


@pytest.fixture(autouse=True)
def _no_ledger_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_LEDGER", raising=False)


@pytest.fixture(autouse=True)
def _runs_beat_faster_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is `beats` beats often, so that one that does not need not be watched for long."""
    monkeypatch.setattr(status, "WATCH_S", 0.4)
