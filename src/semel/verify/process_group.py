"""A household: processes that carry one mark and end together, and with whoever started them.

Always true:
- every process that is started here, and every one that those start, carries the mark in its
  environment; nothing without it is ever touched;
- when we go, however we do, a caretaker ends all of them and removes the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MARK = "SEMEL_HOUSEHOLD"

# Its pipe closes when we go. A zombie has no environment any more, so the loop comes to its end.
_CARETAKER = """
read _
while found=$(grep -lsaF "$1" /proc/[0-9]*/environ); [ -n "$found" ]; do
  for each in $found; do pid=${each#/proc/}; kill -9 "${pid%/environ}" 2>/dev/null; done
done
rm -rf "$2"
"""


class Closable(ABC):
    """Something that is closed at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what was started here, and wait for it."""


class ProcessGroup(Closable):
    """Processes with one mark, and a folder for what they write."""

    def __init__(self, name: str, within: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"semel-{name}-", dir=within))
        self._mark = f"{name}-{uuid4().hex}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._caretaker = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", _CARETAKER, "caretaker", f"{MARK}={self._mark}", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us
            cwd="/",
        )

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a process of the household; what it says goes to the file `log`."""
        with log.open("ab") as output:
            started = subprocess.Popen(  # noqa: S603 - our own words
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, **environment, MARK: self._mark},
                pass_fds=pass_fds,
            )
        self._started.append(started)
        return started

    def members(self) -> list[int]:
        """Give every living process that carries the mark."""
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def end(self) -> None:
        """End every process at once (SIGKILL), and let new ones be started after that."""
        while members := self.members():
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
        self._reap()

    def close(self) -> None:
        """End every process and wait until the folder is gone."""
        if self._caretaker.stdin is not None:
            self._caretaker.stdin.close()
        self._caretaker.wait()
        self._reap()

    def _reap(self) -> None:
        for started in self._started:
            started.kill()
            started.wait()
        self._started.clear()


def descendants(root: int) -> list[int]:
    """Give the living processes that `root` started, and those that they started; `root` first."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        if fields and fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def command_of(pid: int) -> str:
    """Give the command line of a process; empty when it is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def state_of(pid: int) -> str:
    """Give the letter of a process's state (R, S, T when stopped, Z); empty when it is gone."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def _pids() -> Iterator[int]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            yield int(path.name)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
