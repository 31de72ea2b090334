"""Running the command in this process, and ledgers that a real pipeline filled."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.cli import main as cli
from semel.delivery import spec
from semel.events import Identity
from semel.ledger import LedgerClient, open_store
from semel.ledger.verbs.runs import Owners
from semel.runtime import SystemClock
from support.destinations import Destination, Post
from support.pipeline import GIVEN, World


def semel(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, so that replaced production code is what runs."""
    before = sys.argv
    sys.argv = ["semel", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = before
        spec._looking.clear()  # this process lives on, and others start pipelines in it
    told = capsys.readouterr()
    code = ended.value.code
    return (0 if code is None else int(code)), told.out, told.err


def read_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run the command with `--json`, check that it succeeds, and return its answer."""
    status, out, err = semel(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, check that it exits with 2 and one line on standard error; return it."""
    status, out, err = semel(capsys, *arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("semel: ")
    assert "Traceback" not in err
    return err


class AwayClock(SystemClock):
    """The clock of a machine whose date is wrong."""

    def __init__(self, away_s: float) -> None:
        self._away_s = away_s

    def wall(self) -> float:
        return super().wall() + self._away_s


@contextmanager
def beats(url: Path | str, run: int = 1, away_s: float = 0.0) -> Iterator[None]:
    """A thread that keeps the heartbeat of a run of `pay`, as a driver does; the clock of its
    machine may be `away_s` from ours.
    """
    store = open_store(url if isinstance(url, str) else f"sqlite:///{url}")
    stopped = threading.Event()

    def beat() -> None:
        while not stopped.wait(0.05):
            Owners(LedgerClient(store, "pay", AwayClock(away_s))).beat(run, f"nonce-{run}")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        store.close()


def pipeline_at(
    where: Path | str,
    destination: Destination | None = None,
    identity: Identity = GIVEN,
    partitions: int | None = None,
    **settings: Any,
) -> World:
    """A started pipeline `pay` with a sink `out`, whose ledger is a real one."""
    world = World(identity, partitions=partitions)
    url = where if isinstance(where, str) else f"sqlite:///{where}"
    world.store.memory = open_store(url)  # type: ignore[assignment]
    world.clock.now = time.time()
    world.add(destination or Post(), **settings)
    world.start()
    return world
