"""No test of a command depends on the ledger of whoever runs it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_ledger_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_LEDGER", raising=False)
