"""The strategies that deliver a partition, one per kind of recovery, and what they return.

Always true: a strategy is given the partition, its parking and its buffer, and returns what it did;
it changes no field of another object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from semel.delivery.observer import NO_FIGURES, Figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.events import Rows


@dataclass(frozen=True, slots=True)
class Step:
    """What a strategy did.

    Attributes:
        done: whether the rows that it was given are done; if not, they come again.
    """

    done: bool
    figures: Figures = NO_FIGURES


@dataclass(frozen=True, slots=True)
class Finish:
    """How a partition ended.

    Attributes:
        sent: C, the last OSN that is known to be transmitted; 0 if none is.
        short: whether the input ended before what is recorded did.
        unanswered: calls in a row, at the end, whose outcome is unknown.
        placed: what the destination returned about the location of the events, if they have one.
    """

    sent: int = 0
    short: bool = False
    unanswered: int = 0
    placed: Mapping[str, Any] | None = None


class Strategy(Protocol):
    """The delivery of a partition to a destination of one kind. Runs on an executor."""

    def wants(self) -> int:
        """Return how many rows the next step takes."""

    def step(self, rows: Rows) -> Step:
        """Process the next rows of the buffer (fewer than wanted only at the end of the input)."""

    def finish(self) -> Finish:
        """Finish: the input has ended, and every row is done."""

    def give_up(self) -> None:
        """Settle what was acknowledged: the task fails, but not because of it."""

    def close(self) -> None:
        """Close the session, also after an error."""
