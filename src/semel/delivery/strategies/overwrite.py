"""The way to a place that is overwritten: one chunk per partition, from its first event, always.

The place belongs to this partition and minibatch alone; it stands in the ledger before anything is
written, and a replay replaces whatever an earlier attempt left there.
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
    """Writes a partition aside and puts it in its place at the end of the input."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._session: WholeSession | None = None
        self._found: Found | None = None

    def wants(self) -> int:
        """Whatever there is."""
        if self._found is Found.COMPLETE:
            return replay_check.wants(self._lane)
        return self._lane.sink.chunk_rows

    def step(self, rows: Rows) -> int:
        """Claim first; then write, also what an earlier attempt wrote."""
        lane = self._lane
        if self._found is None:
            location = lane.sink.locate(lane.assignment.target(lane.sink))
            self._found = lane.claim.claim(None, location=location, begins=rows.sort_key(0))
            return 0
        if self._found is Found.COMPLETE:
            return replay_check.count_rows(lane, rows)
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
        """Put it in its place, if this attempt still has the partition."""
        if self._session is not None:
            self._lane.claim.check()
            session = self._session
            self._lane.placed = self._or_nothing(session.finish)

    def close(self) -> None:
        """Give up what was not finished."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def _or_nothing(self, call: Callable[[], T]) -> T:
        """A place that was not written whole counts for nothing: it is written anew."""
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
