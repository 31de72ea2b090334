"""The names of part files: they say the range of records, and those of 0.1 are continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.events import Identity
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed, read
from support.pipeline import COUNTER, GIVEN, POSITION, World, crash_everywhere

ONCE = Retry(for_s=0.0)


def world_at(folder: Path, identity: Identity = GIVEN) -> World:
    world = World(identity)
    world.sinks.append(Files(name="out", url=str(folder), retry=ONCE, chunk_rows=2))
    world.start()
    return world


def parts(folder: Path) -> list[str]:
    """The part files that stand there, named by a manifest or not."""
    return sorted(path.name for path in (folder / "pay/out").glob("part-*"))


def named(folder: Path) -> list[str]:
    return sorted(part.name for each in committed(folder / "pay/out") for part in each.parts)


def rows_in(folder: Path) -> list[str]:
    rows = [row for table in read(folder / "pay/out") for row in table.to_pylist()]
    return [f"{row['c']}{row['id']}" for row in rows]


@pytest.mark.rows("A16", "S16")
@pytest.mark.parametrize(
    ("identity", "first", "second"),
    [
        (POSITION, "t~2F0-7-9", "t~2F0-20-20"),  # offsets
        (GIVEN, "0-1-3", "0-4-4"),  # output sequence numbers
        (COUNTER, "0-1-3", "0-4-4"),
    ],
    ids=["position", "given", "counter"],
)
def test_a_name_says_prefix_minibatch_partition_and_the_first_and_last_record(
    tmp_path: Path, identity: Identity, first: str, second: str
) -> None:
    world = world_at(tmp_path, identity)
    world.minibatch(0, "a7 b8 c9")
    world.minibatch(1, "d20")
    wanted = [f"part-0001-0000000000-{first}.parquet", f"part-0001-0000000001-{second}.parquet"]
    assert named(tmp_path) == parts(tmp_path) == wanted


@pytest.mark.rows("A12", "A16", "S16")
@pytest.mark.parametrize("identity", [POSITION, GIVEN, COUNTER], ids=["position", "given", "count"])
def test_a_re_run_after_any_crash_has_the_same_names_and_leaves_no_other_file(
    tmp_path: Path, identity: Identity
) -> None:
    folders = iter(range(10_000))
    folder: list[Path] = []

    def begun() -> World:
        folder[:] = [tmp_path / str(next(folders))]
        world = world_at(folder[0], identity)
        world.minibatch(0, "a1")
        return world

    names: set[tuple[str, ...]] = set()
    for what, world in crash_everywhere(begun, lambda world: world.minibatch(1, "b2 c3 d4")):
        world.start()
        world.minibatch(1, "b2 c3 d4")
        assert named(folder[0]) == parts(folder[0]), what
        names.add(tuple(parts(folder[0])))
    assert len(names) == 1


def test_a_replay_with_other_records_leaves_no_file_of_the_attempt_before(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    opening = world.open(0)
    world.task(opening, "a1 b2 c3")  # moved to its place, and its report is lost
    assert parts(tmp_path) == ["part-0001-0000000000-0-1-3.parquet"]
    world.driver.end(opening, world.task(opening, "a1 b2"))
    assert named(tmp_path) == parts(tmp_path) == ["part-0001-0000000000-0-1-2.parquet"]


def test_a_zombie_between_its_move_and_its_end_removes_nothing_that_counts(tmp_path: Path) -> None:
    """The attempt before it and the one after it have the same records, and it has others."""
    world = world_at(tmp_path)
    opening = world.open(0)
    world.task(opening, "a1 b2 c3")
    world.task(opening, "a1 b2")
    world.driver.end(opening, world.task(opening, "a1 b2 c3"))
    assert named(tmp_path) == parts(tmp_path) == ["part-0001-0000000000-0-1-3.parquet"]
    assert rows_in(tmp_path) == ["a1", "b2", "c3"]


def as_0_1(patched: pytest.MonkeyPatch) -> None:
    """Let files be written as 0.1 wrote them: without the range, and without a word of it."""
    plain = Files.part_name
    patched.setattr(Files, "part_name", lambda sink, target, _="": plain(sink, target))


def without_words(folder: Path) -> None:
    for path in (folder / "pay/out/_aside").rglob("*.moved-*"):
        path.unlink()


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
@pytest.mark.parametrize("moment", ["moved", "complete"])
def test_a_minibatch_that_0_1_left_half_done_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *, lost: bool
) -> None:
    world = world_at(tmp_path)
    with monkeypatch.context() as patched:
        as_0_1(patched)
        world.minibatch(0, "a1")
        opening = world.open(1)
        reports: list[Any] = world.task(opening, "b2 c3")
        without_words(tmp_path)
        if moment == "complete":
            world.driver._minibatches.complete(opening, reports, ["out"])
    old = ["part-0001-0000000000-0.parquet", "part-0001-0000000001-0.parquet"]
    assert parts(tmp_path) == old
    assert named(tmp_path) == old[:1]
    world.start()
    if lost:
        world.minibatch(0, "a1 b2 c3 d4", query="another")
    else:
        world.minibatch(1, "b2 c3")
        world.minibatch(2, "d4")
    assert rows_in(tmp_path) == ["a1", "b2", "c3", "d4"]
    assert named(tmp_path) == parts(tmp_path)
    assert (old[1] in parts(tmp_path)) == (moment == "complete")
