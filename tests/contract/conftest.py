"""What the servers need that the contract of sinks is proved against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def checksums_first() -> Iterator[None]:
    """The S3 server of the tests takes no parts whose checksum comes behind them; the processes of
    the contract suite hear of it when they are started.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
        yield
