"""Delivery to a place that is overwritten: each partition is written whole, from its first event.

Always true:
- the place belongs to this partition and minibatch alone;
- it is in the ledger before anything is written;
- a replay replaces whatever an earlier attempt left there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from semel.delivery.calling import Faults, open_session
from semel.delivery.observer import Figures
from semel.delivery.strategies import Finish, Step, replay_check
from semel.errors import NotDelivered, SemelError
from semel.protocol import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.parking.parking import PartitionParking
    from semel.delivery.partition import Buffer
    from semel.events import Rows
    from semel.sinks import WholeSession

T = TypeVar("T")


class OverwriteStrategy:
    """Writes a partition to a temporary place and moves it to its own at the end of the input."""

    def __init__(self, partition: SinkPartition, parking: PartitionParking, buffer: Buffer) -> None:
        self._partition = partition
        self._parking = parking
        self._buffer = buffer
        self._faults = Faults(partition)
        self._session: WholeSession | None = None
        self._found: Found | None = None

    def wants(self) -> int:
        """Return the size of a chunk, or of a counting step if the partition is complete."""
        if self._found is Found.COMPLETE:
            return replay_check.wants(self._partition, self._buffer.position)
        return self._partition.sink.chunk_rows

    def step(self, rows: Rows) -> Step:
        """Claim first; then write, including what an earlier attempt wrote."""
        partition, start = self._partition, self._buffer.position
        # 1. Record the place in the ledger before anything is written: after a crash it is known
        #    where a part may be.
        if self._found is None:
            self._found = partition.claim.claim(
                None,
                location=partition.sink.locate(partition.target),
                begins=rows.sort_key(0),
                columns=self._buffer.columns,
            )
            return Step(done=False)
        # 2. A complete partition is only counted: Spark may run it again after a crash of the
        #    driver.
        if self._found is Found.COMPLETE:
            return Step(True, replay_check.count_rows(self._parking, start, rows))
        # 3. Write from the first event on: what an attempt wrote before it crashed does not count.
        chunk = partition.chunk(rows, start, start + len(rows))
        if self._session is None:
            look_at = self._faults.look_at_opening
            session = open_session(partition.sink, partition.target, partition.runtime, look_at)
            self._session = cast("WholeSession", session)
        self._or_nothing(lambda: cast("WholeSession", self._session).write(chunk))
        figures = Figures(delivered=len(rows))
        self._faults.note(figures)
        return Step(True, figures)

    def finish(self) -> Finish:
        """Move it to its place, if this attempt still has the partition."""
        placed = None
        if self._session is not None:
            # 1. Ask the ledger: an attempt that was replaced while it wrote must not overwrite its
            #    successor.
            self._partition.claim.check()
            # 2. Move it last: a crash before it leaves nothing that counts, and a replay after it
            #    overwrites.
            placed = self._or_nothing(self._session.finish)
        return Finish(self._parking.last_osn_sent(self._buffer.position), placed=placed)

    def give_up(self) -> None:
        """Do nothing: what is not in its place does not count."""

    def close(self) -> None:
        """Discard what was not finished."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _or_nothing(self, call: Callable[[], T]) -> T:
        """Call; after an error the place was not written whole, so it does not count and is
        rewritten.
        """
        try:
            return call()
        except SemelError:
            raise
        except Exception as error:
            self._faults.look_at_opening(error)
            raise NotDelivered(
                f"{self._partition.place}: the output could not be written ({error}). "
                "What was written does not count. Check that the destination can be written, then "
                "restart the query"
            ) from error
