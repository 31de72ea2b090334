"""What a test replaces: the clock, the process that holds a row, and randomness.

- Leases and waits use `monotonic`, people read `wall`. A machine that was suspended has to find its
  leases run out when it wakes up, so `monotonic` counts that time too, where the system has such a
  clock (`CLOCK_BOOTTIME`). A virtual machine that its host has paused knows nothing of it.
- A process id comes back after a while; together with the boot id and the start time it does not.
  And every container of a machine has process ids of its own, under the same boot id.
"""

from __future__ import annotations

import time
from dataclasses import field
from random import Random
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one machine since one boot, among those that see its process id."""

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def here(cls) -> Process:
        """Name this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, _start_of(pid) or "")

    def gone(self) -> bool:
        """Say whether the process has surely ended; False also when nobody can know from here."""
        if not self.boot or not self.start or self.boot != _boot_id():
            return False
        start = _start_of(self.pid)
        # /proc may hide the processes of other users (hidepid): there the kernel is asked.
        return start != self.start if start is not None else not _is_there(self.pid)

    def to_json(self) -> dict[str, Any]:
        """Give it as a JSON object."""
        return {"host": self.host, "boot": self.boot, "pid": self.pid, "start": self.start}


def _boot_id() -> str:
    """Tell boots of machines, and their containers, apart; empty where the system does not say."""
    try:
        return f"{_BOOT.read_text().strip()} {_PIDS.readlink()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Give the start time of a process in clock ticks since boot; empty when it has ended and only
    its number is left, None when there is none to see.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _is_there(pid: int) -> bool:
    """Whether a process has this number, whoever owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True)
class Runtime:
    """Time, randomness, and whether a process is known to be gone. The simulator brings its own."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=lambda: Random(uuid4().int))
    gone: Callable[[Process], bool] = Process.gone
