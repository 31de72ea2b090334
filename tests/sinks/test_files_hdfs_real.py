"""Part files on a real HDFS. Needs one, and libhdfs: see docs/sinks/files.md, Limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest

from semel.errors import Fenced
from semel.events import Identity
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed, read
from semel.sinks.files.storage import Folder
from sinks.test_files import chunk_of, target
from support.pipeline import GIVEN, POSITION, World, crash_everywhere

URL = os.environ.get("SEMEL_TEST_HDFS", "")
ONCE = Retry(for_s=0.0)

pytestmark = pytest.mark.skipif(
    not URL, reason="not run: SEMEL_TEST_HDFS=hdfs://host:port names no HDFS"
)


@pytest.fixture
def lake() -> Iterator[str]:
    """A folder of one's own in it."""
    name = f"semel-{uuid4().hex}"
    yield f"{URL}/{name}"
    Folder.at(URL).remove_folder(name)


def world_at(url: str, identity: Identity = GIVEN) -> World:
    world = World(identity)
    world.sinks.append(Files(name="out", url=url, retry=ONCE))
    world.start()
    return world


def rows_in(url: str) -> list[str]:
    rows = [row for table in read(f"{url}/pay/out") for row in table.to_pylist()]
    return [f"{row['c']}{row['id']}" for row in rows]


def parts(url: str) -> list[str]:
    return sorted(name for name in Folder.at(f"{url}/pay/out").names("") if name.startswith("part"))


@pytest.mark.rows("S16", "A6", "A12")
@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
@pytest.mark.parametrize("identity", [GIVEN, POSITION], ids=["given", "position"])
def test_after_a_crash_at_any_step_manifests_name_every_event_once(
    lake: str, identity: Identity, *, lost: bool
) -> None:
    folders = iter(range(1_000))
    at = [lake]

    def begun() -> World:
        at[0] = f"{lake}/{next(folders)}"
        world = world_at(at[0], identity)
        world.minibatch(0, "a1 b2")
        return world

    for what, world in crash_everywhere(begun, lambda world: world.minibatch(1, "c3 d4")):
        world.start()
        if lost:
            world.minibatch(0, "a1 b2 c3 d4 e5", query="another")
        else:
            world.minibatch(1, "c3 d4")
            world.minibatch(2, "e5")
        assert rows_in(at[0]) == ["a1", "b2", "c3", "d4", "e5"], what
        named = sorted(part.name for each in committed(f"{at[0]}/pay/out") for part in each.parts)
        assert parts(at[0]) == named, what


def test_what_an_attempt_that_does_not_count_had_moved_does_not_stay(lake: str) -> None:
    world = world_at(lake)
    opening = world.open(0)
    world.task(opening, "a1 b2")  # moved to its place, and its report is lost
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert rows_in(lake) == ["a1", "b2"]
    assert len(parts(lake)) == 1


def test_a_zombie_finds_the_later_claim(lake: str) -> None:
    sink = Files(name="out", url=lake, retry=ONCE)
    zombie = sink.open(target(1))
    zombie.write(chunk_of("a1 b2"))
    later = sink.open(target(2))
    later.write(chunk_of("c3"))
    with pytest.raises(Fenced):
        zombie.finish()
    zombie.close()
    placed = later.finish()
    assert placed is not None
    assert parts(lake) == [placed["name"]]
    folder = sink.folder("pay")
    folder.write_aside("_aside/other").close()
    with pytest.raises(FileExistsError):
        folder.move("_aside/other", placed["name"])
