"""The clock, as an interface: leases and waits use `monotonic`, people read `wall`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as one process sees it."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; comparable within this process only."""

    def wall(self) -> float:
        """Seconds since 1970, as other machines would roughly say too."""

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds since some start."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        time.sleep(seconds)
