"""One pipeline in one SQLite file, for each test of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ledger.one_pipeline import LedgerWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerWorld]:
    opened = LedgerWorld(tmp_path / "ledger.db")
    yield opened
    opened.close()
