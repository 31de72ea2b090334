"""The cases of the contract: each is one line of the result and runs one or more scenarios."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from semel.protocol import Capability, OnReject
from semel.verify.contract import scenarios as played
from semel.verify.contract.faults import SinkFault, What, Where
from semel.verify.contract.rows import REFUSE, large_text, odd_numbers, odd_texts, payments
from semel.verify.contract.sandbox import LAST, NEXT
from semel.verify.contract.scenarios import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from semel.sinks import Sink
    from semel.verify.contract.sandbox import Sandbox
    from semel.verify.contract.scenarios import Scene


@dataclass(frozen=True)
class ContractCase:
    """One case: its name, what it does, its scenarios, and the sinks it applies to."""

    name: str
    says: str
    plays: Callable[[Scene], Iterator[Scenario]]
    only: frozenset[Capability] = field(default=frozenset(Capability))
    otherwise: str = "no call is repeated while it may still arrive"
    """Why it does not apply to other capabilities."""

    chunked: bool = False
    """Whether it is about single chunks or events, which a sink that overwrites places lacks."""

    def why_not(self, sink: Sink) -> str | None:
        """Return why the case does not apply to a sink; None if it does."""
        if sink.whole and self.chunked:
            return "the sink overwrites whole places: it sends no single chunk or event"
        if sink.capability not in self.only:
            return f"with {sink.capability.name} {self.otherwise}"
        return None

    def applies(self, sink: Sink) -> bool:
        """Whether the case applies to the sink."""
        return self.why_not(sink) is None


# -- events


def _poison(scene: Scene) -> Iterator[Scenario]:
    def act(fault: SinkFault | None, sandbox: Sandbox) -> None:
        rows = sandbox.rows.pairs
        sandbox.rejects.add(rows[len(rows) // 2])
        if fault is not None:
            sandbox.run(fault)
        sandbox.finish()

    yield Scenario("one event among good ones is refused", partial(act, None), whole_chunk=True)
    for what in (What.KILL_BEFORE, What.KILL_AFTER):
        fault = SinkFault(what, Where.CALL, 1)
        yield Scenario(f"one event is refused, and {fault}", partial(act, fault), whole_chunk=True)
    fault = SinkFault(What.KILL_AFTER, Where.CALL, scene.middle)
    yield Scenario(f"one event is refused, and {fault}", partial(act, fault))


def _refused(_: Scene) -> Iterator[Scenario]:
    def act(fault: SinkFault | None, ids: range, sandbox: Sandbox) -> None:
        both = one, _ = sandbox.customers("ab")
        sandbox.rows = sandbox.make(payments(both, ids, {(one, 3): REFUSE}))
        sandbox.refusable.add((one, "3"))
        if fault is not None:
            sandbox.run(fault)
        sandbox.finish()
        sandbox.next_minibatch(sandbox.make(payments(both, LAST)))
        sandbox.finish(drains=True)  # events behind it are sent before the next minibatch

    alone = partial(act, None, range(1, 6))
    yield Scenario(
        "the third event of one of two entities reads `refuse this`", alone, whole_chunk=True
    )
    yield Scenario("the same in small chunks", alone)
    waits = "the same, with on_reject='block', so that its entity waits"
    yield Scenario(waits, alone, whole_chunk=True, on_reject=OnReject.BLOCK)
    for what in (What.KILL_AFTER, What.LOST):
        fault = SinkFault(what, Where.CALL, 1)
        ended = partial(act, fault, range(1, 4))
        yield Scenario(f"the last one reads `refuse this`, and {fault}", ended, whole_chunk=True)


def _resend(_: Scene) -> Iterator[Scenario]:
    def act(fault: SinkFault | None, sandbox: Sandbox) -> None:
        rows = sandbox.rows.pairs
        sandbox.rejects.add(rows[len(rows) // 2])
        sandbox.finish()
        sandbox.resend()
        sandbox.next_minibatch(sandbox.ordinary(NEXT))
        if fault is not None:
            sandbox.run(fault, drains=True)
        sandbox.finish(drains=True)
        sandbox.next_minibatch(sandbox.ordinary(LAST))
        sandbox.finish(drains=True)

    yield Scenario("a rejected event is sent again", partial(act, None))
    for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
        fault = SinkFault(what, Where.CALL, 1)
        yield Scenario(f"a rejected event is sent again, and {fault}", partial(act, fault))


def _lost_checkpoint(scene: Scene) -> Iterator[Scenario]:
    yield Scenario("after a complete minibatch", partial(played.lose_checkpoint, None))
    last = scene.calls[-1]
    for number in sorted({scene.middle, last}):
        for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
            fault = SinkFault(what, Where.CALL, number)
            yield Scenario(f"after {fault}", partial(played.lose_checkpoint, fault))


def _two_partitions(scene: Scene) -> Iterator[Scenario]:
    def act(fault: SinkFault | None, sandbox: Sandbox) -> None:
        sandbox.rows = sandbox.spread()
        sandbox.run(batches={}, completes=False)
        tasks = [
            sandbox.start(
                fault if at == 0 else None,
                opens=False,
                task=at + 1,
                batches={name: batch},
                completes=False,
            )
            for at, (name, batch) in enumerate(sandbox.rows.batches.items())
        ]
        for task in tasks:
            task.wait()
        if fault is None:
            sandbox.run(opens=False, batches={})
        sandbox.finish()

    yield Scenario("side by side", partial(act, None), partitions=2)
    for what in (What.KILL_AFTER, What.LOST):
        fault = SinkFault(what, Where.CALL, scene.middle)
        yield Scenario(f"side by side, one of them {fault}", partial(act, fault), partitions=2)


def _odd(make: Callable[[str], pa.Table]) -> Callable[[Scene], Iterator[Scenario]]:
    def act(sandbox: Sandbox) -> None:
        sandbox.rows = sandbox.make(make(sandbox.name))
        sandbox.refusable.update(sandbox.rows.pairs)
        sandbox.finish()

    def plays(_: Scene) -> Iterator[Scenario]:
        yield Scenario("delivered or parked with a reason, none lost", act, whole_chunk=True)

    return plays


_ANSWERS = frozenset({Capability.TRANSACTIONAL, Capability.SEQUENCED, Capability.REPEATABLE})

CASES: tuple[ContractCase, ...] = (
    ContractCase("clean", "nothing goes wrong", played.clean),
    ContractCase("before-intent", "killed before anything was sent", played.before_intent),
    ContractCase("after-intent", "killed between the intent and the call", played.after_intent),
    ContractCase("mid-call", "killed in the middle of a call", played.mid_call),
    ContractCase(
        "after-effect", "killed after the effect, before its reply was used", played.after_effect
    ),
    ContractCase(
        "before-complete",
        "killed before and after the minibatch is completed",
        played.before_complete,
    ),
    ContractCase("take-over", "killed, and killed again while taking over", played.take_over),
    ContractCase("twice", "killed twice in a row", played.twice),
    ContractCase("reply-lost", "the effect happened, and its reply was lost", played.reply_lost),
    ContractCase(
        "request-lost", "the outcome is unknown; the request was not sent", played.request_lost
    ),
    ContractCase(
        "late-call", "a call arrives after its own repeat", played.late_call, _ANSWERS, chunked=True
    ),
    ContractCase("session-closed", "the session is closed before a call", played.session_closed),
    ContractCase(
        "connection-cut",
        "the connection is cut before, during and after a call",
        played.connection_cut,
    ),
    ContractCase("zombie", "stopped, replaced, and woken after all was done", played.zombie),
    ContractCase("two-alive", "woken while its replacement is running", played.two_alive),
    ContractCase(
        "ledger-down", "the ledger does not answer, briefly or for long", played.ledger_down
    ),
    ContractCase("poison", "one event is rejected, and the others arrive", _poison, chunked=True),
    ContractCase("refused", "the destination itself may refuse one event", _refused),
    ContractCase(
        "resend", "a rejected event is sent again after a decision", _resend, chunked=True
    ),
    ContractCase("lost-checkpoint", "all input is read again by another query", _lost_checkpoint),
    ContractCase(
        "lost-progress",
        "the destination has less than it acknowledged",
        played.lost_progress,
        frozenset({Capability.TRANSACTIONAL}),
        "the sink compares no progress row",
    ),
    ContractCase(
        "by-position", "events are identified by their offset in a source", played.by_position
    ),
    ContractCase("two-partitions", "two partitions at the same time", _two_partitions),
    ContractCase("odd-texts", "unicode, NUL, empty, null, quotes", _odd(odd_texts)),
    ContractCase("odd-numbers", "zero, negative, the limits of 64 bits", _odd(odd_numbers)),
    ContractCase("large-text", "a megabyte of text", _odd(large_text)),
)
"""Every case, in the order in which they run."""
