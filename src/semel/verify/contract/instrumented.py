"""A store, a sink and its sessions, watched: every call is written down, and faults happen to them.

The sink's own code runs unchanged. What it answers is written down as it was, and handed on unless
a fault takes it away.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from semel.errors import ConfigurationError, LedgerUnavailable, OutcomeUnknown, Rejected
from semel.protocol import Capability, OnReject
from semel.sinks import (
    ProbingSession,
    Receipt,
    SequencedSession,
    Session,
    TransactionalSession,
    WholeSession,
)
from semel.verify.contract.faults import (
    Cutter,
    Timer,
    What,
    Where,
    cut,
    die,
    kind_of,
    pairs_of,
    stop,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.events import Chunk, EntityIds, Minibatch
    from semel.ledger.store import Key, Payload, Requirement, Store, Update
    from semel.sinks import Progress, Sink, Tail, Target
    from semel.verify.contract.faults import Desk, Fault

PLANTED = "planted by the contract suite"

PROTOCOLS: dict[Capability, type] = {
    Capability.TRANSACTIONAL: TransactionalSession,
    Capability.SEQUENCED: SequencedSession,
    Capability.PROBING: ProbingSession,
    Capability.REPEATABLE: Session,
    Capability.OPAQUE: Session,
}


WHOLE_CHUNKS = (Capability.PROBING, Capability.SEQUENCED)
"""Whose destination tells of whole chunks later, so that an answer may speak of nothing less."""


class WatchedStore:
    """A ledger's store; commits are counted."""

    def __init__(self, store: Store, desk: Desk) -> None:
        self._store = store
        self._desk = desk

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Look."""
        return self._store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Look."""
        return self._store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Commit, unless a fault comes before it."""
        _, fault = self._desk.reach(Where.COMMIT, kind=kind_of(requirements, updates))
        what = None if fault is None else fault.what
        if what is What.KILL_BEFORE:
            die()
        if what is What.AWAY:
            raise LedgerUnavailable(f"nobody answers, {PLANTED}")
        self._store.commit(requirements, updates)
        if what is What.KILL_AFTER:
            die()
        if what is What.LOST:
            raise LedgerUnavailable(f"the answer was lost, {PLANTED}")

    def close(self) -> None:
        """Give the connection back."""
        self._store.close()


def watched_sink(sink: Sink, desk: Desk, rejects: frozenset[tuple[str, str]]) -> Sink:
    """Give the sink with sessions that are watched; everything else is its own."""
    late: list[Callable[[], None]] = []

    def watched_open(_: Sink, target: Target) -> WatchedSession:
        fault = desk.reach(Where.OPEN)[1]
        what = None if fault is None else fault.what
        if what is What.KILL_BEFORE:
            die()
        session = sink.open(target)
        if what is What.KILL_AFTER:
            die()
        _require_methods(sink, session)
        return WatchedSession(session, sink, target, desk, rejects, late)

    kind = type(sink)
    watching = type(kind.__name__, (kind,), {"__slots__": (), "open": watched_open})
    watched = cast("Sink", object.__new__(watching))
    known = {each.name: getattr(sink, each.name) for each in fields(sink)}
    for name, value in {**getattr(sink, "__dict__", {}), **known}.items():
        object.__setattr__(watched, name, value)
    return watched


def _require_methods(sink: Sink, session: object) -> None:
    wanted = WholeSession if sink.whole else PROTOCOLS[sink.capability]
    if not isinstance(session, wanted):
        raise ConfigurationError(
            f"{type(session).__name__} lacks methods of {wanted.__name__}, which a session of a "
            f"{sink.capability.value} sink has (see semel.sinks)"
        )


class WatchedSession:
    """One session: effects are calls, everything else that it is asked is a question."""

    def __init__(
        self,
        session: Any,
        sink: Sink,
        target: Target,
        desk: Desk,
        rejects: frozenset[tuple[str, str]],
        late: list[Callable[[], None]],
    ) -> None:
        self._session = session
        self._sink = sink
        self._target = target
        self._desk = desk
        self._rejects = rejects
        self._late = late
        self._lost = 0

    # -- effects

    def deliver(self, chunk: Chunk) -> Receipt:
        """Deliver a chunk (REPEATABLE, PROBING, OPAQUE)."""
        return cast("Receipt", self._call("deliver", chunk, lambda it: it.deliver(chunk)))

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        """Deliver a chunk with its progress (TRANSACTIONAL, SEQUENCED)."""

        def call(session: Any) -> Any:
            return session.deliver_with(chunk, self._claimed(progress))

        return cast("Receipt", self._call("deliver_with", chunk, call))

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        """Append a resend (SEQUENCED)."""
        receipt = self._call("deliver_again", chunk, lambda it: it.deliver_again(chunk, number))
        return cast("Receipt", receipt)

    def write(self, chunk: Chunk) -> None:
        """Take events aside (a place that is written whole)."""
        self._call("write", chunk, lambda session: session.write(chunk))

    def finish(self) -> Mapping[str, Any] | None:
        """Put them in their place."""
        told = self._call("finish", None, lambda session: session.finish())
        return cast("Mapping[str, Any] | None", told)

    # -- questions

    def take_over(self) -> Progress | Tail | None:
        """Take the row or the log."""
        return cast("Progress | Tail | None", self._ask("take_over", self._session.take_over))

    def arrived(self, key: str) -> bool:
        """Ask for a chunk."""
        return bool(self._ask("arrived", lambda: self._session.arrived(key)))

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Ask for what stands in the log."""
        told = self._ask("delivered_ids", lambda: self._session.delivered_ids(minibatch))
        return cast("EntityIds", told)

    def close(self) -> None:
        """Give the session back."""
        self._session.close()

    # -- what happens to them

    def _ask(self, name: str, ask: Callable[[], Any]) -> Any:
        target = self._target
        attempt = [target.attempt.run, target.attempt.task]
        number, fault = self._desk.reach(Where.ASK, name=name, attempt=attempt)
        if fault is not None and fault.what is What.KILL_BEFORE:
            die()
        answer = ask()
        self._desk.say(answered=number, name=name, attempt=attempt, partition=target.partition)
        if fault is not None and fault.what is What.KILL_AFTER:
            die()
        if fault is not None and fault.what is What.LOST:
            raise OutcomeUnknown(f"the answer was lost, {PLANTED}")
        return answer

    def _call(self, name: str, chunk: Chunk | None, call: Callable[[Any], Any]) -> Any:
        """Make a call, with whatever happens around it."""
        events = [] if chunk is None else pairs_of(chunk)
        if any((entity, event) in self._rejects for entity, event in events):
            self._desk.say(rejected=events)
            raise Rejected(f"refused, {PLANTED}")
        target = self._target
        attempt = [target.attempt.run, target.attempt.task]
        number, fault = self._desk.reach(Where.CALL, name=name, attempt=attempt, events=events)
        watch = self._before(fault, call)
        batch = [target.minibatch.generation, target.minibatch.batch]
        record: dict[str, Any] = {"of": number, "name": name, "attempt": attempt}
        record |= {"partition": target.partition, "minibatch": batch}
        began = self._desk.now()
        try:
            receipt = call(self._session)
        except BaseException as error:
            self._desk.say(**record, raised=type(error).__name__, why=str(error)[:400])
            raise
        else:
            told = {} if chunk is None or name == "write" else _told(receipt, events, self._sink)
            self._desk.say(**record, took=self._desk.now() - began, **{"failures": {}, **told})
        finally:
            if isinstance(watch, Cutter):
                self._desk.say(shut=watch.end())
            elif watch is not None:
                watch.end()
        self._after(fault)
        if fault is None:
            while self._late:
                self._late.pop()()
        return receipt

    def _before(self, fault: Fault | None, call: Callable[[Any], Any]) -> Timer | Cutter | None:
        """Do what comes before the call, or begin what happens while it runs."""
        if fault is None:
            return None
        match fault.what:
            case What.KILL_BEFORE:
                die()
            case What.STOP_BEFORE:
                stop()
            case What.UNSENT:
                raise OutcomeUnknown(f"nobody knows whether it was sent, {PLANTED}")
            case What.LATE:
                self._late.append(lambda: self._arrive_late(call))
                raise OutcomeUnknown(f"it takes longer than anybody waits, {PLANTED}")
            case What.CLOSED:
                self._session.close()
            case What.BEHIND:
                self._lost = 1
            case What.SEVERED:
                self._desk.say(shut=cut())
            case What.DEAF | What.CUT:
                return Cutter(fault)
            case What.KILL_WITHIN | What.STOP_WITHIN:
                return Timer(fault)
            case _:
                pass
        return None

    def _after(self, fault: Fault | None) -> None:
        """Do what comes after the call: its effect has happened, and nobody has used its answer."""
        if fault is None:
            return
        match fault.what:
            case What.KILL_AFTER:
                die()
            case What.STOP_AFTER:
                stop()
            case What.LOST_CLOSED:
                self._session.close()
                raise OutcomeUnknown(f"the answer was lost, {PLANTED}")
            case What.LOST:
                raise OutcomeUnknown(f"the answer was lost, {PLANTED}")
            case _:
                pass

    def _claimed(self, progress: Progress) -> Progress:
        """Claim that more was acknowledged than the row says: to a session that is the same as a
        row that was put back.
        """
        lost, self._lost = self._lost, 0
        return replace(progress, after=progress.after + lost)

    def _arrive_late(self, call: Callable[[Any], Any]) -> None:
        """Let a call arrive whose repeat was made meanwhile, as if a wire had held it back."""
        session: Any = self._sink.open(self._target)
        try:
            call(session)
        except Exception as error:  # noqa: BLE001 - nobody waits for its answer any more
            self._desk.say(late=type(error).__name__, why=str(error)[:400])
        else:
            self._desk.say(late=None)
        finally:
            with suppress(Exception):
                session.close()


def _told(receipt: Any, events: list[list[str]], sink: Sink) -> dict[str, Any]:
    """Write an answer down; name what contradicts itself in it."""
    if receipt is None:
        return {}
    if not isinstance(receipt, Receipt):
        return {"wrong": f"it answered {type(receipt).__name__}, not a Receipt"}
    failures = {place: type(why).__name__ for place, why in receipt.failures.items()}
    wrong = _wrong(failures, events, sink)
    return {"failures": failures} if wrong is None else {"failures": failures, "wrong": wrong}


def _wrong(failures: Mapping[int, str], events: list[list[str]], sink: Sink) -> str | None:
    """Say what a receipt may not say."""
    beyond = [place for place in failures if not 0 <= place < len(events)]
    if beyond:
        return f"its receipt names places {beyond} of {len(events)} events"
    alike = len(failures) == len(events) and len(set(failures.values())) == 1
    if failures and sink.capability in WHOLE_CHUNKS and not alike:
        return (
            f"its receipt speaks of {len(failures)} of {len(events)} events: a "
            f"{sink.capability.value} session speaks of whole chunks, and raises Rejected for one"
        )
    failed: dict[str, str] = {}
    for place, (entity, event) in enumerate(events):
        if failures.get(place) == Rejected.__name__ and sink.on_reject is OnReject.PARK:
            continue  # a dead letter, whose entity goes on
        if place in failures:
            failed.setdefault(entity, event)
        elif entity in failed:
            return (
                f"its receipt delivers event {event} of {entity!r} after event {failed[entity]} of "
                "it failed: what comes after a failed event of its entity is NotDelivered"
            )
    return None
