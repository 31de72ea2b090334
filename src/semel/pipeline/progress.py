"""How far a run is: what it delivers is counted, and shown as lines or by the caller.

Always true: the ledger is read only if parked events can have changed, and never more often than
every `PARKED_S` seconds.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from semel.delivery import EventResent, MinibatchCompleted
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.protocol import ParkedState
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.runtime import Clock

PARKED_S = 2.0
RATE_S = 10.0
PASSED_MIN_S = 0.25


@dataclass(frozen=True, slots=True)
class RunStanding:
    """How far a run is.

    Attributes:
        delivered: the events that this run delivered, at all sinks together.
        per_s: how many that were per second, in the last seconds.
        in_doubt: how many events the ledger has in doubt; None if it could not be read.
        parked: how many events wait in the ledger, those in doubt included; None as above.
        minibatch: the last complete minibatch of this run.
        draining: whether the run ends with its micro-batch, or at the border of a window.
    """

    pipeline: str
    delivered: int = 0
    per_s: float = 0.0
    in_doubt: int | None = None
    parked: int | None = None
    minibatch: str | None = None
    draining: bool = False

    def __str__(self) -> str:
        doubt, parked = ("?" if n is None else f"{n:,}" for n in (self.in_doubt, self.parked))
        return (
            f"{self.pipeline}: {self.delivered:,} delivered, {self.per_s:,.0f}/s, "
            f"{doubt} in doubt, {parked} parked"
            f"{'' if self.minibatch is None else f', minibatch {self.minibatch}'}"
            f"{', stopping in order' if self.draining else ''}"
        )


class RunProgress(Protocol):
    """Shows how far a run is."""

    def show(self, standing: RunStanding) -> None:
        """Show it; called several times per second."""


class RunCounts:
    """Counts what a run delivers: an observer of its driver, read by the thread that shows it."""

    def __init__(self, pipeline: str, ledger: str, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._standing = RunStanding(pipeline)
        self._seen: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)])
        self._stale = True
        self._read_at = -PARKED_S

    def observe(self, event: object) -> None:
        """Take the figures of a minibatch, and parked events that were sent."""
        minibatch = self._standing.minibatch
        if isinstance(event, MinibatchCompleted):
            count = sum(each.delivered for each in event.figures.values())
            minibatch = str(event.minibatch)
        elif isinstance(event, EventResent) and event.state is not None:
            count = int(event.state is ParkedState.DELIVERED)
        else:
            return
        with self._lock:
            delivered = self._standing.delivered + count
            self._standing = replace(self._standing, delivered=delivered, minibatch=minibatch)
            self._stale = True

    def standing(self, *, draining: bool = False, last: bool = False) -> RunStanding:
        """Return how far the run is; parked events are read again if they can have changed."""
        now = self._clock.monotonic()
        with self._lock:
            self._seen.append((now, self._standing.delivered))
            while len(self._seen) > 2 and self._seen[1][0] <= now - RATE_S:
                self._seen.popleft()
            began, before = self._seen[0]
            passed = max(now - began, PASSED_MIN_S)
            per_s = (self._standing.delivered - before) / passed
            self._standing = replace(self._standing, per_s=per_s, draining=draining)
            read = last or (self._stale and now >= self._read_at + PARKED_S)
            self._stale = self._stale and not read
        if read:
            self._read_at = now
            in_doubt, parked = self._parked()
            with self._lock:
                self._standing = replace(self._standing, in_doubt=in_doubt, parked=parked)
        return self._standing

    def _parked(self) -> tuple[int | None, int | None]:
        try:
            with Ledger(self._ledger) as ledger:
                sinks = ledger.summary(self._standing.pipeline).sinks.values()
        except SemelError:
            return None, None
        left = [(state, n) for each in sinks for state, n in each.parked.items() if not state.final]
        return sum(n for state, n in left if state is ParkedState.HELD), sum(n for _, n in left)


class Silent:
    """Progress that shows nothing: the log has a line for each minibatch."""

    def show(self, standing: RunStanding) -> None:
        """Show nothing."""


class Lines:
    """Progress as plain lines, one every few seconds and only when something changed."""

    def __init__(self, write: Callable[[str], object], every_s: float = 5.0) -> None:
        self._write = write
        self._every_s = every_s
        self._clock = SystemClock()
        self._shown: tuple[object, ...] = ()
        self._at = -every_s

    def show(self, standing: RunStanding) -> None:
        """Write a line if it is time, and it would be another one."""
        now = self._clock.monotonic()
        known = (standing.delivered, standing.in_doubt, standing.parked, standing.draining)
        if known == self._shown or (now < self._at + self._every_s and not standing.draining):
            return
        self._shown, self._at = known, now
        self._write(str(standing))
