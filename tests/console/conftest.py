"""A console on a small ledger: two pipelines, three events that wait for a person."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.ledger import Ledger, open_store
from semel.protocol import ParkedState
from support.console.generated_ledger import GeneratedPipeline
from support.console.running_console import Console


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def charges(url: str) -> Iterator[GeneratedPipeline]:
    """Events 881 of c1042 and 1200 of c7 are in doubt, 31 of c99 is rejected, 5 of c3 is done."""
    store = open_store(url)
    made = GeneratedPipeline(
        store, sinks={"bank": "opaque", "books": "transactional"}, now=time.time()
    )
    made.register()
    made.put(made.pacing())
    made.put(made.parked("c1042", 881, ago_s=5_400))
    made.put(made.parked("c7", 1200))
    rejected = ParkedState.REJECTED
    made.put(made.parked("c99", 31, rejected, why="HTTP 422: the card is not valid", ago_s=260))
    made.put(made.parked("c3", 5, ParkedState.DELIVERED, by="ann", reason="seen", ago_s=9_000))
    receipts = GeneratedPipeline(store, "receipts", {"mail": "probing"}, now=time.time() - 3_000)
    receipts.register(ended=True)
    yield made
    store.close()


@pytest.fixture
def console(url: str, charges: GeneratedPipeline) -> Iterator[Console]:
    with Console(url) as running:
        yield running


@pytest.fixture
def ledger(charges: GeneratedPipeline) -> Ledger:
    return Ledger(charges.store)
