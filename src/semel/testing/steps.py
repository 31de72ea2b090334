"""The steps of a pipeline under test: what it does to its ledger and to its destination, numbered.

Always true:
- a step either happens or does not; a fault comes before it or after it, never within it;
- after a crash the process can do nothing more: every further step of it crashes too, so code that
  catches the crash changes nothing;
- closing a session is not a step: the connection of a process that died is closed as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from semel.errors import LedgerUnavailable
from semel.ledger.store import Put
from semel.sinks import Function, checked_session, with_methods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.events import Chunk, EntityIds, Event, Minibatch
    from semel.ledger.store import Key, Payload, Requirement, Store, Update
    from semel.sinks import AnySession, Ended, Progress, Receipt, Sink, Tail, Target

Answer = TypeVar("Answer")


class ProcessCrashed(BaseException):
    """The process of the pipeline under test is gone. Not an `Exception`: no sink may catch it."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """What goes wrong, and where: at the step `number`, before or `after` it happens.

    Attributes:
        crashes: the process is gone; otherwise its request or the reply to it is lost.
    """

    number: int
    after: bool
    crashes: bool

    def at(self, step: str) -> str:
        """Describe the fault at a step."""
        when = "after" if self.after else "before"
        if self.crashes:
            return f"crashed {when} step {self.number}: {step}"
        lost = "the reply to" if self.after else "the request of"
        return f"lost {lost} step {self.number}: {step}"


@dataclass
class NumberedSteps:
    """Numbers the steps of one world, and lets at most one of them go wrong.

    Attributes:
        taken: the steps so far, in their order.
        struck: what went wrong; None until then.
    """

    plan: PlannedFault | None = None
    taken: list[str] = field(default_factory=list)
    struck: str | None = None
    _dead: bool = False

    def restart(self) -> None:
        """Begin a new process."""
        self._dead = False

    def take(
        self,
        step: str,
        act: Callable[[], Answer],
        lost: Callable[[str], Exception] = TimeoutError,
    ) -> Answer:
        """Take a step, unless the plan or an earlier crash forbids it. `lost` makes the error of a
        request or a reply that is lost.
        """
        if self._dead:
            raise ProcessCrashed("the process has crashed before")
        self.taken.append(step)
        plan = self.plan
        due = plan is not None and plan.number == len(self.taken)
        if due and plan is not None and not plan.after:
            raise self._strike(plan, step, lost)
        answer = act()
        if due and plan is not None:
            raise self._strike(plan, step, lost)
        return answer

    def _strike(
        self, plan: PlannedFault, step: str, lost: Callable[[str], Exception]
    ) -> BaseException:
        self.struck = plan.at(step)
        self._dead = plan.crashes
        return (
            ProcessCrashed(self.struck) if plan.crashes else lost(f"{self.struck} (semel.testing)")
        )


class SteppedStore:
    """The store of a ledger, whose commits are steps."""

    def __init__(self, store: Store, steps: NumberedSteps) -> None:
        self._store = store
        self._steps = steps

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        """Read as the store does."""
        return self._store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        """Scan as the store does."""
        return self._store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        """Commit, as one step."""
        tables = sorted({each.key.table for each in updates if isinstance(each, Put)})
        self._steps.take(
            f"commit to the ledger ({', '.join(tables) or 'delete'})",
            lambda: self._store.commit(requirements, updates),
            LedgerUnavailable,
        )

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def stepped_sink(sink: Sink, steps: NumberedSteps, called: Callable[[Event], object]) -> Sink:
    """Return the sink with its calls as steps; everything else is unchanged. `called` gets each
    event for which a function returned.
    """
    if isinstance(sink, Function) and not sink.batches:
        return replace(sink, function=_stepped_function(sink, steps, called))
    heard = called if isinstance(sink, Function) else None

    def stepped_open(_: Sink, target: Target) -> AnySession:
        session = steps.take(f"{sink.name}: open", lambda: sink.open(target))
        checked = checked_session(sink, session)
        return cast("AnySession", _SteppedSession(checked, sink.name, steps, heard))

    def stepped_conclude(_: Sink, ended: Ended) -> None:
        step = f"{sink.name}: conclude minibatch {ended.minibatch}"
        steps.take(step, lambda: sink.conclude(ended))

    if sink.concludes:
        return with_methods(sink, open=stepped_open, conclude=stepped_conclude)
    return with_methods(sink, open=stepped_open)


def _stepped_function(
    sink: Function, steps: NumberedSteps, called: Callable[[Event], object]
) -> Callable[[Any], object]:
    """Return the function with its calls as steps. A lost request or reply is one of the function:
    it did not run, or it ran and its caller does not know.
    """

    def call(event: Event) -> object:
        def act() -> object:
            answer = sink.function(event)
            called(event)
            return answer

        return steps.take(f"{sink.name}: event {event.id} of {event.entity}", act)

    return call


class _SteppedSession:
    """One session; each call of it but `close` is a step."""

    def __init__(
        self,
        session: Any,
        name: str,
        steps: NumberedSteps,
        called: Callable[[Event], object] | None,
    ) -> None:
        self._session = session
        self._name = name
        self._steps = steps
        self._called = called

    def deliver(self, chunk: Chunk) -> Receipt:
        def act() -> Receipt:
            receipt = cast("Receipt", self._session.deliver(chunk))
            if self._called is not None:
                for event in chunk.events():
                    self._called(event)
            return receipt

        return self._steps.take(f"{self._name}: deliver {len(chunk)} events", act)

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        return cast("Receipt", self._take("deliver_with", chunk, progress))

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        return cast("Receipt", self._take("deliver_again", chunk, number))

    def write(self, chunk: Chunk) -> None:
        self._take("write", chunk)

    def finish(self) -> Mapping[str, Any] | None:
        return cast("Mapping[str, Any] | None", self._take("finish"))

    def take_over(self) -> Progress | Tail | None:
        return cast("Progress | Tail | None", self._take("take_over"))

    def arrived(self, key: str) -> bool:
        return bool(self._take("arrived", key))

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        return cast("EntityIds", self._take("delivered_ids", minibatch))

    def close(self) -> None:
        self._session.close()

    def _take(self, method: str, *arguments: Any) -> Any:
        act = getattr(self._session, method)
        return self._steps.take(f"{self._name}: {method}", lambda: act(*arguments))
