"""Batches are put together to runs of what is wanted: nothing is lost, moved or copied in vain."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from semel.delivery import partition
from semel.delivery.partition import gathered

SIZES = st.lists(st.integers(0, 12), max_size=20)


def batches(sizes: list[int], text: str = "x") -> list[pa.RecordBatch]:
    rows, made = 0, []
    for size in sizes:
        numbers = list(range(rows, rows + size))
        made.append(pa.RecordBatch.from_pydict({"n": numbers, "text": [text] * size}, SCHEMA))
        rows += size
    return made


SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def numbers(runs: list[pa.RecordBatch]) -> list[int]:
    return [number for run in runs for number in run.column("n").to_pylist()]


@given(SIZES, st.integers(1, 15))
def test_every_row_comes_once_and_in_order(sizes: list[int], wanted: int) -> None:
    runs = list(gathered(batches(sizes), lambda: wanted))
    assert numbers(runs) == list(range(sum(sizes)))
    assert all(len(run) for run in runs)


@given(SIZES, st.integers(1, 15))
def test_every_run_but_the_last_is_a_multiple_of_what_is_wanted(
    sizes: list[int], wanted: int
) -> None:
    runs = list(gathered(batches(sizes), lambda: wanted))
    assert [len(run) % wanted for run in runs[:-1]] == [0] * len(runs[:-1])


@given(SIZES, st.integers(1, 15))
def test_no_row_waits_that_a_step_could_take(sizes: list[int], wanted: int) -> None:
    given_out = taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal given_out
        for batch in batches(sizes):
            assert given_out - taken < wanted  # all that could be taken was, before more is read
            given_out += len(batch)
            yield batch

    for run in gathered(counted(), lambda: wanted):
        taken += len(run)
    assert taken == sum(sizes)


def test_what_is_wanted_may_change_from_run_to_run() -> None:
    wanted = iter([4, 4, 3, 3, 100, 100, 100, 100])
    runs = list(gathered(batches([6, 6, 6]), lambda: next(wanted)))
    assert numbers(runs) == list(range(18))


def test_a_whole_batch_is_handed_on_without_a_copy() -> None:
    [batch] = batches([10])
    [run] = gathered([batch], lambda: 5)
    assert run.column("text").buffers()[2].address == batch.column("text").buffers()[2].address


def test_large_rows_are_not_heaped_up() -> None:
    large = batches([4] * 10, text="x" * (partition.GATHERED_BYTES // 8))
    runs = list(gathered(large, lambda: 1_000))
    assert numbers(runs) == list(range(40))
    assert max(run.nbytes for run in runs) < 2 * partition.GATHERED_BYTES


def test_batches_with_other_columns_are_not_put_together() -> None:
    [one] = batches([3])
    other = pa.RecordBatch.from_pydict({"n": [3]})
    runs = list(gathered([one, other], lambda: 10))
    assert [run.schema for run in runs] == [one.schema, other.schema]
