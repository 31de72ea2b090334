"""A sink describes a destination; a session is one open connection to it, on an executor.

Always true:
- a sink is frozen and picklable: it travels from the driver to every executor, a session never
  does;
- the engine asks a sink only what `Sink` declares here: it knows no sink by its class or name;
- a session is used by one thread, for one partition at a time, one chunk at a time;
- an error that a session raises is about the *whole* chunk: `NotDelivered` and `Rejected` mean that
  nothing of it arrived, `OutcomeUnknown` and any other exception that it may have arrived. Only a
  `Receipt` has outcomes of single events;
- a minibatch is concluded only after the ledger has it complete, from the ledger's own rows. So
  what readers see at its end never appears again under another minibatch, and every call for a
  minibatch gets the same values.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from semel.errors import ConfigurationError
from semel.protocol import RECORDS_INTENTS, Capability, OnDoubt, OnReject
from semel.sinks.callables import Retry
from semel.sinks.validation import Checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from semel.errors import DeliveryError
    from semel.events import Attempt, Chunk, EntityIds, Event, Minibatch
    from semel.sinks.progress import Progress, Tail
    from semel.sinks.validation import DoubtPolicy, RejectPolicy


@dataclass(frozen=True, slots=True)
class Target:
    """What a session is opened for: one attempt at one partition of one minibatch."""

    pipeline: str
    sink: str
    minibatch: Minibatch
    partition: str
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of a chunk: all events are delivered, except `failures` (by place in the chunk).

    An event after a failure that was not tried is listed as `NotDelivered`, and so is every later
    event of an entity after one that failed, because the events of an entity stay in order. After
    a `Rejected` event its entity may go on, unless `on_reject` is `block`. PROBING and SEQUENCED
    sessions report whole chunks only, because that is what their destination can answer later. A
    TRANSACTIONAL session has moved its row past the failures: those that are `NotDelivered` are
    parked and resent automatically, before any later event of their entity.
    """

    failures: Mapping[int, DeliveryError] = field(default_factory=dict)


DELIVERED = Receipt()


@dataclass(frozen=True, slots=True)
class EndedPart:
    """One partition of a complete minibatch.

    Attributes:
        attempt: the attempt whose report counted.
        count: the number of its events.
        placed: what `WholeSession.finish` returned for it.
    """

    partition: str
    attempt: Attempt
    count: int
    placed: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Ended:
    """A complete minibatch of one sink; partitions in the order of their names."""

    pipeline: str
    sink: str
    minibatch: Minibatch
    parts: tuple[EndedPart, ...]


@dataclass(frozen=True, kw_only=True)
class Sink(metaclass=Checked):
    """The description of a destination. A sink of your own subclasses this, states its capability
    and opens sessions.

    Attributes:
        name: the namespace of this sink in the ledger; it may not change under a pipeline.
        chunk_rows: the most events of one call or transaction. For OPAQUE this is the `window`.
        span_chunks: how many chunks may be sent before the next ledger write.
        on_doubt: what happens to an event that may have arrived.
        on_reject: whether the entity of a rejected event goes on or waits.
        probe: returns whether an event arrived (None: unknown), for `on_doubt="probe"`.
        lease_s: how long an attempt may act on its last read of the ledger.
        deadline_s: how long one call may take, including the destination's own delay.
        remembers_s: how long the destination absorbs a repeat (REPEATABLE).
        keyed_by_event: whether the destination absorbs repeats by the key of the event
            (REPEATABLE); otherwise by the key of the chunk.
        retry: how often and for how long `NotDelivered` is tried again.
        park_limit: how many events may be parked before the pipeline stops: 10,000, or as many as
            can be parked at once if that is more. With 0 it stops instead of parking anything.
    """

    name: str
    chunk_rows: int = 1_000
    span_chunks: int = 8
    on_doubt: DoubtPolicy = OnDoubt.HOLD  # type: ignore[assignment] # also accepted as a string
    on_reject: RejectPolicy = OnReject.PARK  # type: ignore[assignment] # as above
    probe: Callable[[Event], bool | None] | None = field(default=None, repr=False)
    lease_s: float = 10.0
    deadline_s: float = 30.0
    remembers_s: float = 86_400.0
    keyed_by_event: bool = True
    retry: Retry = field(default_factory=Retry)
    park_limit: int = 10_000

    # -- what every sink states

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """What the destination can do. The author claims it; the contract suite tests it."""

    @abstractmethod
    def open(self, target: Target) -> AnySession:
        """Connect, on the executor. Raises `NotDelivered` if the destination does not answer."""

    # -- what a sink may state; the engine asks nothing else

    @property
    def whole(self) -> bool:
        """Whether sessions are `WholeSession`s: each partition of a minibatch is written to a place
        of its own, always from its first event (REPEATABLE). Default: no.
        """
        return False

    @property
    def last_opener_wins(self) -> bool:
        """Whether opening a session fences the session before it at the destination, whichever
        attempt opens it, as Kafka's producers do. Default: no.
        """
        return False

    @property
    def takes_python_values(self) -> bool:
        """Whether events are delivered as Python values. If so, values that Python cannot hold are
        found before the intent is recorded. Default: no.
        """
        return False

    @property
    def absorbed_by(self) -> str | None:
        """What the destination recognises a repeat by: the key of each event, that of each chunk,
        or the place that is overwritten; None if it does not absorb repeats.
        """
        if self.capability is not Capability.REPEATABLE:
            return None
        return "place" if self.whole else "event" if self.keyed_by_event else "chunk"

    @property
    def parked_at_once(self) -> int:
        """The most events that one ledger write may park: those of a chunk, or of a span if intents
        are recorded.
        """
        if self.whole:
            return 0
        return self.chunk_rows * (self.span_chunks if self.capability in RECORDS_INTENTS else 1)

    def locate(self, target: Target) -> str | None:
        """Return the destination's place for exactly this partition of this minibatch. Default:
        None, it has no such place.
        """
        del target
        return None

    def notes(self) -> tuple[str, ...]:
        """Return sentences that `semel explain` adds: how durable the destination is, how long it
        remembers, what it does not undo.
        """
        return ()

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for columns that the destination cannot store, and for
        settings that name a missing column. Runs on the driver, in `semel.deliver`.
        """
        del schema

    def describe(self) -> dict[str, object]:
        """Return what may not change under a pipeline."""
        return {"capability": self.capability.value}

    @property
    def pickling_advice(self) -> str:
        """What to do with a part of the sink that cannot be pickled, for the error message."""
        return (
            "Open it in the sink's open(), which runs on the executor, and keep it in the session"
        )

    # -- the end of a minibatch

    @property
    def concludes(self) -> bool:
        """Whether the sink does something at the end of a minibatch. Default: yes if its class has
        a `conclude` of its own.
        """
        return type(self).conclude is not Sink.conclude

    def conclude(self, ended: Ended) -> None:
        """Do what follows from a complete minibatch. Runs on the driver, before Spark commits.

        It is called again after a crash, also for an older generation, then with the same parts, or
        with only some of them if the ledger has begun to prune them. It is not called for a
        minibatch without parts.
        """
        del ended

    @property
    def stage(self) -> Sink | None:
        """The second stage: a sink that gets one event for each minibatch that was concluded.
        Default: None.
        """
        return None

    def announce(self, ended: Ended) -> pa.RecordBatch:
        """Return the one row that the second stage gets for a concluded minibatch."""
        raise ConfigurationError(
            f"sink {ended.sink!r} has a second stage, but {type(self).__name__} does not define "
            "announce(), which returns the row that the stage gets"
        )


@runtime_checkable
class Session(Protocol):
    """One open connection (REPEATABLE, OPAQUE): it delivers chunks."""

    def deliver(self, chunk: Chunk) -> Receipt:
        """Deliver the chunk. Runs on an executor, at most once at a time."""

    def close(self) -> None:
        """Close the connection. Never raises for a connection that is already lost."""


@runtime_checkable
class ProbingSession(Session, Protocol):
    """A session whose destination can answer whether a chunk arrived (PROBING)."""

    def arrived(self, key: str) -> bool:
        """Return whether the chunk with this key arrived; called only when no call can be in
        flight.
        """


@runtime_checkable
class TransactionalSession(Protocol):
    """A session whose destination commits semel's progress row together with the effect
    (TRANSACTIONAL).
    """

    def take_over(self) -> Progress | None:
        """Write this attempt into the progress row, whatever the row has, and return the row as it
        was before.

        Returns None if the partition has no row yet. A row that is taken over keeps its OSN. Raises
        `Fenced` if the row names a later attempt.
        """

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """In one transaction: lock the row, require that it is not beyond this attempt, move it,
        then apply the effect.

        The row keeps `progress`; within one minibatch its `ids` are added to those in the row,
        because after a lost checkpoint they are all that is known of the minibatch.

        Raises `Fenced` if the row names a later attempt or minibatch, and if it is beyond
        `progress.start`: then an earlier call of this same attempt has arrived after all. Raises
        `Diverged` if there is no row, or one whose OSN is below `progress.after`: then the
        destination has lost what it acknowledged (`progress.require_kept` raises it).
        """

    def close(self) -> None:
        """Roll back and close the connection."""


@runtime_checkable
class SequencedSession(Protocol):
    """A session whose destination reports its last OSN and refuses replaced writers (SEQUENCED)."""

    def take_over(self) -> Tail:
        """Take the log's epoch for this attempt, so that earlier writers are refused; return the
        log's tail.

        Raises `Fenced` if a later attempt has it.
        """

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Append the chunk's events in order, each with its OSN; the last carries `progress`.

        Raises `Fenced` if a later attempt has the log, and for an OSN that is not beyond its tail:
        then an earlier call of this same attempt has arrived after all. A receipt is about all
        events; a rejected event rejects the chunk.
        """

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend under its old OSN, as the log's resend `number` (see `Tail.resent`)."""

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Return which events of the minibatch are in the log; called to close a generation."""

    def close(self) -> None:
        """Close the connection."""


@runtime_checkable
class WholeSession(Protocol):
    """A session that writes a partition to a place of its own, from its first event to its last."""

    def write(self, chunk: Chunk) -> None:
        """Write the next events to a temporary place."""

    def finish(self) -> Mapping[str, Any] | None:
        """Move what was written to its place, over whatever an earlier attempt left there; return
        what `Sink.conclude` gets of it (`EndedPart.placed`), as JSON values.

        Raises `Fenced` if a later attempt has written or emptied the place.

        If nothing was written, the place is empty afterwards: this is how a half-written place is
        emptied when its generation is closed.
        """

    def close(self) -> None:
        """Discard what was not finished."""


AnySession = Session | ProbingSession | TransactionalSession | SequencedSession | WholeSession


def with_methods(sink: Sink, **methods: Any) -> Sink:
    """Return a copy of the sink in which these methods replace its own."""
    kind = type(sink)
    made: Any = object.__new__(type(kind.__name__, (kind,), {"__slots__": (), **methods}))
    known = {each.name: getattr(sink, each.name) for each in fields(sink)}
    for name, value in {**getattr(sink, "__dict__", {}), **known}.items():
        object.__setattr__(made, name, value)
    return cast("Sink", made)
