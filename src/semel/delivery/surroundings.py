"""What a delivery takes from the world around it: time, chance, and who is still alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

from semel.ledger.clock import Clock, SystemClock
from semel.ledger.processes import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.sinks import Retry


@dataclass(frozen=True)
class Surroundings:
    """Time, chance, and whether a process is known to be gone. The simulator brings its own."""

    clock: Clock = field(default_factory=SystemClock)
    random: Random = field(default_factory=lambda: Random(uuid4().int))
    gone: Callable[[Process], bool] = Process.gone

    def tries(self, retry: Retry, *, only_pauses: bool = False) -> Iterator[None]:
        """Begin one try after the other, each after its pause, until the patience is at its end; by
        the clock, or where tries have to wait themselves only by the pauses between them.
        """
        monotonic = None if only_pauses else self.clock.monotonic
        for wait_s in retry.waits(self.random, monotonic):
            if wait_s:
                self.clock.sleep(wait_s)
            yield
