"""The inbox of a stream: producers append events, readers read exact ranges of them.

Always true:
- an append is durable when it returns, and is stored as a whole or not at all;
- the events of an entity are numbered 1, 2, 3, ... in the order of their offsets, by any number of
  threads and processes at once;
- a range that was read once has the same events whenever it is read again, until it is pruned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from semel.errors import ConfigurationError, EventTooLarge, SemelError, plain_text
from semel.ledger import LedgerClient, open_store
from semel.ledger.store import Conflict
from semel.runtime import SystemClock
from semel.streams.append import Appender
from semel.streams.markers import stream_of_pipeline
from semel.streams.new_event import prepare
from semel.streams.partitions import (
    PARTITIONS,
    Partitions,
    first_partitions,
    other_partitions,
    require_count,
)
from semel.streams.queue import CommitQueue
from semel.streams.reading import read_range
from semel.streams.retention import KEEP_S, Retention
from semel.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from semel.ledger.store import Store
    from semel.runtime import Clock
    from semel.streams.new_event import NewEvent, Prepared, Stored
    from semel.streams.partitions import InboxPartition
    from semel.streams.retention import InboxReader, Pruned

REMEMBER_S = 7 * 24 * 3600.0
"""How long the id of an event is remembered, if nothing else is said."""

REQUEST_EVENTS_MAX = 50_000
REQUEST_BYTES_MAX = 64 * 1024 * 1024
"""The most events of one request, and the most bytes of their data."""

STREAM_CHARACTERS_MAX = 100


class Inbox:
    """The inbox of one stream, for any number of threads; each process opens its own.

    Threads that append at the same time share commits.
    """

    def __init__(
        self,
        ledger: str | Store,
        stream: str,
        *,
        partitions: int | None = None,
        remember_s: float = REMEMBER_S,
        patience_s: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        """Connects to nothing yet.

        Args:
            ledger: the URL of the ledger, or a store.
            stream: the name of the stream. The first append, or `create`, creates it.
            partitions: how many partitions the stream has; 4 if nothing is said. It is recorded
                when the stream is created; another number is refused then: see `repartition`.
            remember_s: how long ids are remembered at least.
            patience_s: how long a call waits for a ledger that is away.
            clock: what a test replaces.

        Raises:
            ConfigurationError: an argument is wrong.
        """
        require_stream(stream)
        if remember_s <= 0:
            raise ConfigurationError(f"remember_s must be greater than 0, got {remember_s!r}")
        self._named = redact(ledger) if isinstance(ledger, str) else repr(ledger)
        self._store = open_store(ledger) if isinstance(ledger, str) else ledger
        self._client = LedgerClient(
            self._store, stream, clock or SystemClock(), patience_s, kind="inbox"
        )
        self._stream = stream
        self._count = None if partitions is None else require_count(partitions)
        self._remember_s = remember_s
        self._created = False
        self._appender = Appender(self._client, stream)
        self._retention = Retention(self._client, stream)
        self._queue = CommitQueue()

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream

    def create(self) -> None:
        """Create the stream if it does not exist.

        Raises `ConfigurationError` if it exists with another number of partitions than was given.
        """
        if self._created:
            return
        now = Partitions.read(self._client, self._stream)
        if now is None:
            try:
                self._client.commit(*first_partitions(self._stream, self._count or PARTITIONS))
            except Conflict:
                now = Partitions.read(self._client, self._stream)
        if now is not None and self._count not in (None, len(now.numbers)):
            raise ConfigurationError(
                f"the inbox {self._stream!r} has {len(now.numbers)} partitions, got "
                f"partitions={self._count}: leave it out, or change the number with "
                "`semel inbox repartition`"
            )
        self._created = True

    def append(self, events: Sequence[NewEvent]) -> list[Stored]:
        """Store events, all or none, and return where each is, in the order given.

        An event whose source and id were stored before, with the same content, is a repeat: it
        gets the ids that it got then. After `LedgerUnavailable` it is not known whether the events
        were stored: append them again, those with an id are then found.

        Raises:
            EventRefused: an event cannot be stored; `EventTooLarge` and `RepeatDiffers` are kinds
                of it.
            LedgerUnavailable: the ledger cannot be reached, or its reply was lost.
        """
        [answer] = self.append_groups([events])
        if isinstance(answer, SemelError):
            raise answer
        return answer

    def append_groups(
        self, groups: Sequence[Sequence[NewEvent]]
    ) -> list[list[Stored] | SemelError]:
        """Store several requests in one commit, each as `append` does. A request that is refused
        is answered with its error, and the others are stored.

        Raises `LedgerUnavailable` as `append` does.
        """
        requests: list[list[Prepared] | SemelError] = [_prepared(group) for group in groups]
        return self._queue.serve(requests, self._commit)

    def ends(self) -> dict[int, int]:
        """Return the offset behind the newest event of each partition."""
        return {each.partition: each.end for each in self.layout()}

    def begins(self) -> dict[int, int]:
        """Return the first offset that is kept of each partition."""
        return {each.partition: each.begin for each in self.layout()}

    def layout(self) -> list[InboxPartition]:
        """Return the partitions, parents before their children.

        Raises `ConfigurationError` if there is no such stream.
        """
        return self._partitions().layout()

    def read(self, partition: int, start: int, stop: int) -> pa.Table:
        """Return exactly the events with start <= offset < stop, in the columns of `INBOX_SCHEMA`.

        Raises `RangeUnavailable` if one of them was pruned or is not there yet.
        """
        return read_range(self._client, self._stream, self._partitions(), partition, start, stop)

    def register_reader(self, reader: str) -> InboxReader:
        """Register a reader, such as a pipeline: from now on no event is pruned that it has not
        completed. One that is registered already is returned as it is.

        What was pruned before is gone: `begins` says, asked afterwards, where it can begin. Raises
        `ConfigurationError` if there is no such stream.
        """
        self._partitions()
        return self._retention.register(reader)

    def reader_completed(self, reader: str, positions: Mapping[int, int]) -> None:
        """Note for each partition the offset before which a reader needs no event any more. A
        position never goes back, so a late call changes nothing.

        Raises `ConfigurationError` for a reader that is not registered.
        """
        self._retention.completed(reader, positions)

    def readers(self) -> list[InboxReader]:
        """Return the registered readers, by name."""
        return self._retention.readers()

    def forget_reader(self, reader: str) -> bool:
        """Remove a reader, and return whether there was one: it keeps no event any more."""
        return self._retention.forget(reader)

    def prune(self, *, keep_s: float = KEEP_S) -> Pruned:
        """Remove the events that are older than `keep_s` and that every registered reader has
        completed, and the ids that are older than `remember_s`. Events are removed by whole
        groups, as they were stored together.

        The counters of entities stay, so that an EventID is never given again.
        """
        if keep_s < 0:
            raise ConfigurationError(f"keep_s must be 0 or greater, got {keep_s!r}")
        return self._retention.prune(self._partitions().rows, keep_s, self._remember_s)

    def repartition(self, partitions: int) -> list[InboxPartition]:
        """Give all entities to new partitions, under new numbers, and return the layout.

        The partitions until then are final: they get no event any more, and are the parents of the
        new ones. A reader reads parents to their end before their children, so the events of an
        entity stay in order. EventIDs continue. Appends meanwhile are repeated, and lose nothing.
        """
        require_count(partitions)
        while True:
            now = self._partitions()
            if len(now.numbers) != partitions:
                try:
                    self._client.commit(*other_partitions(self._stream, now, partitions))
                except Conflict:
                    continue
                now = self._partitions()
            self._count = None if self._count is None else partitions
            return now.layout()

    def close(self) -> None:
        """Close the connections; a later call opens them again."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _partitions(self) -> Partitions:
        found = Partitions.read(self._client, self._stream)
        if found is None:
            raise ConfigurationError(
                f"the ledger {self._named} has no inbox {self._stream!r}; `semel inbox ls` lists "
                "those it has, and the first event creates one"
            )
        return found

    def _commit(
        self, requests: list[list[Prepared] | SemelError]
    ) -> list[list[Stored] | SemelError]:
        self.create()
        return self._appender.append(requests, self.create)


def require_stream(stream: object) -> None:
    """Raise `ConfigurationError` for what is not the name of a stream."""
    if not isinstance(stream, str) or not stream:
        raise ConfigurationError(f"stream must be a non-empty string, got {stream!r}")
    if len(stream) > STREAM_CHARACTERS_MAX or not stream.isprintable():
        raise ConfigurationError(
            f"stream must have at most {STREAM_CHARACTERS_MAX} characters, all of them printable, "
            f"got {plain_text(stream, 100)!r}"
        )
    if stream.startswith(stream_of_pipeline("")):
        raise ConfigurationError(
            f"stream must not begin with {stream_of_pipeline('')!r}, got {stream!r}: paced "
            "pipelines keep their markers under such names"
        )


def _prepared(events: Sequence[NewEvent]) -> list[Prepared] | SemelError:
    """Check one request; an error is its answer."""
    try:
        if len(events) > REQUEST_EVENTS_MAX:
            raise EventTooLarge(
                f"the request has {len(events)} events, an inbox takes at most "
                f"{REQUEST_EVENTS_MAX} at once: split it"
            )
        prepared = prepare(events)
        size = sum(len(each.new.value) for each in prepared)
        if size > REQUEST_BYTES_MAX:
            raise EventTooLarge(
                f"the request has {size} bytes, an inbox takes at most {REQUEST_BYTES_MAX} at "
                "once: split it"
            )
    except SemelError as error:
        return error
    return prepared
