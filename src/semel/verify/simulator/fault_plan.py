"""Random faults of a world: which faults come, how often, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.verify.simulator.cases import DEADLINE_S
from semel.verify.simulator.faults import POSSIBLE, CallFault, Kind

if TYPE_CHECKING:
    from random import Random

    from semel.verify.simulator.faults import FaultyWire

LEDGER = (Kind.LOOK, Kind.COMMIT)
OUTAGES_S = (0.02, 0.3, 3.0, 20.0, 45.0)
PAUSES_S = (0.05, 1.0, 12.0, 45.0, 200.0)
STRIKES = frozenset(CallFault) - {CallFault.AWAY}


@dataclass(eq=False)
class RandomFaults:
    """A random plan: faults come at a rate until their number is used up, or they are stopped.

    Attributes:
        struck: faults that came, without outages.
        zombies: whether processes are paused.
        cuts: whether inputs end early.
        flies: whether calls arrive after their process has died.
    """

    random: Random
    rate: float
    left: int
    zombies: bool = True
    cuts: bool = True
    flies: bool = True
    quiet: bool = False
    struck: int = 0
    _ledger_away: float = 0.0
    _destination_away: float = 0.0

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        """Return the fault of the call that begins now."""
        if self.quiet:
            return None
        away = self._ledger_away if kind in LEDGER else self._destination_away
        if wire.hub.now < away and kind not in (Kind.INPUT, Kind.REPORT):
            return CallFault.AWAY
        if not self.left or self.random.random() >= self.rate:
            return None
        fault = self.random.choice(POSSIBLE[kind])
        allowed = {
            CallFault.PAUSE: self.zombies,
            CallFault.CUT: self.cuts,
            CallFault.LATE: self.flies,
        }
        if not allowed.get(fault, True):
            return None
        self.left -= 1
        if fault in STRIKES:
            self.struck += 1
        elif kind in LEDGER:
            self._ledger_away = wire.hub.now + self.random.choice(OUTAGES_S)
        else:
            self._destination_away = wire.hub.now + self.random.choice(OUTAGES_S[:4])
        return fault

    def delay(self, kind: Kind) -> float:
        """Return a delay before the deadline for a call, any delay for a commit."""
        if kind is Kind.SEND:
            return self.random.random() * DEADLINE_S * 0.95
        return self.random.choice(PAUSES_S)

    def pause(self) -> float | None:
        """Return a short pause, or one longer than every timeout."""
        return self.random.choice(PAUSES_S)

    def stop_faults(self) -> None:
        """Stop all faults from now on."""
        self.quiet = True
