"""The work of one attempt: its partition of a minibatch, and that partition for one sink."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from semel.delivery.calling import forgets
from semel.errors import Diverged, NotDelivered
from semel.events import Chunk, changed_columns, chunk_key, column_types, key_prefix
from semel.ledger import Claimant, PartitionClaim
from semel.protocol import outstanding
from semel.sinks import Target, lost

if TYPE_CHECKING:
    from semel.delivery.observer import Observer
    from semel.events import Attempt, Identity, Rows
    from semel.ledger import LedgerClient, OpenMinibatch
    from semel.protocol import Capability
    from semel.runtime import Process, Runtime
    from semel.sinks import Sink


COLUMNS_MAX = 4_000
"""How many characters of names and types of columns the row of a partition has."""


def recorded_columns(rows: Rows) -> dict[str, str] | None:
    """Return the types of the columns as the ledger keeps them; None if they are too many."""
    columns = column_types(rows.batch.schema)
    size = sum(len(name) + len(kind) for name, kind in columns.items())
    return columns if size <= COLUMNS_MAX and len(columns) == rows.batch.num_columns else None


@dataclass(frozen=True)
class Assignment:
    """One partition of one open minibatch, for one attempt.

    Attributes:
        task: Spark's partitionId.
        order: whether the events of an entity wait for each other, if an entity is named.
        accept_gap: proceed even if the input does not continue where the ledger stands.
        waited: whether the driver has waited out every attempt of earlier runs.
        drop_repeats: drop events whose ids the ledger remembers from earlier minibatches.
        known_as: the name under which destinations know the pipeline, if it was renamed.
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
    drop_repeats: bool = False
    known_as: str = ""

    @property
    def at_sinks(self) -> str:
        """The name under which destinations know the pipeline."""
        return self.known_as or self.pipeline

    @property
    def starts_at(self) -> int | None:
        """Where Spark's own offsets of this source partition began; None if unknown: then the
        offset of the first row is used.
        """
        return self.opening.starts.get(self.partition)

    def place(self, sink: Sink) -> str:
        """Return the place as text, for messages."""
        return (
            f"pipeline {self.pipeline!r}, sink {sink.name!r}, minibatch "
            f"{self.opening.row.minibatch}, partition {self.partition}"
        )


@dataclass(frozen=True)
class SinkPartition:
    """One partition of one minibatch for one sink, as one attempt sees it: what a strategy is given
    to work with. It answers questions and has no state of its own; what the ledger knows of this
    attempt is in `claim`. Runs on an executor.
    """

    assignment: Assignment
    sink: Sink
    client: LedgerClient
    runtime: Runtime
    observer: Observer

    @cached_property
    def claim(self) -> PartitionClaim:
        """The hold of this attempt on the partition, in the ledger."""
        assignment, sink = self.assignment, self.sink
        return PartitionClaim(
            self.client,
            assignment.opening,
            sink.name,
            assignment.partition,
            Claimant(
                assignment.attempt,
                assignment.process,
                assignment.task,
                sink.lease_s,
                sink.deadline_s,
            ),
            may_grow=assignment.identity.may_grow,
            absorbed_by=sink.absorbed_by,
        )

    @cached_property
    def capability(self) -> Capability:
        """What the destination can do."""
        return self.sink.capability

    @property
    def place(self) -> str:
        """The place as text, for messages."""
        return self.assignment.place(self.sink)

    @cached_property
    def target(self) -> Target:
        """The target of a session."""
        assignment = self.assignment
        return Target(
            assignment.at_sinks,
            self.sink.name,
            assignment.opening.row.minibatch,
            assignment.partition,
            assignment.attempt,
        )

    def acknowledged(self, sent: int) -> int:
        """Return the last OSN that the destination acknowledged, as the ledger knows it and this
        attempt, to which it acknowledged `sent`.
        """
        opening = self.assignment.opening
        return max(opening.acknowledged(self.sink.name, self.assignment.partition), sent)

    def require_kept(self, acknowledged: int, osn: int) -> None:
        """Raise `Diverged` if the destination stands below what it acknowledged."""
        if outstanding(acknowledged, osn).gone:
            raise lost(self.place, acknowledged, osn)

    def within_lease(self) -> None:
        """Ask the ledger again if its last answer is older than a lease, counted from before it was
        asked; an attempt acts, or succeeds, only within the lease. Raises `Fenced` if another
        attempt has the partition.
        """
        if self.runtime.clock.monotonic() - self.claim.asked_at > self.sink.lease_s:
            self.claim.check()

    def forgotten(self, recorded_at: float) -> bool:
        """Whether the destination may have forgotten the key of a call made after `recorded_at` by
        the time a repeat sent now arrives (REPEATABLE).
        """
        return forgets(self.sink, self.client.clock.wall() - recorded_at)

    def ordered(self, rows: Rows) -> bool:
        """Whether the events of an entity wait for each other."""
        return rows.ordered and self.assignment.order and len(rows) > 0

    def chunk(self, rows: Rows, start: int, stop: int, span: int = 0) -> Chunk:
        """Return the chunk of the range [start, stop), of which `rows` are to be sent."""
        target = self.assignment
        return Chunk(
            rows,
            start,
            stop,
            key=chunk_key(
                target.at_sinks,
                self.sink.name,
                self._minibatch,
                target.partition,
                span,
                (start, stop),
            ),
            osn_base=self.claim.osn + 1,
            prefix=self._prefix,
        )

    @cached_property
    def _minibatch(self) -> str:
        return str(self.assignment.opening.row.minibatch)

    @cached_property
    def _prefix(self) -> str:
        """How the keys of events begin."""
        return key_prefix(self.assignment.at_sinks, self.sink.name)

    def unreached(self, why: NotDelivered) -> NotDelivered:
        """Return the error for a call whose retries are used up and of which nothing arrived:
        where, and what to do.
        """
        if str(why).startswith("pipeline "):
            return why
        text = str(why).rstrip(".")
        return NotDelivered(
            f"{self.place}: {text}. It was retried for {self.sink.retry.for_s:g} s, and no event "
            "is in doubt because of it. Check that the destination can be reached, then restart "
            "the query",
            why.retry_after_s,
        )

    def diverged(self, stop: int, recorded: object, found: object, rows: Rows) -> Diverged:
        """Return the error for a replay that produced other content than what was delivered, up to
        `stop`; `rows` are those of the step.
        """
        named = ", ".join(f"{rows.id(at)} of {rows.scope(at)!r}" for at in range(min(3, len(rows))))
        before = None if self.claim.row is None else self.claim.row.columns
        changed = changed_columns(before, recorded_columns(rows))
        return Diverged(
            f"{self.place}: events [{int(rows.positions[0])}, {stop}) of the order were recorded "
            f"with {recorded}, and the replay has {found} (starting with event {named}). "
            f"The query did not return the same rows for the same input.{changed} Nothing was "
            "repeated. Check the query, then run `semel resolve "
            f"{self.assignment.pipeline}/{self.assignment.opening.row.minibatch} "
            "as-recorded|as-replayed --reason ...`"
        )
