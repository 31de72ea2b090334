"""Event identity, which decides whether two events are the same: three kinds, chosen by the user.

- `Position`: the source provides it. `Given`: columns hold it. `Counter`: semel assigns it.
- A description is frozen and is sent to executors; its stamper is made on the executor, one per
  partition and attempt.
"""

from __future__ import annotations

from semel.events.identity.counter import Counter, CounterStamper
from semel.events.identity.given import Given, GivenStamper
from semel.events.identity.identity import Identity, Memory, Stamper
from semel.events.identity.position import Position, PositionStamper

__all__ = [
    "Counter",
    "CounterStamper",
    "Given",
    "GivenStamper",
    "Identity",
    "Memory",
    "Position",
    "PositionStamper",
    "Stamper",
]
