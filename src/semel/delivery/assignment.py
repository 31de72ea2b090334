"""The work of one attempt: its minibatch, its partition, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.ledger import Claimant
from semel.sinks import Target

if TYPE_CHECKING:
    from semel.events import Attempt, Identity
    from semel.ledger import OpenMinibatch
    from semel.runtime import Process
    from semel.sinks import Sink


@dataclass(frozen=True)
class Assignment:
    """One partition of one open minibatch, for one attempt.

    Attributes:
        task: Spark's partitionId.
        order: whether the events of an entity wait for each other, if an entity is named.
        accept_gap: proceed even if the input does not continue where the ledger stands.
        waited: whether the driver has waited out every attempt of earlier runs.
    """

    pipeline: str
    opening: OpenMinibatch
    identity: Identity
    partition: str
    attempt: Attempt
    process: Process
    task: int
    order: bool = True
    accept_gap: bool = False
    waited: bool = False

    @property
    def starts_at(self) -> int | None:
        """Where Spark's own offsets of this source partition began; None if unknown: then the
        offset of the first row is used.
        """
        return self.opening.starts.get(self.partition)

    def claimant(self, sink: Sink) -> Claimant:
        """Return who claims, with the lease and deadline of the sink."""
        return Claimant(self.attempt, self.process, self.task, sink.lease_s, sink.deadline_s)

    def target(self, sink: Sink) -> Target:
        """Return the target of a session."""
        return Target(
            self.pipeline, sink.name, self.opening.row.minibatch, self.partition, self.attempt
        )

    def place(self, sink: Sink) -> str:
        """Return the place as text, for messages."""
        return (
            f"pipeline {self.pipeline!r}, sink {sink.name!r}, minibatch "
            f"{self.opening.row.minibatch}, partition {self.partition}"
        )
