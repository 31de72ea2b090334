"""How a run begins while the run before it ends, or another one begins, at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semel.errors import ConfigurationError
from semel.ledger.verbs.runs import forget_start, register_start
from semel.runtime import Process
from semel.spark.starting import begin_unless_running
from support.ledger.one_pipeline import DESCRIPTION, LedgerWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.ledger import OwnerRow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LedgerWorld]:
    """A ledger in which this process has begun run 1 of the pipeline."""
    made = LedgerWorld(tmp_path / "ledger.db")
    made.owners.register(DESCRIPTION, Process.here(), "first")
    yield made
    made.close()


def begin(world: LedgerWorld, nonce: str, after: OwnerRow | None) -> None:
    world.owners.register(DESCRIPTION, Process.here(), nonce, after)


def test_a_run_that_ends_between_the_look_and_the_begin_refuses_nobody(world: LedgerWorld) -> None:
    def end_then_begin(after: OwnerRow | None) -> None:
        if after is not None and not after.ended:
            world.owners.beat(1, "first", ended=True)
        begin(world, "second", after)

    begin_unless_running(world.client, None, end_then_begin)
    owner = world.owners.owner()
    assert owner is not None
    assert (owner.run, owner.nonce) == (2, "second")


def test_a_run_that_begins_between_the_look_and_the_begin_is_named(world: LedgerWorld) -> None:
    def begin_after_another(after: OwnerRow | None) -> None:
        if after is not None and after.nonce == "first":
            begin(world, "another", after)
            register_start("another", lambda: True)
        begin(world, "second", after)

    try:
        with pytest.raises(ConfigurationError, match=r"is running \(run 2, by this process on "):
            begin_unless_running(world.client, None, begin_after_another)
    finally:
        forget_start("another")
    owner = world.owners.owner()
    assert owner is not None
    assert owner.nonce == "another"
