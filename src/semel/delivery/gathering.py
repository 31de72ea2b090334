"""Puts the batches of a partition together to runs that a step of a lane takes whole.

What is done once for a run, looking up its entities above all, costs a fifth where five batches are
one. Always true: rows keep their order, none waits that a step could have taken, and no run is made
of more bytes than `GATHERED_BYTES` and the batch that passed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.events.columns import put_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

GATHERED_BYTES = 64 << 20


def gathered(
    batches: Iterable[pa.RecordBatch], wanted: Callable[[], int]
) -> Iterator[pa.RecordBatch]:
    """Give the rows of `batches` in runs of as many as are wanted, or a multiple of it; copy only
    where a run begins in one batch and ends in another.
    """
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rest = batch
        if kept and rest.schema != kept[0].schema:
            yield put_together(kept)
            kept, rows, size = [], 0, 0
        if kept:
            missing = max(wanted() - rows, 0)
            kept.append(rest.slice(0, missing))
            rows, size = rows + len(kept[-1]), size + kept[-1].nbytes
            if len(rest) < missing and size < GATHERED_BYTES:
                continue
            yield put_together(kept)
            kept, rows, size = [], 0, 0
            rest = rest.slice(missing)
        whole = len(rest) - len(rest) % max(wanted(), 1)
        if whole:
            yield rest.slice(0, whole)
            rest = rest.slice(whole)
        if len(rest):
            kept, rows, size = [rest], len(rest), rest.nbytes
    if kept:
        yield put_together(kept)
