"""What a lane does with a partition that is complete: count and digest it, deliver nothing.

With position identity a re-run may end later than the first try did; then the row goes back to
pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.events import Position

if TYPE_CHECKING:
    from semel.delivery.lane import Lane
    from semel.events import Rows

STEP_ROWS = 65_536


def wants(lane: Lane) -> int:
    """Take rows up to the end of what was complete, then whatever comes."""
    row = lane.holding.row
    count = row.count if row is not None and row.count is not None else 0
    left = count - lane.position
    return min(left, STEP_ROWS) if left > 0 else STEP_ROWS


def goes_on(lane: Lane, rows: Rows) -> bool:
    """Say whether events came beyond a complete range, and put the row back to pending for them.

    Raises `Diverged` when the range itself is not what was delivered.
    """
    row = lane.holding.row
    if row is None or row.count is None or lane.position < row.count:
        return False
    if not isinstance(lane.assignment.identity, Position):
        return False
    opening = lane.assignment.opening
    known = opening.sequence(lane.sink.name, lane.assignment.partition)
    if any(serial > opening.row.serial for serial, _ in known.before):
        raise lane.diverged(row.count, f"{row.count} events", "more, of a later minibatch", rows)
    running = lane.running_after(rows, 0)
    if running != row.digest:
        raise lane.diverged(row.count, f"digest {row.digest}", f"digest {running}", rows)
    lane.holding.reopen(row.count)
    return True


def count(lane: Lane, rows: Rows) -> int:
    """Count rows that were delivered before."""
    if not lane.position:
        lane.read_marks()  # what was parked was not delivered
    lane.count_before(range(lane.position, lane.position + len(rows)))
    return len(rows)
