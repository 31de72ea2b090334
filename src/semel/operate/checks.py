"""A finding of the doctor, and the checks of clocks, disks and file systems.

Always true: a check that could not find an answer is `unknown`, never `ok`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semel.runtime import Clock, SystemClock

DISK_BYTES_LEAST = 100 * 2**20
DISK_BYTES_GOOD = 2**30

_CLOCK_CHECK_S = 0.2
_DRIFT_S = 0.05
_YEAR_2024 = 1_704_067_200

_MOUNTS = Path("/proc/self/mounts")
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs"}
LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "overlay", "vfat", "ntfs3"}


class Health(StrEnum):
    """The verdict of a check."""

    OK = "ok"
    MISSING = "missing"
    WARNING = "warning"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """What was checked, what was found, and what to do."""

    what: str
    found: str
    health: Health = Health.OK
    do: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as a JSON object."""
        return {
            "what": self.what,
            "found": self.found,
            "state": self.health.value,
            "do": self.do,
        }


def check_clock(clock: Clock | None = None) -> Check:
    """Check for a short time that the wall clock advances like the monotonic clock."""
    clock = clock or SystemClock()
    wall, monotonic = clock.wall(), clock.monotonic()
    clock.sleep(_CLOCK_CHECK_S)
    drift = abs((clock.wall() - wall) - (clock.monotonic() - monotonic))
    if drift > _DRIFT_S:
        do = "set the clock gradually (chrony, ntpd slew): the age of parked events depends on it"
        return Check("clock", f"jumped by {drift:.2f} s", Health.WARNING, do)
    if wall < _YEAR_2024:
        return Check("clock", "years behind", Health.WARNING, "set the clock of this machine")
    return Check("clock", f"steady to {drift * 1000:.0f} ms in {_CLOCK_CHECK_S:g} s")


def compare_clocks(theirs: float, before: float, after: float) -> Check:
    """Compare the ledger's clock with the local clock, read before and after the query."""
    away = abs(theirs - (before + after) / 2)
    if away - (after - before) / 2 > 1.0:
        do = "synchronize both machines: the age of parked events depends on their clocks"
        return Check("ledger's clock", f"{away:.1f} s off the local clock", Health.WARNING, do)
    return Check("ledger's clock", f"{away * 1000:.0f} ms off the local clock")


def check_disk(what: str, path: Path) -> Check:
    """Check the free space where a path is, or will be."""
    name = f"disk of {what}"
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Check(name, str(error), Health.UNKNOWN, f"make {path} readable")
    found = f"{free / 2**30:.1f} GiB free at {path}"
    if free < DISK_BYTES_LEAST:
        return Check(name, found, Health.MISSING, "free some space")
    if free < DISK_BYTES_GOOD:
        return Check(name, found, Health.WARNING, "free some space soon")
    return Check(name, found)


def check_file_system(path: Path, mounts: Path = _MOUNTS) -> Check:
    """Check that a SQLite ledger is on a disk of this machine."""
    what = "ledger's file system"
    do = "put a SQLite ledger on a disk of this machine, or use PostgreSQL"
    kind = _kind_at(path.resolve(), mounts)
    if kind in NETWORK:
        return Check(
            what, f"{kind}, on the network", Health.WARNING, f"{do}: locks are not reliable there"
        )
    if kind in ("tmpfs", "ramfs"):
        return Check(
            what, f"{kind}, in memory", Health.WARNING, f"{do}: it is lost at the next boot"
        )
    if kind in LOCAL:
        return Check(what, f"{kind}, local")
    return Check(what, kind or "unknown on this system", Health.UNKNOWN, do)


def _kind_at(path: Path, mounts: Path) -> str | None:
    """Return the type of the file system at a path, from the longest mount point above it."""
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
