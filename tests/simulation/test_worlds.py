"""Random worlds, each from one seed: a few hundred here, more with `semel simulate`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from semel.verify.simulator import Verdict, run_world, run_worlds
from semel.verify.simulator.checker import Category
from semel.verify.simulator.worlds import SimulatedWorld, Summary, world_seed

WORLDS = 300
SEED = 20_261_114


@pytest.fixture(scope="module")
def summary() -> Summary:
    return run_worlds(WORLDS, SEED)


@pytest.mark.rows("S15", "S19", "A17", "O10")
def test_no_world_is_invalid(summary: Summary) -> None:
    print(f"seed {SEED}: {summary.total.to_json()}")  # noqa: T201 - the seed replays it
    told = [
        f"world {outcome.seed}: {violation}"
        for outcome in summary.invalid
        for violation in outcome.violations
    ]
    assert not told, "\n".join(told)
    assert summary.total.of(Category.LOST) == 0
    assert summary.total.of(Category.DUPLICATED) == 0


def test_the_worlds_are_not_idle(summary: Summary) -> None:
    total = summary.total
    assert total.worlds == WORLDS
    assert total.faults > WORLDS / 2
    assert total.of(Category.DELIVERED) > 6 * WORLDS
    assert total.doubted > 0
    assert total.of(Category.REJECTED) > 0
    assert {capability for capability, _ in summary.groups} == {
        "transactional",
        "sequenced",
        "repeatable",
        "probing",
        "opaque",
    }


def test_the_worlds_have_what_no_crash_is_needed_for() -> None:
    worlds = [SimulatedWorld(world_seed(SEED, at)) for at in range(WORLDS)]
    second = [world for world in worlds if len(world.cases) > 1]
    destinations = [each for world in worlds for each in world.cluster.destinations.values()]
    found = {
        "several sinks": len(second),
        "a sink joins": sum(world.changes.joins is not None for world in worlds),
        "a sink leaves": sum(world.changes.leaves is not None for world in worlds),
        "a column more": sum(world.changes.releases for world in worlds),
        "rescaled": sum(world.changes.rescales > 0 for world in worlds),
        "refusals after unknown outcomes": sum(each.gateway is not None for each in destinations),
        "resends that fail for one event": sum(bool(each.poison) for each in destinations),
        "an event that is never answered": sum(bool(each.broken) for each in destinations),
    }
    assert min(found.values()) >= 10, found


def test_most_worlds_can_be_judged_to_their_end(summary: Summary) -> None:
    assert summary.total.unknown < WORLDS / 4


def test_one_seed_gives_one_story_byte_for_byte() -> None:
    for at in range(20):
        seed = world_seed(SEED, at)
        assert run_world(seed, with_story=True) == run_world(seed, with_story=True)


def test_a_story_does_not_depend_on_the_process_it_is_told_in() -> None:
    script = (
        "from semel.verify.simulator import run_world\n"
        f"for seed in range({world_seed(SEED, 0)}, {world_seed(SEED, 12)}):\n"
        "    print(*run_world(seed, with_story=True).story, sep='\\n')"
    )
    told = set()
    for hashed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hashed}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, check=True, env=environment
        )
        told.add(done.stdout)
    assert len(told) == 1
    assert b"commit" in told.pop()


def test_several_processes_find_what_one_finds() -> None:
    assert run_worlds(120, 3, processes=2) == run_worlds(120, 3)


def test_progress_is_told_until_all_worlds_are_done() -> None:
    done: list[int] = []
    run_worlds(130, 5, progress=done.append)
    assert done == [100, 30]


def test_a_story_names_who_did_what_and_what_went_wrong() -> None:
    outcomes = (run_world(world_seed(SEED, at), with_story=True) for at in range(200))
    outcome = next(each for each in outcomes if each.faults)
    text = "\n".join(outcome.story)
    assert "driver of run 1: " in text
    assert "attempt 1.1 of partition " in text
    assert outcome.verdict is not Verdict.INVALID


def test_a_broken_ledger_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from semel.ledger.verbs.partitions import PartitionClaim
    from semel.protocol import Found

    monkeypatch.setattr(PartitionClaim, "_take_over", lambda _: Found.NEW)
    found = [run_world(world_seed(SEED, at)) for at in range(60)]
    assert any(outcome.verdict is Verdict.INVALID for outcome in found)


def test_a_world_is_small() -> None:
    worlds = [SimulatedWorld(world_seed(SEED, at)) for at in range(100)]
    assert max(len(world.feed.facts) for world in worlds) <= 14
    assert max(len(world.runner.minibatches) for world in worlds) <= 4
