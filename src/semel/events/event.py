"""The identifiers of events, minibatches and attempts.

- An event id is an integer, a text, or a tuple of those; all ids of a pipeline have one shape.
- Attempts are totally ordered: a later run fences an earlier one; within a run, Spark's own task
  attempt id decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EntityID = str
"""The text form of an entity: '42' for the integer 42, 'true' for the boolean."""

EventID = int | str | tuple[int | str, ...]


@dataclass(frozen=True, slots=True, order=True)
class Minibatch:
    """The events of one Spark micro-batch: (generation, batch id)."""

    generation: int
    batch: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.batch}"


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try at a partition: the run, and Spark's task attempt id within it."""

    run: int
    task: int

    def __str__(self) -> str:
        return f"{self.run}.{self.task}"


@dataclass(frozen=True, slots=True)
class Event:
    """One event to deliver, as a row-based sink receives it."""

    entity: EntityID
    id: EventID
    osn: int
    key: str
    value: dict[str, Any] = field(hash=False)
