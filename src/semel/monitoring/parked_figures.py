"""Reads how many events of a pipeline are parked in each state, and since when the oldest is.

Always true:
- it reads through a connection of its own, so that it delays no commit of the driver;
- reading takes at most a twentieth of the time, however many events are parked;
- what could not be read is reported as unknown, and never as 0.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import SemelError
from semel.ledger import ParkedAges, open_store, read_parked_ages
from semel.monitoring import catalogue
from semel.monitoring.catalogue import Sample
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.ledger.store import Store
    from semel.runtime import Clock

EVERY_S = 10.0
SOON_S = 1.0
SHARE = 20
"""After a reading that took a second, the next one begins after this many."""
DAMAGED = "damaged"
"""The state of rows that cannot be read."""

STATES = tuple(state for state in ParkedState if not state.final)

log = logging.getLogger("semel")


@dataclass(frozen=True, slots=True)
class ParkedStanding:
    """The parked events of a pipeline, by sink; `read_at` is by the clock of this process."""

    sinks: Mapping[str, ParkedAges]
    read_at: float


class ParkedFigures:
    """Reads the parked events of one pipeline now and then. Used by several threads.

    Attributes:
        expected: whether a minibatch began, so that the ledger must be there.
    """

    def __init__(self, pipeline: str, sinks: Sequence[str], ledger: str, clock: Clock) -> None:
        self.expected = False
        self._pipeline = pipeline
        self._sinks = tuple(sinks)
        self._ledger = ledger
        self._clock = clock
        self._reading = threading.RLock()
        self._store: Store | None = None
        self._due = self._earliest = 0.0
        self._logged = False
        self._known: ParkedStanding | None = None

    def soon(self) -> None:
        """Read a second from now: something was parked or resent."""
        self._due = min(self._due, max(self._clock.monotonic() + SOON_S, self._earliest))

    def look(self) -> None:
        """Read if it is time to."""
        with self._reading:
            if self._clock.monotonic() >= self._due:
                self.read()

    def read_in_turn(self, wait_s: float) -> ParkedStanding | None:
        """Read, if that may be done within some seconds, for which this waits; else return None."""
        with self._reading:
            ahead = self._earliest - self._clock.monotonic()
            if ahead > wait_s:
                return None
            if ahead > 0:
                self._clock.sleep(ahead)
            return self.read()

    def read(self) -> ParkedStanding | None:
        """Read now, and return what was found; None if it cannot be read."""
        with self._reading:
            began = self._clock.monotonic()
            found: ParkedStanding | None = None
            try:
                found = self._known = self._scanned()
                self._logged = False
            except Exception as error:  # noqa: BLE001 - figures stop nothing
                self._warn(error)
            now = self._clock.monotonic()
            self._earliest = now + SHARE * (now - began)
            self._due = max(now + EVERY_S, self._earliest)
            return found

    def _warn(self, error: Exception) -> None:
        """Log once that the ledger cannot be read, until it can be."""
        if self.expected and not self._logged:
            log.warning(
                "pipeline %r: the parked events could not be read for the metrics: %s",
                self._pipeline,
                error if isinstance(error, SemelError) else repr(error),
            )
        self._logged = self.expected

    def _scanned(self) -> ParkedStanding:
        if self._store is None:
            self._store = open_store(self._ledger, create=False)
        store = self._store
        found = {sink: read_parked_ages(store, self._pipeline, sink) for sink in self._sinks}
        return ParkedStanding(found, self._clock.monotonic())

    def samples(self) -> Iterator[Sample]:
        """Return the newest reading; nothing before the first one."""
        known = self._known
        if known is None:
            return
        for sink, ages in known.sinks.items():
            for state in STATES:
                at = (self._pipeline, sink, state.value)
                yield Sample(catalogue.PARKED_NOW, at, ages.counts.get(state, 0))
                yield Sample(catalogue.PARKED_OLDEST, at, self._age(ages, state))
            yield Sample(catalogue.PARKED_NOW, (self._pipeline, sink, DAMAGED), ages.damaged)
        age = self._clock.monotonic() - known.read_at
        yield Sample(catalogue.PARKED_READ_AGE, (self._pipeline,), age)

    def _age(self, ages: ParkedAges, state: ParkedState) -> float:
        since = ages.oldest.get(state)
        return 0.0 if since is None else max(0.0, self._clock.wall() - since)

    def close(self) -> None:
        """Close the connection."""
        with self._reading:
            store, self._store = self._store, None
            if store is not None:
                store.close()
