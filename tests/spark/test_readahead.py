"""Reading ahead: the same batches in the same order, a bound on what waits, an end that is an end.

No Spark is needed: what stands in for its batches is an iterator that can be held up, or fail.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from semel.spark import task
from semel.spark.task import reading_ahead


def batch(number: int, rows: int = 10) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"number": pa.array([number] * rows, pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each.column("number")[0].as_py() for each in batches]


class Source:
    """Batches 0, 1, 2, ...; it counts how many were asked for, and can be held up before one."""

    def __init__(self, count: int, *, held_at: int | None = None) -> None:
        self.count, self.held_at = count, held_at
        self.asked = 0
        self.reached, self.free = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for number in range(self.count):
            self.asked += 1
            if number == self.held_at:
                self.reached.set()
                assert self.free.wait(10)
            yield batch(number)


def settled(source: Source) -> int:
    """How many were asked for once no more are."""
    seen = -1
    while seen != source.asked:
        seen = source.asked
        time.sleep(0.1)
    return seen


def test_all_batches_come_in_their_order() -> None:
    with reading_ahead(iter(Source(500))) as batches:
        assert numbers(batches) == list(range(500))


def test_a_partition_without_batches_ends() -> None:
    with reading_ahead(iter(())) as batches:
        assert list(batches) == []


def test_the_next_are_read_while_one_is_worked_on() -> None:
    source = Source(3, held_at=2)
    with reading_ahead(iter(source)) as batches:
        assert numbers(iter([next(batches)])) == [0]
        assert source.reached.wait(10), "nobody read ahead"
        source.free.set()
        assert numbers(batches) == [1, 2]


def test_no_more_wait_than_the_bound_and_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "AHEAD_BYTES", 3 * batch(0).nbytes)
    source = Source(100)
    with reading_ahead(iter(source)) as batches:
        assert settled(source) == 3
        next(batches)
        assert settled(source) == 4
        assert numbers(batches) == list(range(1, 100))


def test_a_batch_beyond_the_bound_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "AHEAD_BYTES", 1)
    with reading_ahead(iter(Source(20))) as batches:
        assert numbers(batches) == list(range(20))


def test_an_error_of_the_input_is_told_before_what_was_read_ahead_of_it() -> None:
    failed = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        yield batch(1)
        failed.set()
        raise EOFError("the socket is closed")

    with reading_ahead(source()) as batches:
        assert failed.wait(10)
        while readers():
            time.sleep(0.01)
        with pytest.raises(EOFError, match="the socket is closed"):
            next(batches)


def test_once_the_block_is_left_nobody_reads() -> None:
    source = Source(100, held_at=1)
    with pytest.raises(ValueError, match="mine"), reading_ahead(iter(source)):  # noqa: PT012
        assert source.reached.wait(10)
        threading.Timer(0.3, source.free.set).start()
        raise ValueError("mine")
    assert not readers()
    assert source.asked == 2


def test_a_reader_that_waits_for_room_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "AHEAD_BYTES", 1)
    source = Source(100)
    with reading_ahead(iter(source)):
        assert settled(source) == 1
    assert not readers()
    assert source.asked == 1


def readers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "semel reads ahead"]
