"""What a sink does at the end of a minibatch: a manifest is put in place, a load is asked for.

Always true:
- a minibatch is concluded only when the ledger has it complete, so what is told to readers at its
  end never comes again under another minibatch;
- it is told from the ledger's own rows: whoever concludes it, however often, is told the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from semel.events.event import Attempt, Minibatch
    from semel.sinks.sink import Sink


@dataclass(frozen=True, slots=True)
class EndedPart:
    """One partition of a minibatch that is complete.

    Attributes:
        attempt: the one whose report counted.
        count: its events.
        placed: what the session's `finish` told of the place, as JSON.
    """

    partition: str
    attempt: Attempt
    count: int
    placed: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A minibatch that is complete, as one sink has it; partitions in the order of their names."""

    pipeline: str
    sink: str
    minibatch: Minibatch
    parts: tuple[EndedPart, ...]


@runtime_checkable
class Concluding(Protocol):
    """A sink that does something at the end of a minibatch."""

    def conclude(self, ended: Ended) -> None:
        """Do what follows from a complete minibatch. Runs on the driver, before Spark commits.

        It is called again after a crash, also for an older generation, and then with the same
        parts or only some of them, where the ledger has begun to let them go. It is not called for
        a minibatch without parts.
        """


@runtime_checkable
class Staged(Concluding, Protocol):
    """A sink after which a second one comes: each minibatch that it has concluded is an event of
    that.
    """

    @property
    def stage(self) -> Sink | None:
        """The second stage; None where there is none."""

    def announce(self, ended: Ended) -> pa.RecordBatch:
        """Give the one row that the second stage is sent, once the minibatch was concluded."""


def stage_after(sink: Sink) -> Sink | None:
    """Give the second stage of a sink, where it has one."""
    return sink.stage if isinstance(sink, Staged) else None
