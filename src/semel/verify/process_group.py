"""A group of processes that end together, and with the process that started them.

Always true:
- every process of the group, and every process that it starts, carries a mark in its environment;
  processes without the mark are never touched;
- when this process ends in any way, a caretaker process ends the group and removes its folder.
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

MARK = "SEMEL_PROCESS_GROUP"

# Its pipe closes when this process ends. A zombie process has no environment, so the loop ends.
_CARETAKER = """
read _
while found=$(grep -lsaF "$1" /proc/[0-9]*/environ); [ -n "$found" ]; do
  for each in $found; do pid=${each#/proc/}; kill -9 "${pid%/environ}" 2>/dev/null; done
done
rm -rf "$2"
"""


class Closable(ABC):
    """A resource that is closed at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what was started, and wait for its end."""


class ProcessGroup(Closable):
    """Processes with one mark, and a folder for their files."""

    def __init__(self, name: str, within: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"semel-{name}-", dir=within))
        self._mark = f"{name}-{uuid4().hex}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._caretaker = subprocess.Popen(  # noqa: S603 - our own words
            ["/bin/sh", "-c", _CARETAKER, "caretaker", f"{MARK}={self._mark}", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it must not get our Ctrl-C
            cwd="/",
        )

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a process of the group; its output goes to the file `log`."""
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
        """Return every living process that carries the mark."""
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def end(self) -> None:
        """Kill every process (SIGKILL); new ones may be started after that."""
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
    """Return `root` and its living descendants, parents first."""
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
    """Return the command line of a process; empty if it is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def state_of(pid: int) -> str:
    """Return the state of a process as a letter (R, S, T if stopped, Z); empty if it is gone."""
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
