"""The clock, as an interface: leases and waits use `monotonic`, people read `wall`.

A machine that was suspended has to find its leases run out when it wakes up. So `monotonic` counts
that time too, where the system has such a clock (`CLOCK_BOOTTIME`). A virtual machine that its host
has paused knows nothing of it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time as one process sees it."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; comparable within this process only. It goes on
        while the machine is suspended.
        """

    def wall(self) -> float:
        """Seconds since 1970, as other machines would roughly say too."""

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds since some start, those of a suspended machine included."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        time.sleep(seconds)
