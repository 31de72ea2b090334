"""A sink describes a destination; a session is one open connection to it, on an executor.

Always true:
- a sink is frozen and picklable: it travels from the driver to every executor, a session never
  does;
- a session is used by one thread, for one partition at a time, one chunk at a time;
- what a session raises says what happened to the *whole* chunk: `NotDelivered`, `Rejected` (nothing
  of it arrived) or `OutcomeUnknown`; any foreign exception means unknown. A `Receipt` tells of
  single events.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from semel.protocol import Capability, OnDoubt, OnReject
from semel.sinks.retry import Retry
from semel.sinks.validation import Checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from semel.errors import DeliveryError
    from semel.events import Chunk, EntityIds, Event
    from semel.events.event import Attempt, Minibatch
    from semel.sinks.progress import Progress, Tail
    from semel.sinks.validation import DoubtPolicy, RejectPolicy


@dataclass(frozen=True, slots=True)
class Target:
    """Where a session works, and for whom: one attempt at one partition of one minibatch."""

    pipeline: str
    sink: str
    minibatch: Minibatch
    partition: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the events of a chunk: all delivered, but for `failures` (by place in the
    chunk).

    An event after a failure that was not even tried is listed as `NotDelivered`, and so is every
    event of the entity after one that failed: the events of an entity stay in order. Behind one
    that is `Rejected` its entity may go on, unless `on_reject` is `block`. PROBING and
    SEQUENCED sessions speak of whole chunks, because that is what their destination tells later. A
    TRANSACTIONAL session has moved its row past the failures: those that are `NotDelivered` are
    parked and sent again by themselves, before anything else of their entity.
    """

    failures: Mapping[int, DeliveryError] = field(default_factory=dict)


DELIVERED = Receipt()


@dataclass(frozen=True, kw_only=True)
class Sink(metaclass=Checked):
    """A destination described. A new one subclasses this, states its capability and opens sessions.

    Attributes:
        name: the namespace of this sink in the ledger; it may not change under a pipeline.
        chunk_rows: the events of one call or transaction, at most. For OPAQUE this is the `window`.
        span_chunks: how many chunks may be sent before the next word to the ledger.
        on_doubt: what becomes of an event that may have arrived.
        on_reject: whether the entity of a dead letter goes on or waits.
        probe: asks whether an event arrived (None: it cannot tell), for `on_doubt="probe"`.
        lease_s: how long an attempt may act on what the ledger last told it.
        deadline_s: how long one call may take, the destination's own delay included.
        remembers_s: how long the destination absorbs a repeat (REPEATABLE).
        keyed_by_event: whether the key it absorbs by is the event's (REPEATABLE); else it is the
            chunk's.
        retry: how often and for how long `NotDelivered` is tried again.
        park_limit: how many events may stand parked before the pipeline stops: 10,000, or what can
            be parked at once where that is more. With 0 it stops instead of parking anything.
        whole: one chunk per partition, written to a place of its own from its first event, always.
        last_opener_wins: opening a session fences the one before, at the destination (Kafka).
    """

    name: str
    chunk_rows: int = 1_000
    span_chunks: int = 8
    on_doubt: DoubtPolicy = OnDoubt.HOLD  # type: ignore[assignment] # given also as a word
    on_reject: RejectPolicy = OnReject.PARK  # type: ignore[assignment] # as above
    probe: Callable[[Event], bool | None] | None = field(default=None, repr=False)
    lease_s: float = 10.0
    deadline_s: float = 30.0
    remembers_s: float = 86_400.0
    keyed_by_event: bool = True
    retry: Retry = field(default_factory=Retry)
    park_limit: int = 10_000
    whole: bool = False
    last_opener_wins: bool = False

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """What the destination can do. Claimed here, proved by the contract suite."""

    @abstractmethod
    def open(self, target: Target) -> AnySession:
        """Connect, on the executor. Raises `NotDelivered` when nobody answers."""

    @property
    def parked_at_once(self) -> int:
        """How many events one write to the ledger may park, at most: those of a chunk, or of a span
        where intents are recorded.
        """
        if self.whole:
            return 0
        return self.chunk_rows * (self.span_chunks if self.capability.records_intents else 1)

    def locate(self, target: Target) -> str | None:
        """Name the destination's place for exactly this partition of this minibatch, where it has
        one.
        """
        del target
        return None

    def notes(self) -> tuple[str, ...]:
        """Say in sentences what `semel explain` should add: how durable the destination is, how
        long it remembers, what it does not undo.
        """
        return ()

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for columns that the destination cannot hold, and for settings
        that name a column which is not there. Runs on the driver, in `semel.deliver`.
        """
        del schema

    def describe(self) -> dict[str, object]:
        """Say what may not change under a pipeline."""
        return {"capability": self.capability.value}


@runtime_checkable
class Session(Protocol):
    """One open connection (REPEATABLE, OPAQUE): it delivers chunks."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Deliver the chunk. Runs on an executor, at most once at a time."""

    def close(self) -> None:
        """Give the connection back. Never raises for a connection that is already gone."""


@runtime_checkable
class ProbingSession(Session, Protocol):
    """A session whose destination can be asked whether a chunk arrived (PROBING)."""

    def arrived(self, key: str) -> bool:
        """Say whether the chunk with this key arrived; only asked when no call can be in flight."""


@runtime_checkable
class TransactionalSession(Protocol):
    """A session whose destination commits our progress row together with the effect
    (TRANSACTIONAL).
    """

    def take_over(self) -> Progress | None:
        """Write this attempt into the progress row, whatever stands there, and tell what stood
        there.

        None when the partition has no row yet. A row that is taken over keeps its OSN. Raises
        `Fenced` when a later attempt is named by it.
        """

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Lock the row, require that it is not beyond us, move it, then the effect; all as one.

        The row keeps `progress`; within one minibatch its `ids` are added to those that stand
        there, because after a lost checkpoint they are all that is known of it.

        Raises `Fenced` when the row names a later attempt or minibatch, and when it stands beyond
        `progress.start`: then an earlier call of this very attempt has arrived after all. Raises
        `Diverged` when there is no row, or one whose OSN is below `progress.after`: then the
        destination has lost what it acknowledged (`progress.require_kept` says so).
        """

    def close(self) -> None:
        """Roll back and give the connection back."""


@runtime_checkable
class SequencedSession(Protocol):
    """A session whose destination tells its last OSN and refuses a replaced writer (SEQUENCED)."""

    def take_over(self) -> Tail:
        """Take the log's epoch for this attempt, so that earlier writers are refused; tell its
        tail.

        Raises `Fenced` when a later attempt holds it.
        """

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk's events in order, each with its OSN; the last carries `progress`.

        Raises `Fenced` when a later attempt holds the log, and for an OSN that is not beyond its
        tail: then an earlier call of this very attempt has arrived after all. A receipt speaks of
        all events; an event that is rejected rejects the chunk.
        """

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend under its old OSN, as the log's resend `number` (see `Tail.resent`)."""

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Tell which events of the minibatch stand in the log; asked to close a generation."""

    def close(self) -> None:
        """Give the connection back."""


@runtime_checkable
class WholeSession(Protocol):
    """A session that writes a partition to a place of its own, from its first event to its last."""

    def write(self, chunk: Chunk) -> None:
        """Take the next events, aside from the place itself."""

    def finish(self) -> Mapping[str, Any] | None:
        """Put what was written in its place, over whatever an earlier attempt left there; tell of
        it, as JSON, what `Concluding.conclude` is to be told.

        Raises `Fenced` when a later attempt has put something there, or emptied it.

        Where nothing was written, nothing stands there afterwards: so a half-done place is emptied
        when its generation is closed.
        """

    def close(self) -> None:
        """Give up what was not finished."""


AnySession = Session | ProbingSession | TransactionalSession | SequencedSession | WholeSession
