"""Faults, and the wire between a process and its surroundings where they enter.

Always true:
- every call over a wire is one numbered boundary, and a plan says which fault happens there;
- a crash before the next call is the same as a crash after this one, seen from outside;
- production code is unchanged: the wire is behind Store, Sink, Session and iterator.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from semel.errors import LedgerUnavailable, NotDelivered, OutcomeUnknown
from semel.ledger.store import Conflict
from semel.verify.simulator.scheduler import Crashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from semel.ledger.store import Key, Payload, Requirement, Store, Update
    from semel.verify.simulator.scheduler import Actor, Hub
    from semel.verify.simulator.story import Story

T = TypeVar("T")


class Kind(StrEnum):
    """The kind of a call, which decides the possible faults."""

    LOOK = "look"  # a read or a scan of the ledger
    COMMIT = "commit"
    OPEN = "open"  # a session
    ASK = "ask"  # the destination, which may fence by being asked
    SEND = "send"  # an effect
    INPUT = "input"  # the next batch
    REPORT = "report"  # the end of a task


class CallFault(StrEnum):
    """The fault of a call."""

    CRASH = "crashed before it"
    CRASH_AFTER = "crashed after it"
    LATE = "crashed, and it arrives later"
    LOST = "its reply was lost"
    TWIN = "its reply was lost, and a copy of it arrives later"
    AWAY = "the other side was down"
    PAUSE = "paused before it"
    CUT = "the input ended early"


POSSIBLE: dict[Kind, tuple[CallFault, ...]] = {
    Kind.LOOK: (CallFault.CRASH, CallFault.AWAY, CallFault.PAUSE),
    Kind.COMMIT: (
        CallFault.CRASH,
        CallFault.CRASH_AFTER,
        CallFault.LATE,
        CallFault.LOST,
        CallFault.TWIN,
        CallFault.AWAY,
        CallFault.PAUSE,
    ),
    Kind.OPEN: (CallFault.CRASH, CallFault.AWAY, CallFault.PAUSE),
    Kind.ASK: (
        CallFault.CRASH,
        CallFault.CRASH_AFTER,
        CallFault.LOST,
        CallFault.AWAY,
        CallFault.PAUSE,
    ),
    Kind.SEND: (
        CallFault.CRASH,
        CallFault.CRASH_AFTER,
        CallFault.LATE,
        CallFault.LOST,
        CallFault.AWAY,
        CallFault.PAUSE,
    ),
    Kind.INPUT: (CallFault.CRASH, CallFault.PAUSE, CallFault.CUT),
    Kind.REPORT: (CallFault.CRASH, CallFault.PAUSE),
}


class Plan(Protocol):
    """Decides the fault of each call."""

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        """Return the fault of the call that begins now."""

    def delay(self, kind: Kind) -> float:
        """Return how much later a delayed call arrives."""

    def pause(self) -> float | None:
        """Return how long a process is paused; None: until it is woken."""


class NoFaults:
    """A plan without faults."""

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        """Return None."""
        del wire, kind
        return None

    def delay(self, kind: Kind) -> float:
        """Return 0."""
        del kind
        return 0.0

    def pause(self) -> float | None:
        """Return 0."""
        return 0.0


@dataclass(eq=False)
class FaultyWire:
    """The connection of a process to its surroundings, with faults."""

    hub: Hub
    actor: Actor
    plan: Plan
    story: Story
    title: str
    calls: int = 0
    cut: bool = False

    def call(self, kind: Kind, what: tuple[Any, ...], do: Callable[[], T]) -> T:
        """Make one call, with the fault that the plan has for it."""
        self._alive()
        self.hub.turn()
        self._alive()
        self.calls += 1
        fault = self.plan.fault(self, kind)
        if fault is None:
            return self._do(what, do)
        return self._faulty(fault, kind, what, do)

    def _do(self, what: tuple[Any, ...], do: Callable[[], T]) -> T:
        try:
            result = do()
        except Exception as error:
            self.note(what, f"{type(error).__name__}")
            raise
        self.note(what)
        return result

    def _faulty(
        self, fault: CallFault, kind: Kind, what: tuple[Any, ...], do: Callable[[], T]
    ) -> T:
        self.note(what, fault.value)
        match fault:
            case CallFault.CRASH:
                raise self.crash()
            case CallFault.CRASH_AFTER:
                with suppress(Exception):
                    do()
                raise self.crash()
            case CallFault.LATE:
                self.hub.later(self.plan.delay(kind), self._landing(what, do))
                raise self.crash()
            case CallFault.LOST | CallFault.TWIN:
                passed = False
                with suppress(Exception):
                    do()
                    passed = True
                if fault is CallFault.TWIN:
                    self.hub.later(self.plan.delay(kind), self._twin(what, do, passed=passed))
                raise _lost(kind, self.calls)
            case CallFault.AWAY:
                raise _away(kind, self.calls)
            case CallFault.PAUSE:
                self.hub.pause(self.plan.pause())
                self._alive()
                self.note(what, "continued with it")
                return self._do(what, do)
            case CallFault.CUT:
                self.cut = True
                return cast("T", fault)  # only for an input, whose result is ignored

    def crash(self) -> Crashed:
        """Let the process die here."""
        self.actor.dead = True
        return Crashed(self.title)

    def note(self, what: tuple[Any, ...], outcome: str = "") -> None:
        """Add a step of this process to the story."""
        self.story.note(self.hub.now, self.title, what, outcome)

    def _alive(self) -> None:
        if self.actor.dead:
            raise Crashed(self.title)

    def _landing(self, what: tuple[Any, ...], do: Callable[[], object]) -> Callable[[], None]:
        def land() -> None:
            outcome = "arrived late"
            try:
                do()
            except Exception as error:  # noqa: BLE001 - its caller is gone
                outcome = f"arrived late: {type(error).__name__}"
            self.story.note(self.hub.now, f"the last call of {self.title}", what, outcome)

        return land

    def _twin(
        self, what: tuple[Any, ...], do: Callable[[], object], *, passed: bool
    ) -> Callable[[], None]:
        def land() -> None:
            outcome = "a copy arrived"
            try:
                do()
            except Conflict:
                outcome = "a copy changed nothing"
            else:
                if passed:
                    outcome = TWIN_PASSED
            self.story.note(self.hub.now, f"a copy of a call of {self.title}", what, outcome)

        return land


TWIN_PASSED = "a copy of a successful commit succeeded too"


def _lost(kind: Kind, number: int) -> Exception:
    """Return the error of a call whose reply was lost."""
    if kind in (Kind.LOOK, Kind.COMMIT):
        return LedgerUnavailable("the reply was lost")
    return OutcomeUnknown("the reply was lost") if number % 2 else TimeoutError("no reply")


def _away(kind: Kind, number: int) -> Exception:
    """Return the error of a call to a side that is down."""
    if kind in (Kind.LOOK, Kind.COMMIT):
        return LedgerUnavailable("the other side is down")
    if kind is Kind.SEND or number % 2:
        return NotDelivered("the other side is down")
    return ConnectionError("the other side is down")


@dataclass(frozen=True)
class FaultyStore:
    """The ledger as one process reaches it."""

    store: Store
    wire: FaultyWire

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Read over the wire."""
        what = ("read", *(f"{key.table}:{key.key}" for key in keys[:2]))
        return self.wire.call(Kind.LOOK, what, lambda: self.store.read(keys))

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Scan over the wire, in one call."""
        found = self.wire.call(
            Kind.LOOK,
            ("scan", table, prefix),
            lambda: list(self.store.scan(table, prefix, after=after, limit=limit)),
        )
        return iter(found)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Commit over the wire."""
        self.wire.call(
            Kind.COMMIT,
            ("commit", list(updates)),
            lambda: self.store.commit(requirements, updates),
        )

    def close(self) -> None:
        """Do nothing: no connection is open."""


def over(wire: FaultyWire, batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches over the wire; they may end early, like a normal end."""
    for batch in [*batches, None]:
        what = ("the end of its input",) if batch is None else ("the next batch",)
        if wire.call(Kind.INPUT, what, lambda: True) is not True or batch is None:
            return
        yield batch
