"""The cases of the contract: one line of the verdict each, with one play or several."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from semel.protocol import Capability, OnReject
from semel.verify.contract import scenarios as played
from semel.verify.contract.faults import Fault, What, Where
from semel.verify.contract.rows import REFUSE, large_text, odd_numbers, odd_texts, payments
from semel.verify.contract.sandbox import LAST, NEXT
from semel.verify.contract.scenarios import Play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from semel.sinks import Sink
    from semel.verify.contract.sandbox import Stage
    from semel.verify.contract.scenarios import Scene


@dataclass(frozen=True)
class Case:
    """One line of the verdict."""

    name: str
    says: str
    plays: Callable[[Scene], Iterator[Play]]
    only: frozenset[Capability] = field(default=frozenset(Capability))
    otherwise: str = "no call is repeated while it may still arrive"
    """Why it is not played with another capability."""

    chunked: bool = False
    """Whether it is about single chunks or events: a sink that writes places whole has none."""

    def why_not(self, sink: Sink) -> str | None:
        """Say why a sink has no such step; None when it has."""
        if sink.whole and self.chunked:
            return "the sink writes places whole: no chunk or event of it goes alone"
        if sink.capability not in self.only:
            return f"with {sink.capability.name} {self.otherwise}"
        return None

    def applies(self, sink: Sink) -> bool:
        """Whether the sink has such a step."""
        return self.why_not(sink) is None


# -- events


def _poison(scene: Scene) -> Iterator[Play]:
    def act(fault: Fault | None, stage: Stage) -> None:
        rows = stage.rows.pairs
        stage.rejects.add(rows[len(rows) // 2])
        if fault is not None:
            stage.run(fault)
        stage.finish()

    yield Play("one event among good ones is refused", partial(act, None), whole_chunk=True)
    for what in (What.KILL_BEFORE, What.KILL_AFTER):
        fault = Fault(what, Where.CALL, 1)
        yield Play(f"one event is refused, and {fault}", partial(act, fault), whole_chunk=True)
    fault = Fault(What.KILL_AFTER, Where.CALL, scene.middle)
    yield Play(f"one event is refused, and {fault}", partial(act, fault))


def _refused(_: Scene) -> Iterator[Play]:
    def act(fault: Fault | None, ids: range, stage: Stage) -> None:
        both = one, _ = stage.customers("ab")
        stage.rows = stage.make(payments(both, ids, {(one, 3): REFUSE}))
        stage.refusable.add((one, "3"))
        if fault is not None:
            stage.run(fault)
        stage.finish()
        stage.next_minibatch(stage.make(payments(both, LAST)))
        stage.finish(drains=True)  # what was not tried behind it goes by itself, before the next

    alone = partial(act, None, range(1, 6))
    yield Play(
        "the third event of one of two entities reads `refuse this`", alone, whole_chunk=True
    )
    yield Play("the same in small chunks", alone)
    waits = "the same, and its entity waits (on_reject='block')"
    yield Play(waits, alone, whole_chunk=True, on_reject=OnReject.BLOCK)
    for what in (What.KILL_AFTER, What.LOST):
        fault = Fault(what, Where.CALL, 1)
        ended = partial(act, fault, range(1, 4))
        yield Play(f"the last one reads `refuse this`, and {fault}", ended, whole_chunk=True)


def _resend(_: Scene) -> Iterator[Play]:
    def act(fault: Fault | None, stage: Stage) -> None:
        rows = stage.rows.pairs
        stage.rejects.add(rows[len(rows) // 2])
        stage.finish()
        stage.resend()
        stage.next_minibatch(stage.ordinary(NEXT))
        if fault is not None:
            stage.run(fault, drains=True)
        stage.finish(drains=True)
        stage.next_minibatch(stage.ordinary(LAST))
        stage.finish(drains=True)

    yield Play("a rejected event is sent again", partial(act, None))
    for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
        fault = Fault(what, Where.CALL, 1)
        yield Play(f"a rejected event is sent again, and {fault}", partial(act, fault))


def _lost_checkpoint(scene: Scene) -> Iterator[Play]:
    yield Play("after a complete minibatch", partial(played.lose_checkpoint, None))
    last = scene.calls[-1]
    for number in sorted({scene.middle, last}):
        for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
            fault = Fault(what, Where.CALL, number)
            yield Play(f"after it was {fault}", partial(played.lose_checkpoint, fault))


def _two_partitions(scene: Scene) -> Iterator[Play]:
    def act(fault: Fault | None, stage: Stage) -> None:
        stage.rows = stage.spread()
        stage.run(batches={}, completes=False)
        tasks = [
            stage.start(
                fault if at == 0 else None,
                opens=False,
                task=at + 1,
                batches={name: batch},
                completes=False,
            )
            for at, (name, batch) in enumerate(stage.rows.batches.items())
        ]
        for task in tasks:
            task.wait()
        if fault is None:
            stage.run(opens=False, batches={})
        stage.finish()

    yield Play("side by side", partial(act, None), partitions=2)
    for what in (What.KILL_AFTER, What.LOST):
        fault = Fault(what, Where.CALL, scene.middle)
        yield Play(f"side by side, one of them {fault}", partial(act, fault), partitions=2)


def _odd(make: Callable[[str], pa.Table]) -> Callable[[Scene], Iterator[Play]]:
    def act(stage: Stage) -> None:
        stage.rows = stage.make(make(stage.name))
        stage.refusable.update(stage.rows.pairs)
        stage.finish()

    def plays(_: Scene) -> Iterator[Play]:
        yield Play("delivered or parked with a reason, none lost", act, whole_chunk=True)

    return plays


_ANSWERS = frozenset({Capability.TRANSACTIONAL, Capability.SEQUENCED, Capability.REPEATABLE})

CASES: tuple[Case, ...] = (
    Case("clean", "nothing goes wrong", played.clean),
    Case("before-intent", "killed before anything was sent", played.before_intent),
    Case("after-intent", "killed between the intent and the call", played.after_intent),
    Case("mid-call", "killed in the middle of a call", played.mid_call),
    Case(
        "after-effect", "killed after the effect, before its answer was used", played.after_effect
    ),
    Case(
        "before-complete",
        "killed before and after the minibatch is completed",
        played.before_complete,
    ),
    Case("take-over", "killed, and killed again while taking over", played.take_over),
    Case("twice", "killed twice in a row", played.twice),
    Case("reply-lost", "the effect happened, and its answer was lost", played.reply_lost),
    Case("request-lost", "nobody knows whether it was sent, and it was not", played.request_lost),
    Case(
        "late-call", "a call arrives after its own repeat", played.late_call, _ANSWERS, chunked=True
    ),
    Case("session-closed", "the session is gone when it is called", played.session_closed),
    Case(
        "connection-cut", "the connection is cut before, in and after a call", played.connection_cut
    ),
    Case("zombie", "stopped, replaced, and woken when all was done", played.zombie),
    Case("two-alive", "woken while whoever replaced it is at work", played.two_alive),
    Case("ledger-down", "the ledger does not answer, for a while or for long", played.ledger_down),
    Case("poison", "one event is rejected, and the others arrive", _poison, chunked=True),
    Case("refused", "the destination itself may refuse one event", _refused),
    Case("resend", "a rejected event is sent again by a person", _resend, chunked=True),
    Case("lost-checkpoint", "everything is read again under another query", _lost_checkpoint),
    Case(
        "lost-progress",
        "the destination has less than it acknowledged",
        played.lost_progress,
        frozenset({Capability.TRANSACTIONAL}),
        "no progress row is compared by the sink",
    ),
    Case("by-position", "events are known by their offset in a source", played.by_position),
    Case("two-partitions", "two partitions at once", _two_partitions),
    Case("odd-texts", "unicode, NUL, empty, null, quotes", _odd(odd_texts)),
    Case("odd-numbers", "zero, negative, the limits of 64 bits", _odd(odd_numbers)),
    Case("large-text", "a megabyte of text", _odd(large_text)),
)
"""Every case, in the order in which they are played."""
