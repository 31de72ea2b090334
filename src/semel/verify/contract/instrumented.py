"""An instrumented store, sink and session: every call is recorded, and faults are injected.

The sink's own code runs unchanged. Its answers are recorded and passed on, unless a fault removes
them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
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
    with_methods,
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
    from semel.verify.contract.faults import FaultRecorder, SinkFault

PLANTED = "planted by the contract suite"

PROTOCOLS: dict[Capability, type] = {
    Capability.TRANSACTIONAL: TransactionalSession,
    Capability.SEQUENCED: SequencedSession,
    Capability.PROBING: ProbingSession,
    Capability.REPEATABLE: Session,
    Capability.OPAQUE: Session,
}


WHOLE_CHUNKS = (Capability.PROBING, Capability.SEQUENCED)
"""The capabilities whose destination knows whole chunks only: a receipt must not split one."""


class WatchedStore:
    """The store of a ledger, with counted commits."""

    def __init__(self, store: Store, recorder: FaultRecorder) -> None:
        self._store = store
        self._recorder = recorder

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Read as the store does."""
        return self._store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Scan as the store does."""
        return self._store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Commit, unless a fault comes before it."""
        _, fault = self._recorder.reach(Where.COMMIT, kind=kind_of(requirements, updates))
        what = None if fault is None else fault.what
        if what is What.KILL_BEFORE:
            die()
        if what is What.AWAY:
            raise LedgerUnavailable(f"no answer, {PLANTED}")
        self._store.commit(requirements, updates)
        if what is What.KILL_AFTER:
            die()
        if what is What.LOST:
            raise LedgerUnavailable(f"the reply was lost, {PLANTED}")

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def watched_sink(sink: Sink, recorder: FaultRecorder, rejects: frozenset[tuple[str, str]]) -> Sink:
    """Return the sink with instrumented sessions; everything else is unchanged."""
    late: list[Callable[[], None]] = []

    def watched_open(_: Sink, target: Target) -> WatchedSession:
        fault = recorder.reach(Where.OPEN)[1]
        what = None if fault is None else fault.what
        if what is What.KILL_BEFORE:
            die()
        session = sink.open(target)
        if what is What.KILL_AFTER:
            die()
        _require_methods(sink, session)
        return WatchedSession(session, sink, target, recorder, rejects, late)

    return with_methods(sink, open=watched_open)


def _require_methods(sink: Sink, session: object) -> None:
    wanted = WholeSession if sink.whole else PROTOCOLS[sink.capability]
    if not isinstance(session, wanted):
        raise ConfigurationError(
            f"{type(session).__name__} lacks methods of {wanted.__name__}, which the session of a "
            f"{sink.capability.value} sink must have (see semel.sinks)"
        )


class WatchedSession:
    """One session: methods with an effect are calls, all others are queries."""

    def __init__(
        self,
        session: Any,
        sink: Sink,
        target: Target,
        recorder: FaultRecorder,
        rejects: frozenset[tuple[str, str]],
        late: list[Callable[[], None]],
    ) -> None:
        self._session = session
        self._sink = sink
        self._target = target
        self._recorder = recorder
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
        """Write events to a temporary place (a sink that overwrites whole places)."""
        self._call("write", chunk, lambda session: session.write(chunk))

    def finish(self) -> Mapping[str, Any] | None:
        """Move them to their place."""
        answer = self._call("finish", None, lambda session: session.finish())
        return cast("Mapping[str, Any] | None", answer)

    # -- queries

    def take_over(self) -> Progress | Tail | None:
        """Take over the row or the log."""
        return cast("Progress | Tail | None", self._ask("take_over", self._session.take_over))

    def arrived(self, key: str) -> bool:
        """Ask whether a chunk arrived."""
        return bool(self._ask("arrived", lambda: self._session.arrived(key)))

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        """Ask which events are in the log."""
        ids = self._ask("delivered_ids", lambda: self._session.delivered_ids(minibatch))
        return cast("EntityIds", ids)

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    # -- faults

    def _ask(self, name: str, ask: Callable[[], Any]) -> Any:
        target = self._target
        attempt = [target.attempt.run, target.attempt.task]
        number, fault = self._recorder.reach(Where.ASK, name=name, attempt=attempt)
        if fault is not None and fault.what is What.KILL_BEFORE:
            die()
        answer = ask()
        self._recorder.record(
            answered=number, name=name, attempt=attempt, partition=target.partition
        )
        if fault is not None and fault.what is What.KILL_AFTER:
            die()
        if fault is not None and fault.what is What.LOST:
            raise OutcomeUnknown(f"the reply was lost, {PLANTED}")
        return answer

    def _call(self, name: str, chunk: Chunk | None, call: Callable[[Any], Any]) -> Any:
        """Make a call, with the fault that is due before, during or after it."""
        events = [] if chunk is None else pairs_of(chunk)
        if any((entity, event) in self._rejects for entity, event in events):
            self._recorder.record(rejected=events)
            raise Rejected(f"refused, {PLANTED}")
        target = self._target
        attempt = [target.attempt.run, target.attempt.task]
        number, fault = self._recorder.reach(Where.CALL, name=name, attempt=attempt, events=events)
        watch = self._before(fault, call)
        batch = [target.minibatch.generation, target.minibatch.batch]
        record: dict[str, Any] = {"of": number, "name": name, "attempt": attempt}
        record |= {"partition": target.partition, "minibatch": batch}
        began = self._recorder.now()
        try:
            receipt = call(self._session)
        except BaseException as error:
            self._recorder.record(**record, raised=type(error).__name__, why=str(error)[:400])
            raise
        else:
            answer = (
                {}
                if chunk is None or name == "write"
                else _answer_record(receipt, events, self._sink)
            )
            self._recorder.record(
                **record, took=self._recorder.now() - began, **{"failures": {}, **answer}
            )
        finally:
            if isinstance(watch, Cutter):
                self._recorder.record(shut=watch.end())
            elif watch is not None:
                watch.end()
        self._after(fault)
        if fault is None:
            while self._late:
                self._late.pop()()
        return receipt

    def _before(self, fault: SinkFault | None, call: Callable[[Any], Any]) -> Timer | Cutter | None:
        """Inject a fault before the call, or start one that happens while it runs."""
        if fault is None:
            return None
        match fault.what:
            case What.KILL_BEFORE:
                die()
            case What.STOP_BEFORE:
                stop()
            case What.UNSENT:
                raise OutcomeUnknown(f"the request may have been lost, {PLANTED}")
            case What.LATE:
                self._late.append(lambda: self._arrive_late(call))
                raise OutcomeUnknown(f"no reply in time, {PLANTED}")
            case What.CLOSED:
                self._session.close()
            case What.BEHIND:
                self._lost = 1
            case What.SEVERED:
                self._recorder.record(shut=cut())
            case What.DEAF | What.CUT:
                return Cutter(fault)
            case What.KILL_WITHIN | What.STOP_WITHIN:
                return Timer(fault)
            case _:
                pass
        return None

    def _after(self, fault: SinkFault | None) -> None:
        """Inject a fault after the call: the effect has happened, its reply was not used yet."""
        if fault is None:
            return
        match fault.what:
            case What.KILL_AFTER:
                die()
            case What.STOP_AFTER:
                stop()
            case What.LOST_CLOSED:
                self._session.close()
                raise OutcomeUnknown(f"the reply was lost, {PLANTED}")
            case What.LOST:
                raise OutcomeUnknown(f"the reply was lost, {PLANTED}")
            case _:
                pass

    def _claimed(self, progress: Progress) -> Progress:
        """Claim that more was acknowledged than the row has: for a session this is the same as a
        row that was restored from an older copy.
        """
        lost, self._lost = self._lost, 0
        return replace(progress, after=progress.after + lost)

    def _arrive_late(self, call: Callable[[Any], Any]) -> None:
        """Let a call arrive after its repeat, as if the network had delayed it."""
        session: Any = self._sink.open(self._target)
        try:
            call(session)
        except Exception as error:  # noqa: BLE001 - its caller is gone
            self._recorder.record(late=type(error).__name__, why=str(error)[:400])
        else:
            self._recorder.record(late=None)
        finally:
            with suppress(Exception):
                session.close()


def _answer_record(receipt: Any, events: list[list[str]], sink: Sink) -> dict[str, Any]:
    """Return the record of an answer, with any contradiction in it."""
    if receipt is None:
        return {}
    if not isinstance(receipt, Receipt):
        return {"wrong": f"it returned {type(receipt).__name__}, not a Receipt"}
    failures = {place: type(why).__name__ for place, why in receipt.failures.items()}
    wrong = _wrong(failures, events, sink)
    return {"failures": failures} if wrong is None else {"failures": failures, "wrong": wrong}


def _wrong(failures: Mapping[int, str], events: list[list[str]], sink: Sink) -> str | None:
    """Return what is wrong with a receipt; None if nothing is."""
    beyond = [place for place in failures if not 0 <= place < len(events)]
    if beyond:
        return f"its receipt names places {beyond} of {len(events)} events"
    alike = len(failures) == len(events) and len(set(failures.values())) == 1
    if failures and sink.capability in WHOLE_CHUNKS and not alike:
        return (
            f"its receipt names {len(failures)} of {len(events)} events: a "
            f"{sink.capability.value} session must report whole chunks, and raise Rejected for one"
        )
    failed: dict[str, str] = {}
    for place, (entity, event) in enumerate(events):
        if failures.get(place) == Rejected.__name__ and sink.on_reject is OnReject.PARK:
            continue  # a dead letter; its entity continues
        if place in failures:
            failed.setdefault(entity, event)
        elif entity in failed:
            return (
                f"its receipt delivers event {event} of {entity!r} after event {failed[entity]} of "
                "it failed: events after a failed event of their entity must be NotDelivered"
            )
    return None
