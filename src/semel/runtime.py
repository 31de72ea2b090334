"""The clock, the identity of a process and randomness, all of which a test can replace.

- Leases and waits use `monotonic`; people read `wall`. A machine that was suspended must find its
  leases expired when it wakes up, so `monotonic` includes suspended time if the system has such a
  clock (`CLOCK_BOOTTIME`). A virtual machine cannot detect that its host paused it.
- A process id is reused after a while; together with the boot id and the start time it is unique.
  Each container of a machine has its own process ids, under the same boot id.
"""

from __future__ import annotations

import time
from dataclasses import field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable
import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path


class Clock(Protocol):
    """Time as one process sees it."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; comparable within this process only. It keeps
        counting while the machine is suspended.
        """

    def wall(self) -> float:
        """Seconds since 1970, roughly the same on other machines."""

    def sleep(self, seconds: float) -> None:
        """Wait for this time."""


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_monotonic: Callable[[], float] = (
    time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
)


class SystemClock:
    """The machine's own clock: the functions of the system as they are."""

    monotonic = staticmethod(_monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of one machine and one boot, within the namespace of its process id."""

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def here(cls) -> Process:
        """Return the identity of this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot_id(), pid, _start_of(pid) or "")

    def gone(self) -> bool:
        """Return whether the process has certainly ended; False also if that is unknown here."""
        if not self.boot or not self.start or self.boot != _boot_id():
            return False
        start = _start_of(self.pid)
        # /proc may hide the processes of other users (hidepid): then the kernel is asked.
        return start != self.start if start is not None else not _is_there(self.pid)


def _boot_id() -> str:
    """Return an id of this boot and container; empty if the system does not provide one."""
    try:
        return f"{_BOOT.read_text().strip()} {_PIDS.readlink()}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot; empty if it has ended and only
    its process id is left, None if no such process is visible.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _is_there(pid: int) -> bool:
    """Return whether a process has this id, whichever user owns it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True)
class Runtime:
    """Time, randomness, and whether a process is known to be gone. The simulator has its own."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=lambda: Random(uuid4().int))
    gone: Callable[[Process], bool] = Process.gone


def user_at_host() -> str:
    """Return the name of the person who runs this process, and of the machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # this container has no such user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
