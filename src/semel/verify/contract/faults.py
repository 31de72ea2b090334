"""The faults that are injected into a sink under test: at a commit, a session, a query or a call.

Always true:
- faults enter through the interfaces of production: the store, the sink, the session, the socket;
- a step is recorded before it happens, so that the judge knows of it even if the process dies;
- a fault happens once and is recorded.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.events.encoding import ascii_json
from semel.ledger.store import Absent, Put, Sweep
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.events import Chunk
    from semel.ledger.store import Requirement, Update


class Where(StrEnum):
    """The kinds of steps that are counted."""

    COMMIT = "commit"  # of the ledger
    OPEN = "open"  # of a session
    ASK = "ask"  # take_over, arrived, delivered_ids
    CALL = "call"  # an effect


class What(StrEnum):
    """The kinds of faults."""

    KILL_BEFORE = "killed before"
    KILL_WITHIN = "killed within"
    KILL_AFTER = "killed after"
    STOP_BEFORE = "stopped before"
    STOP_WITHIN = "stopped within"
    STOP_AFTER = "stopped after"
    LOST = "reply lost after"
    LOST_CLOSED = "reply lost and session closed after"
    UNSENT = "request lost before"
    LATE = "late arrival, after its repeat, of"
    CLOSED = "session closed before"
    SEVERED = "connections cut before"
    DEAF = "no reply received on any connection during"
    CUT = "connections cut within"
    AWAY = "no answer at"
    BEHIND = "destination had less than it acknowledged at"


CUTS = (What.SEVERED, What.DEAF, What.CUT)


@dataclass(frozen=True)
class SinkFault:
    """A fault at the `number`-th step of a kind, counted from 1, and at `times - 1` more."""

    what: What
    where: Where
    number: int = 1
    after_s: float = 0.0
    times: int = 1

    def __str__(self) -> str:
        after = f" ({self.after_s * 1_000:.2f} ms into it)" if self.after_s else ""
        return f"{self.what.value} {self.where.value} {self.number}{after}"


class FaultRecorder:
    """Counts and records the steps of this process, and returns the fault that is due."""

    def __init__(self, fault: SinkFault | None, log: Path) -> None:
        self._fault = fault
        self._counts: dict[str, int] = {}
        self._clock = SystemClock()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(self, **record: Any) -> None:
        """Write a record; it is kept even if this process dies."""
        text = ascii_json({**record, "at": self.now()})
        os.write(self._log, text.encode() + b"\n")

    def reach(self, where: Where, **record: Any) -> tuple[int, SinkFault | None]:
        """Count and record one step; return its number and the fault that is due."""
        number = self._counts[where] = self._counts.get(where, 0) + 1
        self.record(**{where.value: number, **record})
        fault = self._fault
        if fault is None or fault.where is not where:
            return number, None
        if not fault.number <= number < fault.number + fault.times:
            return number, None
        self.record(fault=str(fault))
        return number, fault

    def now(self) -> float:
        """Return the time of records, which all processes of a machine share."""
        return self._clock.monotonic()


def die() -> None:
    """Kill this process; nothing after this call is executed."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stop this process until it is continued (SIGCONT)."""
    os.kill(os.getpid(), signal.SIGSTOP)


class Timer:
    """Kills or stops this process after a delay, or at `end()` if that comes first."""

    def __init__(self, fault: SinkFault) -> None:
        self._kills = fault.what is What.KILL_WITHIN
        self._due = False
        # The default action of SIGALRM ends a process as abruptly as SIGKILL, to the microsecond.
        action: Any = signal.SIG_DFL if self._kills else self._stop
        signal.signal(signal.SIGALRM, action)
        signal.setitimer(signal.ITIMER_REAL, max(fault.after_s, 1e-6))

    def _stop(self, *_: object) -> None:
        if not self._due:
            self._due = True
            stop()

    def end(self) -> None:
        """Kill or stop this process now, if the timer has not done so yet."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._kills:
            die()
        self._stop()


# -- connections


_TO_SERVERS = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def _connections() -> Iterator[socket.socket]:
    """Yield every connection of this process to a server. Netlink sockets are left out: a name
    lookup over one would wait for an answer forever.
    """
    for path in Path("/dev/fd").iterdir():
        with suppress(OSError, ValueError):
            number = int(path.name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as mine:
                named = bool(mine.getpeername())  # a pair within one process has no name
                if named and mine.family in _TO_SERVERS:
                    yield mine


def cut() -> int:
    """Cut every connection of this process to a server; return how many there were."""
    shut = 0
    for mine in _connections():
        with suppress(OSError):
            mine.shutdown(socket.SHUT_RDWR)
            shut += 1
    return shut


def deafen(mine: socket.socket) -> None:
    """Let a connection send but receive nothing: the kernel drops what comes in."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(nothing))
    try:
        mine.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
    except OSError:  # no filters on this socket: it receives what is buffered, then the end
        mine.shutdown(socket.SHUT_RD)


_RETURN = 0x06  # BPF_RET | BPF_K: keep 0 bytes of an incoming packet
_ATTACH_FILTER = 26


class Cutter:
    """Cuts connections while a call runs, or blocks their replies first and cuts them later."""

    POLL_S = 0.0005
    HEARS_NOTHING_S = 0.1

    def __init__(self, fault: SinkFault) -> None:
        self._fault = fault
        self._over = threading.Event()
        self._connect = socket.socket.connect
        self.shut = 0
        if fault.what is What.DEAF and not fault.after_s:
            self._deafen_all()
            self._deafen_new()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._fault.after_s:
            self._over.wait(self._fault.after_s)
        if self._fault.what is What.CUT:
            self.shut += cut()
            return
        clock = SystemClock()
        while not self._over.is_set():  # repeated for connections that the call itself opens
            until = clock.monotonic() + self.HEARS_NOTHING_S
            while clock.monotonic() < until and not self._over.wait(self.POLL_S):
                self._deafen_all()
            cut()

    def _deafen_all(self) -> None:
        found = 0
        for mine in _connections():
            with suppress(OSError):
                deafen(mine)
                found += 1
        self.shut = max(self.shut, found)

    def _deafen_new(self) -> None:
        """Block replies on new connections of Python's own sockets from their first byte."""
        connect = self._connect

        def connecting(mine: socket.socket, address: Any) -> None:
            connect(mine, address)
            with suppress(OSError):
                deafen(mine)
                self.shut += 1

        socket.socket.connect = connecting  # type: ignore[method-assign, assignment]

    def end(self) -> int:
        """End the fault; return how many connections were cut."""
        socket.socket.connect = self._connect  # type: ignore[method-assign]
        self._over.set()
        self._thread.join()
        return self.shut


# -- descriptions


def kind_of(requirements: Sequence[Requirement], updates: Sequence[Update]) -> str:
    """Return the kind of a commit, from the tables that it touches."""
    put = {update.key.table for update in updates if isinstance(update, Put)}
    absent = {each.key.table for each in requirements if isinstance(each, Absent)}
    swept = {update.table for update in updates if isinstance(update, Sweep)}
    rules = (
        ("register", "owners" in put and "parked" not in put),
        ("complete", "open" in put and bool(put & {"streams", "sequences"})),
        ("open", "open" in put),
        ("claim", "streams" in absent),
        ("close", "events" in swept),
        ("span", "events" in put),
        ("take", "streams" in put),
        ("park", "parked" in put),
    )
    return next((kind for kind, holds in rules if holds), "other")


def pairs_of(chunk: Chunk) -> list[list[str]]:
    """Return entity and id of the events of a chunk."""
    rows = chunk.rows
    return [[rows.entity(at), str(rows.id(at))] for at in range(len(rows))]
