"""Times as answers show them: in UTC, and as an age."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from semel.runtime import SystemClock

if TYPE_CHECKING:
    from semel.runtime import Clock


def utc_text(at: float | None) -> str | None:
    """Return a time in ISO 8601, in UTC, to the second: `2026-11-16T10:00:00Z`."""
    if at is None:
        return None
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def age_s(at: float, clock: Clock | None = None) -> float:
    """Return how many seconds ago a time was, by the clock of this machine."""
    return max(0.0, (clock or SystemClock()).wall() - at)
