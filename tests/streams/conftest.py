"""The inbox of one stream, in each kind of ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.streams import Inbox


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def inbox(url: str) -> Iterator[Inbox]:
    with Inbox(url, "orders") as opened:
        yield opened
