"""Part files where a rename replaces nothing, as on HDFS: no attempt empties another's place."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from semel.errors import Diverged, Fenced
from semel.sinks import Ended, EndedPart
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed, read
from semel.sinks.files.sink import PartSession
from semel.sinks.files.storage import Folder
from sinks.test_files import chunk_of, target
from support.pipeline import World

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()


class AsHdfs:
    """A local disk that says it is HDFS, and like it renames nothing over what is there."""

    type_name = "hdfs"

    def __init__(self) -> None:
        self._disk = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def move(self, source: str, target: str) -> None:
        if Path(target).exists():
            raise OSError(errno.EIO, "rename failed", target)
        self._disk.move(source, target)


def files_at(folder: Path) -> Files:
    return Files(name="out", url=folder, filesystem=AsHdfs(), retry=Retry(for_s=0.0))


def world_at(folder: Path) -> World:
    world = World()
    world.sinks.append(files_at(folder))
    world.start()
    return world


def rows_in(folder: Path) -> list[str]:
    tables = read(folder / "pay/out")
    return [f"{row['c']}{row['id']}" for table in tables for row in table.to_pylist()]


def wrote(sink: Files, attempt: int, text: str) -> PartSession:
    session = sink.open(target(attempt))
    session.write(chunk_of(text))
    return session


def ended(placed: Any) -> Ended:
    at = target(2)
    part = EndedPart(at.partition, at.attempt, placed["rows"], placed)
    return Ended(at.pipeline, at.sink, at.minibatch, (part,))


def test_an_attempt_with_nothing_left_to_move_does_not_empty_the_place(tmp_path: Path) -> None:
    folder = Folder(AsHdfs(), str(tmp_path), "hdfs://here")
    (tmp_path / "part-0").write_bytes(b"what a manifest names")
    # It had looked before the later attempt claimed the place and removed what it held aside.
    with pytest.raises(OSError, match="_aside"):
        folder.move("_aside/1.1.part", "part-0")
    assert folder.read("part-0") == b"what a manifest names"


def test_nothing_is_removed_for_a_move(tmp_path: Path) -> None:
    folder = Folder(AsHdfs(), str(tmp_path), "hdfs://here")
    (tmp_path / "part-0").write_bytes(b"what a manifest names")
    (tmp_path / "aside").write_bytes(b"what another one holds")
    with pytest.raises(FileExistsError, match="part-0 exists already"):
        folder.move("aside", "part-0")
    assert folder.read("part-0") == b"what a manifest names"


def test_events_are_in_the_files_once_after_attempts_that_failed_and_a_lost_checkpoint(
    tmp_path: Path,
) -> None:
    world = world_at(tmp_path)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.task(opening, "c3 d4")  # its report is lost
    world.driver.end(opening, world.task(opening, "c3 d4"))
    world.start()
    world.minibatch(0, INPUT, query="another")
    assert rows_in(tmp_path) == NAMES
    named = [part.name for each in committed(tmp_path / "pay/out") for part in each.parts]
    assert len(set(named)) == len(named)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.rows("S19")
@pytest.mark.parametrize("moment", ["before the manifest", "after the manifest"])
def test_a_zombie_that_paused_anywhere_in_its_move_changes_nothing_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    sink = files_at(tmp_path)
    zombie = wrote(sink, 1, "a1 b2")
    rename = AsHdfs.move
    placed: dict[str, Any] = {}

    def replaced_first(system: AsHdfs, source: str, place: str) -> None:
        # All its looks are behind it; what it holds aside goes only after this call began.
        held = Path(source).read_bytes()
        monkeypatch.setattr(AsHdfs, "move", rename)
        placed.update(wrote(sink, 2, "c3").finish() or {})
        if moment == "after the manifest":
            sink.conclude(ended(placed))
        Path(source).parent.mkdir(parents=True, exist_ok=True)
        Path(source).write_bytes(held)
        system.move(source, place)

    monkeypatch.setattr(AsHdfs, "move", replaced_first)
    zombie.finish()
    sink.conclude(ended(placed))
    assert rows_in(tmp_path) == ["c3"]


def test_a_zombie_that_finds_nothing_to_move_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = files_at(tmp_path)
    zombie = wrote(sink, 1, "a1 b2")
    move = Folder.move

    def replaced_first(folder: Folder, aside: str, place: str) -> None:
        monkeypatch.setattr(Folder, "move", move)
        sink.conclude(ended(wrote(sink, 2, "c3").finish()))
        folder.move(aside, place)

    monkeypatch.setattr(Folder, "move", replaced_first)
    with pytest.raises(Fenced, match="removed, by a later attempt"):
        zombie.finish()
    assert rows_in(tmp_path) == ["c3"]


@pytest.mark.parametrize("same", [True, False])
def test_of_two_drivers_the_faster_ones_manifest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, same: bool
) -> None:
    sink = files_at(tmp_path)
    placed = wrote(sink, 2, "c3").finish() or {}
    move = Folder.move

    def another_first(folder: Folder, aside: str, place: str) -> None:
        monkeypatch.setattr(Folder, "move", move)
        sink.conclude(ended(placed))
        if not same:
            path = Path(folder.path(place))
            path.write_text(path.read_text().replace(placed["digest"], "0" * 64))
        Path(folder.path(aside)).parent.mkdir(parents=True)
        Path(folder.path(aside)).write_bytes(b"the slower one's")
        folder.move(aside, place)

    monkeypatch.setattr(Folder, "move", another_first)
    if same:
        sink.conclude(ended(placed))
        assert rows_in(tmp_path) == ["c3"]
    else:
        with pytest.raises(Diverged, match="names other files"):
            sink.conclude(ended(placed))


def test_the_name_of_a_file_says_its_attempt_only_there(tmp_path: Path) -> None:
    at = target(7, partition="t/3", run=2)
    names = {
        url: Files(url=url).part_name(at, "7-9")
        for url in ("hdfs://host:1/lake", "viewfs://here/lake", "s3://bucket/lake", "/lake")
    }
    own = "part-0001-0000000000-t~2F3-7-9-2.7.parquet"
    common = "part-0001-0000000000-t~2F3-7-9.parquet"
    assert list(names.values()) == [own, own, common, common]
    assert files_at(tmp_path).part_name(at, "7-9") == own
