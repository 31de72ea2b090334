"""Who holds a row: a process named so well that its end can be known for sure.

A process id comes back after a while; together with the boot id and the start time it does not. And
every container of a machine has process ids of its own, under the same boot id.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.ledger.damage import Fields

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

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Process:
        """Read it back. Raises `Unfit` for what is not one."""
        row = Fields(value)
        pid = row.integer("pid")
        return cls(row.text("host"), row.text("boot"), pid, row.text("start"))


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
