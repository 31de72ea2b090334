"""A sink is left out only when nothing of it is open: not a partition, and not the end of one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delivery.test_conclude import Shelf
from semel.errors import ConfigurationError, NotDelivered, Rejected
from semel.events import Identity
from semel.ledger.keys import make_prefix
from semel.ledger.store.commit import Delete, Put
from semel.sinks.files import Files
from support.destinations import Crash, Database, Post, crash_after
from support.pipeline import COUNTER, GIVEN, POSITION, World, crash_everywhere, once

IDENTITIES: dict[str, Identity] = {"given": GIVEN, "position": POSITION, "counter": COUNTER}
REFUSED = r"sink 'files' was removed.*may not have been concluded.*Start once with it"


def unconcluded(identity: Identity = GIVEN) -> World:
    """Minibatch 1.0 is complete at two sinks, and what one does at its end has failed."""
    world = World(identity)
    world.add(Shelf(), "files")
    world.add(Database())
    world.start()
    world.destinations["files"].raises = [Rejected("not now")]
    with pytest.raises(Rejected):
        world.minibatch(0, "a1 b2")
    return world


def without(world: World, name: str) -> None:
    world.sinks = [sink for sink in world.sinks if sink.name != name]
    world.start()


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_sink_whose_minibatch_is_not_concluded_is_not_left_out(identity: str) -> None:
    world = unconcluded(IDENTITIES[identity])
    every = list(world.sinks)
    without(world, "files")
    with pytest.raises(ConfigurationError, match=REFUSED):
        world.open(0)
    world.sinks = every
    world.start()
    world.minibatch(0, "a1 b2")
    assert world.destinations["files"].readers_see() == ["a1", "b2"]
    without(world, "files")
    world.minibatch(1, "a3")
    assert world.out.seen == "a1 b2 a3"


@pytest.mark.parametrize("identity", ["given", "position"])
def test_a_lost_checkpoint_does_not_let_it_be_left_out_either(identity: str) -> None:
    world = unconcluded(IDENTITIES[identity])
    every = list(world.sinks)
    without(world, "files")
    with pytest.raises(ConfigurationError, match=REFUSED):
        world.open(0, "another")
    world.sinks = every
    world.start()
    world.minibatch(0, "a1 b2 a3", "another")
    assert world.destinations["files"].readers_see() == ["a1", "b2", "a3"]


@pytest.mark.parametrize("identity", ["given", "position"])
def test_a_new_generation_that_ended_before_it_concluded_the_old_one_does_not_let_it_go(
    identity: str,
) -> None:
    def make() -> World:
        world = unconcluded(IDENTITIES[identity])
        world.start()
        return world

    def act(world: World) -> None:
        world.minibatch(0, "a1 b2 a3", "q2")

    refused = 0
    for what, world in crash_everywhere(make, act):
        shelf, every = world.destinations["files"], list(world.sinks)
        without(world, "files")
        try:
            world.minibatch(0, "a1 b2 a3", "q2")
        except ConfigurationError as error:
            refused += bool(re.search(REFUSED, str(error)))
            world.sinks = every
            world.start()
            world.minibatch(0, "a1 b2 a3", "q2")
            assert shelf.readers_see() == ["a1", "b2", "a3"], what
        assert shelf.readers_see()[:2] == ["a1", "b2"], what
        assert once(world.out.seen) == "a1 b2 a3", what
    assert refused > 2


@pytest.mark.parametrize("identity", ["given", "position"])
def test_a_sink_that_was_left_out_long_ago_is_not_asked_for_when_a_checkpoint_is_lost(
    identity: str,
) -> None:
    def make() -> World:
        world = World(IDENTITIES[identity])
        world.add(Shelf(), "files")
        world.add(Database())
        world.start()
        world.minibatch(0, "a1 b2")
        without(world, "files")
        world.minibatch(1, "a3")
        world.start()
        return world

    def act(world: World) -> None:
        world.minibatch(0, "a1 b2 a3 b4", "q2")

    for what, world in crash_everywhere(make, act):
        world.start()
        world.minibatch(0, "a1 b2 a3 b4", "q2")
        assert once(world.out.seen) == "a1 b2 a3 b4", what
        assert world.destinations["files"].readers_see() == ["a1", "b2"], what


def test_a_batch_job_is_not_finished_without_a_sink_that_is_not_concluded() -> None:
    world = unconcluded()
    without(world, "files")
    with pytest.raises(ConfigurationError, match=REFUSED):
        world.open(0)
    assert world.driver.finished() is None
    assert any(row.placed for row in world.streams()), "what it needs to conclude is still there"


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_sink_is_left_out_once_spark_has_gone_on(identity: str) -> None:
    world = World(IDENTITIES[identity])
    world.add(Shelf(), "files")
    world.add(Database())
    world.start()
    world.minibatch(0, "a1 b2")
    without(world, "files")
    world.minibatch(1, "a3")
    without(world, "files")  # and the next start asks for nothing either, also with batch 1 again
    world.minibatch(1, "a3")
    world.minibatch(2, "b4")
    assert once(world.out.seen) == "a1 b2 a3 b4"
    assert world.destinations["files"].readers_see() == ["a1", "b2"]


def test_a_sink_that_does_nothing_at_the_end_is_left_out_as_soon_as_it_is_complete() -> None:
    world = World(GIVEN)
    world.add(Post(), "mail")
    world.add(Database())
    world.start()
    world.minibatch(0, "a1 b2")  # and Spark does not come to its own commit
    without(world, "mail")
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3")
    assert world.out.seen == "a1 b2 a3"


def test_a_zombie_that_begins_a_partition_while_its_sink_is_left_out_is_not_forgotten() -> None:
    world = World(GIVEN)
    world.add(Post(), "mail")
    world.add(Database())
    world.start()
    opening = world.open(0)
    every = list(world.sinks)
    without(world, "mail")

    def begins(act: Callable[[], Any]) -> Any:
        world.store.script.clear()
        world.destinations["mail"].plan(crash_after)
        with pytest.raises(Crash):
            world.task(opening, "a1 b2", sinks=every)
        return act()

    world.store.script.append(begins)  # just before the commit that fences it
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="was removed, but its partition 0 is half"):
            world.open(0)
        world.start()
    world.sinks = every
    world.start()
    world.minibatch(0, "a1 b2")
    assert world.destinations["mail"].seen == "a1 b2"
    assert world.parked("mail") == ["a1 held"]
    assert world.out.seen == "a1 b2"


def test_what_an_older_version_left_unconcluded_is_concluded_when_its_sink_comes_back() -> None:
    world = unconcluded()
    every = list(world.sinks)
    left = list(world.store.memory.scan("streams", make_prefix("pay", "files")))
    assert left
    # An older version let the sink go here, and Spark went on without it: its rows stayed.
    world.store.memory.commit([], [Delete(at) for at, _ in left])
    without(world, "files")
    world.minibatch(0, "a1 b2")
    for batch in range(1, 4):
        world.minibatch(batch, f"a{batch + 10}")
    world.store.memory.commit([], [Put(at, text) for at, text in left])
    world.sinks = every
    world.start()
    world.minibatch(4, "b20")
    shelf = world.destinations["files"]
    assert shelf.readers_see() == ["a1", "b2", "b20"]
    assert len(shelf.ended) == 2
    world.start()
    world.minibatch(5, "b21")
    assert len(shelf.ended) == 3, "it is concluded once"


def test_the_manifest_of_files_is_written_before_the_sink_may_go(tmp_path: Path) -> None:
    world = World(GIVEN)
    world.add(Database())
    files = Files(url=tmp_path / "out", format="json")
    world.sinks.append(files)
    world.start()
    opening = world.open(0, "batch")
    reports = world.task(opening, "a1 b2")
    (tmp_path / "out").rename(tmp_path / "away")  # the disk is not mounted just then
    with pytest.raises(NotDelivered):
        world.driver.end(opening, reports)
    assert list(files.committed("pay")) == []
    without(world, "files")
    with pytest.raises(ConfigurationError, match=REFUSED):
        world.open(0, "batch")
    assert world.driver.finished() is None
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "out")
    world.sinks.append(files)
    world.start()
    opening = world.open(0, "batch")
    world.driver.end(opening, world.task(opening, "a1 b2"))
    kept = world.driver.finish(opening)
    [manifest] = files.committed("pay")
    assert manifest.rows == kept["files"].count == 2
    without(world, "files")
    world.driver.compare(world.task(world.driver.recount(), "a1 b2"))
