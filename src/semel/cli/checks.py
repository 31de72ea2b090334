"""One finding of `semel doctor`, and the looks at the clock and at the disks.

What could not be found out is `unknown`, and is never shown as ok.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semel.runtime import Clock, SystemClock

DISK_BYTES_LEAST = 100 * 2**20
DISK_BYTES_GOOD = 2**30

_MOMENT_S = 0.2
_DRIFT_S = 0.05
_YEAR_2024 = 1_704_067_200

_MOUNTS = Path("/proc/self/mounts")
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"}
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "overlay", "vfat", "ntfs3"}


class Health(StrEnum):
    """How a finding is to be read."""

    OK = "ok"
    MISSING = "missing"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was found, and what to do about it."""

    what: str
    found: str
    health: Health = Health.OK
    do: str = ""

    def to_json(self) -> dict[str, str]:
        """Give it as a JSON object."""
        return {
            "what": self.what,
            "found": self.found,
            "state": self.health.value,
            "do": self.do,
        }


def check_clock(clock: Clock | None = None) -> Check:
    """Watch for a moment whether the wall clock goes as the monotonic one does."""
    clock = clock or SystemClock()
    wall, monotonic = clock.wall(), clock.monotonic()
    clock.sleep(_MOMENT_S)
    drift = abs((clock.wall() - wall) - (clock.monotonic() - monotonic))
    if drift > _DRIFT_S:
        do = "let it be set smoothly (chrony, ntpd slew): ages of parked events are counted on it"
        return Check("clock", f"jumped by {drift:.2f} s", Health.WARNING, do)
    if wall < _YEAR_2024:
        return Check("clock", "is years behind", Health.WARNING, "set the clock of this machine")
    return Check("clock", f"steady to {drift * 1000:.0f} ms in {_MOMENT_S:g} s")


def compare_clocks(theirs: float, before: float, after: float) -> Check:
    """Compare the ledger's clock with ours, which was looked at before and after it was asked."""
    away = abs(theirs - (before + after) / 2)
    if away - (after - before) / 2 > 1.0:
        do = "let both machines follow the same time: ages of parked events are counted on it"
        return Check("ledger's clock", f"{away:.1f} s away from ours", Health.WARNING, do)
    return Check("ledger's clock", f"{away * 1000:.0f} ms away from ours")


def check_disk(what: str, path: Path) -> Check:
    """Look how much room is left where a path is, or will be."""
    name = f"disk of {what}"
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(name, str(error), Health.UNKNOWN, f"see that {path} can be looked at")
    found = f"{free / 2**30:.1f} GiB free at {path}"
    if free < DISK_BYTES_LEAST:
        return Check(name, found, Health.MISSING, "make room")
    if free < DISK_BYTES_GOOD:
        return Check(name, found, Health.WARNING, "make room soon")
    return Check(name, found)


def check_file_system(path: Path, mounts: Path = _MOUNTS) -> Check:
    """Look whether a SQLite ledger is on a disk of this machine."""
    what = "ledger's file system"
    do = "put a SQLite ledger on a disk of this machine, or use PostgreSQL"
    kind = _kind_at(path.resolve(), mounts)
    if kind in NETWORK:
        return Check(what, f"{kind}, on the network", Health.WARNING, f"{do}: locks do not hold")
    if kind in ("tmpfs", "ramfs"):
        return Check(
            what, f"{kind}, in memory", Health.WARNING, f"{do}: it is gone at the next boot"
        )
    if kind in LOCAL:
        return Check(what, f"{kind}, local")
    return Check(what, kind or "not told by this system", Health.UNKNOWN, do)


def _kind_at(path: Path, mounts: Path) -> str | None:
    """Give the type of the file system at a path, by the longest mount point above it."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        place = Path(point.replace("\\040", " ").replace("\\011", "\t"))
        depth = len(place.parts)
        if path.is_relative_to(place) and (best is None or depth >= best[0]):
            best = (depth, kind)
    return None if best is None else best[1]
