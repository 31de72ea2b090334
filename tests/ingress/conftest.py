"""One `semel ingest` for the tests of a module, and others for tests that stop or kill theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ingress import Ingress


@pytest.fixture(scope="module")
def ingress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingress]:
    """A running ingress on a ledger of its own. A request has to arrive within two seconds."""
    ledger = tmp_path_factory.mktemp("ingress") / "shop.db"
    with Ingress(f"sqlite:///{ledger}", options=("--timeout", "2")) as running:
        yield running
    assert [line for line in running.err if "Traceback" in line] == []


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ingress]]:
    """Start an ingress with options; every one is ended after the test."""
    made: list[Ingress] = []

    def starting(*options: str, **settings: Any) -> Ingress:
        settings.setdefault("ledger", f"sqlite:///{tmp_path / 'shop.db'}")
        made.append(Ingress(options=options, **settings))
        return made[-1].start()

    yield starting
    for each in made:
        each.kill()
