"""Faults, and where they enter: on the wire between a process and the world around it.

Always true:
- every call over a wire is one numbered boundary, and a plan says which fault meets it;
- a crash before the next call is a crash after this one: nothing outside of the process can tell
  them apart;
- production code is unchanged and knows nothing of it: the wire stands behind Store, Sink, Session
  and iterator.
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
    """What a call is, as far as faults can tell."""

    LOOK = "look"  # a read or a scan of the ledger
    COMMIT = "commit"
    OPEN = "open"  # a session
    ASK = "ask"  # the destination, which may fence by being asked
    SEND = "send"  # an effect
    INPUT = "input"  # the next batch
    REPORT = "report"  # the end of a task


class Fault(StrEnum):
    """What goes wrong with a call."""

    CRASH = "crashed before it"
    CRASH_AFTER = "crashed after it"
    LATE = "crashed, and it lands later"
    LOST = "its reply was lost"
    TWIN = "its reply was lost, and a twin of it lands later"
    AWAY = "nobody was there"
    PAUSE = "paused before it"
    CUT = "the input ended early"


POSSIBLE: dict[Kind, tuple[Fault, ...]] = {
    Kind.LOOK: (Fault.CRASH, Fault.AWAY, Fault.PAUSE),
    Kind.COMMIT: (
        Fault.CRASH,
        Fault.CRASH_AFTER,
        Fault.LATE,
        Fault.LOST,
        Fault.TWIN,
        Fault.AWAY,
        Fault.PAUSE,
    ),
    Kind.OPEN: (Fault.CRASH, Fault.AWAY, Fault.PAUSE),
    Kind.ASK: (Fault.CRASH, Fault.CRASH_AFTER, Fault.LOST, Fault.AWAY, Fault.PAUSE),
    Kind.SEND: (
        Fault.CRASH,
        Fault.CRASH_AFTER,
        Fault.LATE,
        Fault.LOST,
        Fault.AWAY,
        Fault.PAUSE,
    ),
    Kind.INPUT: (Fault.CRASH, Fault.PAUSE, Fault.CUT),
    Kind.REPORT: (Fault.CRASH, Fault.PAUSE),
}


class Plan(Protocol):
    """Which fault meets which call."""

    def fault(self, wire: Wire, kind: Kind) -> Fault | None:
        """Say what goes wrong with the call that begins now."""

    def delay(self, kind: Kind) -> float:
        """Say how much later a call lands that is on its way."""

    def pause(self) -> float | None:
        """Say for how long a process freezes; None: until it is woken."""


class Peace:
    """A plan in which nothing goes wrong."""

    def fault(self, wire: Wire, kind: Kind) -> Fault | None:
        """Nothing."""
        del wire, kind
        return None

    def delay(self, kind: Kind) -> float:
        """At once."""
        del kind
        return 0.0

    def pause(self) -> float | None:
        """Not at all."""
        return 0.0


@dataclass(eq=False)
class Wire:
    """What a process is connected to the world by."""

    hub: Hub
    actor: Actor
    plan: Plan
    story: Story
    title: str
    calls: int = 0
    cut: bool = False

    def call(self, kind: Kind, what: tuple[Any, ...], do: Callable[[], T]) -> T:
        """Make one call, and let happen to it what the plan says."""
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

    def _faulty(self, fault: Fault, kind: Kind, what: tuple[Any, ...], do: Callable[[], T]) -> T:
        self.note(what, fault.value)
        match fault:
            case Fault.CRASH:
                raise self.crash()
            case Fault.CRASH_AFTER:
                with suppress(Exception):
                    do()
                raise self.crash()
            case Fault.LATE:
                self.hub.later(self.plan.delay(kind), self._landing(what, do))
                raise self.crash()
            case Fault.LOST | Fault.TWIN:
                passed = False
                with suppress(Exception):
                    do()
                    passed = True
                if fault is Fault.TWIN:
                    self.hub.later(self.plan.delay(kind), self._twin(what, do, passed=passed))
                raise _lost(kind, self.calls)
            case Fault.AWAY:
                raise _away(kind, self.calls)
            case Fault.PAUSE:
                self.hub.pause(self.plan.pause())
                self._alive()
                self.note(what, "went on with it")
                return self._do(what, do)
            case Fault.CUT:
                self.cut = True
                return cast("T", fault)  # only of an input, whose answer is thrown away

    def crash(self) -> Crashed:
        """Let the process die here."""
        self.actor.dead = True
        return Crashed(self.title)

    def note(self, what: tuple[Any, ...], outcome: str = "") -> None:
        """Tell a step of this process."""
        self.story.note(self.hub.now, self.title, what, outcome)

    def _alive(self) -> None:
        if self.actor.dead:
            raise Crashed(self.title)

    def _landing(self, what: tuple[Any, ...], do: Callable[[], object]) -> Callable[[], None]:
        def land() -> None:
            outcome = "landed late"
            try:
                do()
            except Exception as error:  # noqa: BLE001 - nobody is there to hear it
                outcome = f"came late: {type(error).__name__}"
            self.story.note(self.hub.now, f"the last call of {self.title}", what, outcome)

        return land

    def _twin(
        self, what: tuple[Any, ...], do: Callable[[], object], *, passed: bool
    ) -> Callable[[], None]:
        def land() -> None:
            outcome = "a twin landed"
            try:
                do()
            except Conflict:
                outcome = "a twin changed nothing"
            else:
                if passed:
                    outcome = TWIN_PASSED
            self.story.note(self.hub.now, f"a twin of a call of {self.title}", what, outcome)

        return land


TWIN_PASSED = "a twin of a commit that had passed passed too"


def _lost(kind: Kind, number: int) -> Exception:
    """The reply of a call that may have been heard."""
    if kind in (Kind.LOOK, Kind.COMMIT):
        return LedgerUnavailable("the reply was lost")
    return OutcomeUnknown("the reply was lost") if number % 2 else TimeoutError("no reply")


def _away(kind: Kind, number: int) -> Exception:
    """The error of a call that reached nobody."""
    if kind in (Kind.LOOK, Kind.COMMIT):
        return LedgerUnavailable("nobody is there")
    if kind is Kind.SEND or number % 2:
        return NotDelivered("nobody is there")
    return ConnectionError("nobody is there")


@dataclass(frozen=True)
class FaultyStore:
    """The ledger as one process reaches it."""

    store: Store
    wire: Wire

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Read over the wire."""
        what = ("read", *(f"{key.table}:{key.key}" for key in keys[:2]))
        return self.wire.call(Kind.LOOK, what, lambda: self.store.read(keys))

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Scan over the wire, in one look."""
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
        """Nothing is open."""


def over(wire: Wire, batches: Iterable[T]) -> Iterator[T]:
    """Give the batches over the wire; they may end early, as if that were their end."""
    for batch in [*batches, None]:
        what = ("the end of its input",) if batch is None else ("the next batch",)
        if wire.call(Kind.INPUT, what, lambda: True) is not True or batch is None:
            return
        yield batch
