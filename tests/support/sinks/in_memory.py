"""Destinations in memory that take whole columns: for tests that count calls over many events.

What each capability means stands in `semel.verify.models`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semel.errors import OutcomeUnknown
from semel.events import Chunk, EntityIds, Minibatch
from semel.protocol import Capability
from semel.sinks import DELIVERED, AnySession, Progress, Receipt, Sink, Tail, Target
from semel.verify.models import LogRecord, Place, ProgressTable, SequencedLog, place_of


class Killed(BaseException):
    """The process ends here; nothing after it is done."""


@dataclass
class Arrivals:
    """What arrived, in which order, and what it was asked; a fault comes `before` or `after`."""

    osns: list[Any] = field(default_factory=list)
    ids: list[object] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    progress: ProgressTable = field(default_factory=ProgressTable)
    logs: dict[Place, SequencedLog] = field(default_factory=dict)
    keeps_ids: bool = True
    before: Callable[[Chunk], None] | None = None
    after: Callable[[Chunk], None] | None = None

    def take(self, chunk: Chunk) -> None:
        self.osns.append(chunk.osns())
        if self.keeps_ids:
            self.ids.extend(event.id for event in chunk.events())

    @property
    def arrived(self) -> list[int]:
        """The output sequence numbers as they came."""
        return [] if not self.osns else [int(osn) for osn in np.concatenate(self.osns)]

    @property
    def count(self) -> int:
        return sum(map(len, self.osns))

    def around(self, chunk: Chunk, effect: Callable[[], None]) -> Receipt:
        self.calls.append(f"deliver {chunk.start}-{chunk.stop}")
        if self.before is not None:
            self.before(chunk)
        effect()
        if self.after is not None:
            self.after(chunk)
        return DELIVERED


@dataclass(frozen=True, kw_only=True)
class MemorySink(Sink):
    """A sink of one capability into a destination in memory."""

    can: Capability
    into: Arrivals = field(default_factory=Arrivals, compare=False)

    @property
    def capability(self) -> Capability:
        return self.can

    def open(self, target: Target) -> AnySession:
        match self.can:
            case Capability.TRANSACTIONAL:
                return MemoryTransactional(self.into, target)
            case Capability.SEQUENCED:
                return Log(self.into, target)
            case Capability.PROBING:
                return MemoryProbing(self.into)
            case _:
                return Keyed(self.into)


@dataclass
class MemoryTransactional:
    """TRANSACTIONAL: the progress row moves with the effect."""

    into: Arrivals
    target: Target

    def take_over(self) -> Progress | None:
        self.into.calls.append("take over")
        return self.into.progress.take_over(self.target)

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        def effect() -> None:
            self.into.progress.move(self.target, chunk, progress, {})
            self.into.take(chunk)

        return self.into.around(chunk, effect)

    def close(self) -> None:
        return


@dataclass
class Log:
    """SEQUENCED: the log reports its last number and refuses a writer that was replaced."""

    into: Arrivals
    target: Target

    def take_over(self) -> Tail:
        self.into.calls.append("take over")
        return self.log.take_over(self.target, None)

    @property
    def log(self) -> SequencedLog:
        return self.into.logs.setdefault(place_of(self.target), SequencedLog())

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        def effect() -> None:
            self.log.append([last_record(chunk, self.target, progress)], self.target)
            self.into.take(chunk)

        return self.into.around(chunk, effect)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        raise NotImplementedError

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        raise NotImplementedError

    def close(self) -> None:
        return


def last_record(chunk: Chunk, target: Target, progress: Progress) -> LogRecord:
    """One record stands for a chunk: a million events are counted, not kept."""
    at = len(chunk) - 1
    rows, osn = chunk.rows, int(chunk.osns()[at])
    return LogRecord(
        osn, rows.scope(at), rows.id(at), target.minibatch, rows.sort_key(at), progress
    )


@dataclass
class Keyed:
    """REPEATABLE: what carries a key that was seen has no effect."""

    into: Arrivals

    def deliver(self, chunk: Chunk) -> Receipt:
        def effect() -> None:
            if chunk.key not in self.into.keys:
                self.into.keys.append(chunk.key)
                self.into.take(chunk)

        return self.into.around(chunk, effect)

    def close(self) -> None:
        return


@dataclass
class MemoryProbing:
    """PROBING: takes whatever comes, and can tell which keys came."""

    into: Arrivals

    def deliver(self, chunk: Chunk) -> Receipt:
        def effect() -> None:
            self.into.keys.append(chunk.key)
            self.into.take(chunk)

        return self.into.around(chunk, effect)

    def arrived(self, key: str) -> bool:
        self.into.calls.append("ask")
        return key in self.into.keys

    def close(self) -> None:
        return


def killed_at(count: int) -> Callable[[Chunk], None]:
    """End the process at the call with this number, counted from 1."""
    calls = iter(range(1, 10**9))

    def act(chunk: Chunk) -> None:
        if next(calls) == count:
            raise Killed

    return act


def reply_lost_at(count: int) -> Callable[[Chunk], None]:
    """Lose the reply of the call with this number, counted from 1."""
    calls = iter(range(1, 10**9))

    def act(chunk: Chunk) -> None:
        if next(calls) == count:
            raise OutcomeUnknown("the reply was lost")

    return act
