"""Delivery to a place that is overwritten: each partition is written whole, from its first event.

Always true:
- the place belongs to this partition and minibatch alone;
- it is in the ledger before anything is written;
- a replay replaces whatever an earlier attempt left there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from semel.delivery.calling import open_session
from semel.delivery.strategies import replay_check
from semel.errors import NotDelivered, SemelError
from semel.protocol import Found

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.delivery.lane import Lane
    from semel.events import Rows
    from semel.sinks import WholeSession

T = TypeVar("T")


class OverwriteStrategy:
    """Writes a partition to a temporary place and moves it to its own at the end of the input."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._session: WholeSession | None = None
        self._found: Found | None = None

    def wants(self) -> int:
        """Return the size of a chunk, or of a counting step if the partition is complete."""
        if self._found is Found.COMPLETE:
            return replay_check.wants(self._lane)
        return self._lane.sink.chunk_rows

    def step(self, rows: Rows) -> int:
        """Claim first; then write, including what an earlier attempt wrote."""
        lane = self._lane
        # 1. Record the place in the ledger before anything is written: after a crash it is known
        #    where a part may be.
        if self._found is None:
            location = lane.sink.locate(lane.assignment.target(lane.sink))
            self._found = lane.claim.claim(None, location=location, begins=rows.sort_key(0))
            return 0
        # 2. A complete partition is only counted: Spark may run it again after a crash of the
        #    driver.
        if self._found is Found.COMPLETE:
            return replay_check.count_rows(lane, rows)
        # 3. Write from the first event on: what an attempt wrote before it crashed does not count.
        start = lane.position
        chunk = lane.chunk(rows, start, start + len(rows))
        if self._session is None:
            target = lane.assignment.target(lane.sink)
            look_at = lane.faults.look_at_opening
            session = open_session(lane.sink, target, lane.runtime, look_at)
            self._session = cast("WholeSession", session)
        self._or_nothing(lambda: cast("WholeSession", self._session).write(chunk))
        lane.figures.delivered += len(rows)
        return len(rows)

    def finish(self) -> None:
        """Move it to its place, if this attempt still has the partition."""
        if self._session is not None:
            # 1. Ask the ledger: an attempt that was replaced while it wrote must not overwrite its
            #    successor.
            self._lane.claim.check()
            # 2. Move it last: a crash before it leaves nothing that counts, and a replay after it
            #    overwrites.
            session = self._session
            self._lane.placed = self._or_nothing(session.finish)

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
            lane = self._lane
            lane.faults.look_at_opening(error)
            raise NotDelivered(
                f"{lane.assignment.place(lane.sink)}: the place could not be written ({error}). "
                "What is there does not count; see that the destination can be written, then "
                "restart the query"
            ) from error
