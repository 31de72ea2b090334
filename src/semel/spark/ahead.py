"""Reads the batches of a task ahead, so that Spark makes the next rows while a destination works.

Always true: batches come in their order, each once; no more than `AHEAD_BYTES` and one batch wait;
an error of the input is told before what was read ahead of it, so that a task that was stopped
stops soon; and once the block is left nobody reads any more, because Spark reads on where it ended.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

AHEAD_BYTES = 16 << 20


@contextmanager
def reading_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Give the same batches, read by a thread of its own as long as the block lasts."""
    reader = _Reader(batches)
    reader.start()
    try:
        yield reader.taken()
    finally:
        reader.leave()


class _Reader(threading.Thread):
    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        super().__init__(name="semel reads ahead", daemon=True)
        self._batches = batches
        self._changed = threading.Condition()
        self._waiting: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._ended = self._left = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Read until the input ends, or nobody wants more."""
        try:
            for batch in self._batches:
                if not self._put(batch):
                    break
        except BaseException as error:  # noqa: BLE001 - told where the batches are taken
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _put(self, batch: pa.RecordBatch) -> bool:
        """Hand a batch over once there is room for the next; False when nobody wants it."""
        with self._changed:
            self._waiting.append(batch)
            self._bytes += batch.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._bytes < AHEAD_BYTES)
            return not self._left

    def taken(self) -> Iterator[pa.RecordBatch]:
        """Give the batches to whoever wants them next."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if self._error is not None:
                    raise self._error
                if not self._waiting:
                    return
                batch = self._waiting.popleft()
                self._bytes -= batch.nbytes
                self._changed.notify_all()
            yield batch

    def leave(self) -> None:
        """Read no more than the batch that is under way."""
        with self._changed:
            self._left = True
            self._changed.notify_all()
        self.join()
