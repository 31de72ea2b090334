"""Part files on a real disk: places, claims, manifests, crashes between any two steps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from semel.delivery import Driver
from semel.errors import ConfigurationError, Diverged, Fenced, NotDelivered
from semel.events import Attempt, Chunk, Minibatch
from semel.events.identity.position import Position
from semel.protocol import Capability
from semel.sinks import Target, WholeSession
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed, read
from semel.sinks.files.sink import PartSession
from semel.sinks.files.storage import Folder, Writing, path_part
from semel.urls import place
from support.destinations import Crash
from support.pipeline import POSITION, World, events

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()
ONCE = Retry(for_s=0.0)


def files_at(folder: Path | str, **settings: Any) -> Files:
    return Files(**{"name": "out", "url": str(folder), "retry": ONCE, **settings})


def world_at(folder: Path, **settings: Any) -> World:
    world = World(settings.pop("identity", World.identity))
    world.sinks.append(files_at(folder, **settings))
    world.start()
    return world


def rows_in(folder: Path) -> list[str]:
    """What readers see, in the order of minibatches and partitions."""
    tables = read(f"{folder}/pay/out")
    return [f"{row['c']}{row['id']}" for table in tables for row in table.to_pylist()]


def standing(folder: Path) -> list[str]:
    """Every file below the sink's folder."""
    root = folder / "pay" / "out"
    return sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())


def target(attempt: int = 1, partition: str = "0", run: int = 1) -> Target:
    return Target("pay", "out", Minibatch(1, 0), partition, Attempt(run, attempt))


def chunk_of(text: str) -> Any:
    """A chunk as a session takes it."""
    world = World()
    rows = world.identity.stamper("0", last={}).stamp(events(text))
    return Chunk(rows, 0, len(rows), "key", 1, "pay/out/")


# -- places


@pytest.mark.rows("S16", "A5", "A6", "A7")
def test_a_part_file_per_partition_and_minibatch_and_a_manifest_that_names_them(
    tmp_path: Path,
) -> None:
    world = world_at(tmp_path)
    opening = world.open(0)
    reports = world.task(opening, "a1 b2", partition="0")
    [row] = world.streams()
    assert row.location == f"{tmp_path}/pay/out/part-0001-0000000000-0-*.parquet"
    reports += world.task(opening, "c3", partition="1", spark_task=1)
    assert list(committed(f"{tmp_path}/pay/out")) == []
    world.driver.end(opening, reports)
    world.minibatch(1, "d4 e5")
    assert [each.location for each in world.streams()] == [None, None, None]
    assert standing(tmp_path) == [
        "_manifests/0001-0000000000.json",
        "_manifests/0001-0000000001.json",
        "part-0001-0000000000-0-1-2.parquet",
        "part-0001-0000000000-1-1-1.parquet",
        "part-0001-0000000001-0-3-4.parquet",
    ]
    assert rows_in(tmp_path) == NAMES
    [first, second] = world.sinks[0].committed("pay")  # type: ignore[attr-defined]
    assert [(part.partition, part.rows) for part in first.parts] == [("0", 2), ("1", 1)]
    assert (first.rows, second.rows) == (3, 2)
    assert second.urls == [f"{tmp_path}/pay/out/part-0001-0000000001-0-3-4.parquet"]
    assert second.parts[0].bytes == Path(second.urls[0]).stat().st_size
    later = committed(f"{tmp_path}/pay/out", after=Minibatch(1, 0))
    assert [each.minibatch for each in later] == [Minibatch(1, 1)]


def test_a_minibatch_without_events_leaves_nothing(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    opening = world.open(0)
    world.driver.end(opening, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_the_same_rows_give_the_same_bytes_wherever_batches_end(tmp_path: Path, form: str) -> None:
    found = set()
    words = [f"{'abcdef'[at % 6]}{at + 1}" for at in range(50)]
    for number, cut in enumerate([(50,), (1, 49), (7, 8, 35), (25, 25), (3,) * 16 + (2,)]):
        folder = tmp_path / str(number)
        world = world_at(folder, format=form, row_group_rows=8, chunk_rows=5)
        batches, start = [], 0
        for count in cut:
            batches.append(events(" ".join(words[start : start + count])))
            start += count
        opening = world.open(0)
        world.driver.end(opening, world.task(opening, batches))
        [manifest] = committed(f"{folder}/pay/out")
        found.add(manifest.parts[0].digest)
        assert rows_in(folder) == words
    assert len(found) == 1


@pytest.mark.parametrize(
    "name",
    ["topic/3", "..", ".", "", "../../etc/passwd", "a~b", "a=b/c%2F", "_x", "ä\n\x00", "x" * 100],
)
def test_names_from_outside_are_one_part_of_a_path_and_can_be_read_back(name: str) -> None:
    text = path_part(name)
    assert "/" not in text
    assert text not in ("", ".", "..")
    assert not text.startswith((".", "_"))
    assert text.isascii()
    assert len(text) <= 200
    assert read_back(text) == name


def read_back(text: str) -> str:
    """Read the escapes of `path_part`: each is one byte."""
    pieces = re.findall("~[0-9A-F]{2}|.", "" if text == "~" else text)
    each = (bytes.fromhex(piece[1:]) if len(piece) == 3 else piece.encode() for piece in pieces)
    return b"".join(each).decode()


def test_very_long_names_are_shortened_and_kept_apart() -> None:
    one, other = path_part("x" * 300), path_part("x" * 301)
    assert one != other
    assert len(one) <= 120
    assert "~~" in one


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    sink = files_at(inside, name="../../sink")
    for partition in ("../../../out", "/etc/x", "t/0"):
        session = sink.open(
            Target("../..//pay", "../../sink", Minibatch(1, 0), partition, Attempt(1, 1))
        )
        session.write(chunk_of("a1"))
        session.finish()
    assert [each.name for each in tmp_path.iterdir()] == ["inside"]
    assert len(list(inside.rglob("*.parquet"))) == 3


# -- claims: who may put a file in its place


def test_the_sink_is_what_it_claims(tmp_path: Path) -> None:
    sink = files_at(tmp_path)
    assert sink.capability is Capability.REPEATABLE
    assert sink.whole
    assert sink.concludes
    assert isinstance(sink.open(target()), WholeSession)
    assert pickle.loads(pickle.dumps(sink)) == sink


@pytest.mark.rows("A12")
def test_what_an_earlier_attempt_left_is_replaced_and_what_it_held_aside_is_removed(
    tmp_path: Path,
) -> None:
    sink = files_at(tmp_path)
    crashed = sink.open(target(1))
    crashed.write(chunk_of("a1 b2 c3"))
    assert "_aside/0001-0000000000/0/1.1.part" in standing(tmp_path)
    (tmp_path / "pay/out/part-0001-0000000000-0.parquet").write_bytes(b"garbage")
    later = sink.open(target(2))
    assert not [name for name in standing(tmp_path) if name.endswith(".part")]
    later.write(chunk_of("a1"))
    placed = later.finish()
    later.close()
    crashed.close()
    assert placed is not None
    assert placed["rows"] == 1
    content = (tmp_path / "pay/out" / placed["name"]).read_bytes()
    assert len(content) == placed["bytes"]
    assert not [name for name in standing(tmp_path) if name.endswith(".part")]


@pytest.mark.rows("S19")
@pytest.mark.parametrize("wrote", [True, False])
def test_a_zombie_is_fenced_once_a_later_attempt_has_put_something_or_emptied_the_place(
    tmp_path: Path, *, wrote: bool
) -> None:
    sink = files_at(tmp_path)
    zombie = sink.open(target(1))
    zombie.write(chunk_of("a1 b2"))
    later = sink.open(target(-1, run=2))
    if wrote:
        later.write(chunk_of("a1"))
    later.finish()
    before = standing(tmp_path)
    with pytest.raises(Fenced, match=r"attempt 2\.-1 has claimed it"):
        zombie.finish()
    zombie.close()
    with pytest.raises(Fenced):
        sink.open(target(5))
    parts = [name for name in standing(tmp_path) if name.startswith("part-")]
    assert parts == [name for name in before if name.startswith("part-")]
    assert bool(parts) == wrote


@pytest.mark.rows("S19")
@pytest.mark.parametrize("wrote", [True, False])
def test_a_zombie_that_paused_between_its_last_look_and_the_move_has_nothing_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wrote: bool
) -> None:
    sink = files_at(tmp_path)
    zombie = sink.open(target(1))
    zombie.write(chunk_of("a1 b2"))
    move = Folder.move

    def replaced_first(folder: Folder, aside: str, place: str) -> None:
        monkeypatch.setattr(Folder, "move", move)
        later = sink.open(target(2))
        if wrote:
            later.write(chunk_of("c3"))
        later.finish()
        later.close()
        folder.move(aside, place)

    monkeypatch.setattr(Folder, "move", replaced_first)
    with pytest.raises(Fenced, match="removed, by a later attempt"):
        zombie.finish()
    zombie.close()
    parts = [name for name in standing(tmp_path) if name.startswith("part-")]
    assert len(parts) == int(wrote)


@pytest.mark.rows("S19")
def test_a_zombie_of_a_concluded_minibatch_is_fenced_also_when_it_opens_only_now(
    tmp_path: Path,
) -> None:
    world = world_at(tmp_path)
    [sink] = world.sinks
    early = sink.open(target(0))
    assert isinstance(early, PartSession)
    early.write(chunk_of("a1 b2"))
    world.minibatch(0, INPUT)
    with pytest.raises(Fenced):
        early.finish()
    early.close()
    with pytest.raises(Fenced, match="complete and has its manifest"):
        sink.open(target(99))
    assert rows_in(tmp_path) == NAMES


def test_a_folder_that_another_ledger_filled_is_told(tmp_path: Path) -> None:
    world_at(tmp_path).minibatch(0, INPUT)
    with pytest.raises(Fenced, match="give the pipeline another name, or another folder"):
        world_at(tmp_path).minibatch(0, "f6")
    assert rows_in(tmp_path) == NAMES


# -- crashes

CALLS = ("write_aside", "move", "remove", "remove_folder", "names", "sizes", "read")


class Disk:
    """Counts what is done in folders, and lets the process die before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.dead = False
        self.dies: tuple[int, str] | None = None
        for name in CALLS:
            monkeypatch.setattr(Folder, name, self._counted(name, getattr(Folder, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(folder: Folder, *args: Any) -> Any:
            self.count += 1
            if self.dead or self.dies == (self.count, "before"):
                self.dead = True
                raise Crash(name)
            result = call(folder, *args)
            if self.dies == (self.count, "after"):
                self.dead = True
                if isinstance(result, Writing):
                    result.close()
                raise Crash(name)
            return result

        return counted

    def crashes(self) -> Iterator[tuple[int, str]]:
        """Give every moment to die at, until no attempt died."""
        for moment in ("before", "after"):
            number = 0
            while self.dies is None or self.count >= number:
                number += 1
                self.count, self.dies = 0, (number, moment)
                yield number, moment
            self.dies = None

    def lives(self) -> None:
        self.dead, self.dies = False, (0, "never")


@pytest.mark.rows("A6", "A7", "A12")
@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
@pytest.mark.parametrize("identity", [World.identity, POSITION], ids=["given", "position"])
def test_after_a_crash_at_any_step_manifests_name_every_event_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: Any, *, lost: bool
) -> None:
    disk = Disk(monkeypatch)
    died = 0
    for number, moment in disk.crashes():
        folder = tmp_path / f"{number}-{moment}"
        disk.lives()
        world = world_at(folder, identity=identity)
        world.minibatch(0, "a1 b2")
        disk.count, disk.dies = 0, (number, moment)
        try:
            world.minibatch(1, "c3 d4")
        except Crash:
            died += 1
        reached = disk.count
        disk.lives()
        seen = rows_in(folder)
        assert seen in (["a1", "b2"], NAMES[:4]), (number, moment)
        world.start()
        if lost:
            world.minibatch(0, "a1 b2 c3 d4", query="another")
        else:
            world.minibatch(1, "c3 d4")
        assert rows_in(folder)[: len(seen)] == seen
        world.minibatch(1 if lost else 2, "e5", query="another" if lost else "q")
        assert rows_in(folder) == NAMES, (number, moment)
        assert not [name for name in standing(folder) if name.endswith(".part")]
        disk.count = reached
        disk.dies = (number, moment)
    assert died > 10


def test_a_crash_after_complete_and_before_the_manifest_is_made_good_by_a_new_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Driver, "_conclude", _dies)
        with pytest.raises(Crash):
            world.minibatch(0, "a1 b2 c3")
    assert rows_in(tmp_path) == []
    world.start()
    world.minibatch(7, INPUT, query="another")
    assert rows_in(tmp_path) == NAMES
    assert [m.minibatch for m in committed(f"{tmp_path}/pay/out")] == [
        Minibatch(1, 0),
        Minibatch(2, 7),
    ]


def _dies(*_: object) -> None:
    raise Crash


def test_a_manifest_that_stands_is_never_changed(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    world.minibatch(0, INPUT)
    path = tmp_path / "pay/out/_manifests/0001-0000000000.json"
    before = path.stat()
    world.start()
    world.minibatch(0, INPUT)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    value = json.loads(path.read_text())
    value["parts"][0]["digest"] = "0" * 64
    path.write_text(json.dumps(value))
    world.start()
    with pytest.raises(Diverged, match="names other files"):
        world.minibatch(0, INPUT)


def test_a_file_that_is_not_as_it_was_delivered_is_told_to_readers(tmp_path: Path) -> None:
    world_at(tmp_path).minibatch(0, INPUT)
    part = tmp_path / "pay/out/part-0001-0000000000-0-1-5.parquet"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"x")
    with pytest.raises(NotDelivered, match="is not the file"):
        rows_in(tmp_path)
    part.unlink()
    with pytest.raises(NotDelivered, match="missing"):
        rows_in(tmp_path)


def test_a_file_that_is_gone_before_its_manifest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    opening = world.open(0)
    reports = world.task(opening, INPUT)
    (tmp_path / "pay/out/part-0001-0000000000-0-1-5.parquet").unlink()
    with pytest.raises(NotDelivered, match="it is missing"):
        world.driver.end(opening, reports)
    assert rows_in(tmp_path) == []


# -- errors of the disk


def test_a_full_disk_fails_the_task_and_the_next_attempt_writes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    opening = world.open(0)
    sync = os.fsync

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotDelivered, match="No space left"):
        world.task(opening, INPUT)
    monkeypatch.setattr(os, "fsync", sync)
    assert not [name for name in standing(tmp_path) if not name.endswith(".claim")]
    world.driver.end(opening, world.task(opening, INPUT))
    assert rows_in(tmp_path) == NAMES


def test_a_really_full_device_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no full device can be written to: only Linux has /dev/full")
    folder = Folder(fs.LocalFileSystem(), "/dev", "/dev")
    writing = folder.write_aside("full")
    writing.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        writing.keep()
    with contextlib.suppress(OSError):
        writing.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    world = world_at(tmp_path / "file")
    with pytest.raises(NotDelivered, match="could not be reached"):
        world.minibatch(0, INPUT)


def test_a_folder_without_permission_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Folder, name: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder.path(name))

    monkeypatch.setattr(Folder, "_make", denied)
    world = world_at(tmp_path)
    with pytest.raises(NotDelivered, match="Permission denied"):
        world.minibatch(0, INPUT)


def test_a_folder_that_is_removed_half_way_is_made_anew_by_the_next_attempt(tmp_path: Path) -> None:
    world = world_at(tmp_path, chunk_rows=2)
    opening = world.open(0)

    def batches() -> Iterator[pa.RecordBatch]:
        yield events("a1 b2")
        yield events("c3")
        for each in sorted((tmp_path / "pay").rglob("*"), reverse=True):
            each.rmdir() if each.is_dir() else each.unlink()
        yield events("d4 e5")

    with pytest.raises(Fenced):
        world.task(opening, batches())
    world.driver.end(opening, world.task(opening, INPUT))
    assert rows_in(tmp_path) == NAMES


def test_a_file_and_its_folder_are_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(number: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{number}").readlink()).removeprefix(str(tmp_path)))
        sync(number)

    def moved(path: Path, to: Any) -> Any:
        done.append(f"move to {str(to).removeprefix(str(tmp_path))}")
        return replace(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved)
    session = files_at(tmp_path).open(target())
    session.write(chunk_of("a1"))
    session.finish()
    end = done.index("move to /pay/out/part-0001-0000000000-0-1-1.parquet")
    assert done[end - 1] == "/pay/out/_aside/0001-0000000000/0/1.1.part"
    assert done[end + 1] == "/pay/out"
    assert "/pay" in done[:end]


# -- settings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"url": ""}, "must not be empty"),
        ({"format": "orc"}, "use parquet, json, csv"),
        ({"compression": "rar"}, "use snappy"),
        ({"prefix": "../x"}, "must begin with a letter"),
        ({"row_group_rows": 0}, "at least 1"),
        ({"whole": False}, "unknown setting 'whole'"),
        ({"url": "ftp://user:secret@host/x"}, "is not a supported place for files"),
        ({"url": "gs://bucket/x"}, "use a path, file:///path, s3://.* or hdfs://.* filesystem="),
        ({"then": 7}, "must be a loader, a sink or a function"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        files_at("/tmp/x", **settings)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:abc/s3cret@bucket/lake",
        "s3://KEY:123/s3cret@bucket/lake",
        "s3://KEY:s3cret#@bucket/lake",
        "s3://KEY:s3cret?@bucket/lake",
        "hdfs://KEY:s3cret/x@host:8020/lake",
        "gs://KEY:abc/s3cret@bucket/lake",
    ],
)
def test_a_key_that_is_not_written_for_a_url_is_refused_and_not_shown(url: str) -> None:
    for refuses in (lambda: Files(name="lake", url=url), lambda: list(committed(url))):
        with pytest.raises(ConfigurationError, match=r"is not a \w+ place for files") as caught:
            refuses()
        assert "s3cret" not in str(caught.value)
        assert "KEY" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    url = "s3://key:secret@bucket/lake?endpoint_override=127.0.0.1:1&scheme=http&region=x"
    sink = files_at(url)
    shown = f"{sink!r} {sink.describe()} {sink.locate(target())} {sink.where}"
    assert "secret" not in shown
    assert "key:" not in shown
    assert place(url) == "s3://bucket/lake"


def test_a_relative_path_is_the_drivers() -> None:
    assert files_at("lake").url == str(Path("lake").absolute())
    assert files_at("", url=Path("lake")).url == str(Path("lake").absolute())


def test_a_path_object_names_a_folder_to_write_and_to_read(tmp_path: Path) -> None:
    world_at(tmp_path, url=tmp_path / "lake").minibatch(0, INPUT)
    assert [manifest.rows for manifest in committed(tmp_path / "lake/pay/out")] == [5]
    assert [len(table) for table in read(tmp_path / "lake/pay/out")] == [5]


def test_position_partitions_have_a_file_each(tmp_path: Path) -> None:
    world = world_at(tmp_path, identity=Position())
    world.minibatch(0, INPUT)
    [manifest] = committed(f"{tmp_path}/pay/out")
    assert [part.name for part in manifest.parts] == ["part-0001-0000000000-t~2F0-1-5.parquet"]
    assert manifest.parts[0].partition == "t/0"


def test_a_place_is_emptied_by_a_later_attempt_that_writes_nothing(tmp_path: Path) -> None:
    sink = files_at(tmp_path)
    early = sink.open(target(1))
    early.write(chunk_of("a1"))
    early.finish()
    assert "part-0001-0000000000-0-1-1.parquet" in standing(tmp_path)
    later = sink.open(target(-1, run=2))
    assert later.finish() is None
    assert later.finish() is None
    later.close()
    assert not [name for name in standing(tmp_path) if name.startswith("part-")]


def test_a_closed_session_writes_nothing_and_empties_nothing(tmp_path: Path) -> None:
    sink = files_at(tmp_path)
    closed = sink.open(target(1))
    closed.write(chunk_of("a1"))
    closed.close()
    with pytest.raises(NotDelivered, match="session is closed"):
        closed.write(chunk_of("b2"))
    with pytest.raises(NotDelivered, match="session is closed"):
        closed.finish()
    done = sink.open(target(2))
    done.write(chunk_of("a1"))
    done.finish()
    with pytest.raises(NotDelivered, match="session is closed"):
        done.finish()
    assert "part-0001-0000000000-0-1-1.parquet" in standing(tmp_path)
