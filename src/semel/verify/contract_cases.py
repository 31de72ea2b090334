"""The cases of the contract: what is done to a sink, at which step, and how it goes on after that.

A case is one line of the verdict and has one play or several; a play is a script of processes on a
stage of its own. Crash points are enumerated first: every commit, the first, second and last call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from semel.protocol import Capability
from semel.verify.contract_faults import Fault, What, Where
from semel.verify.contract_rows import REFUSE, large_text, odd_numbers, odd_texts, payments
from semel.verify.contract_stage import LAST, NEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    import pyarrow as pa

    from semel.sinks import Sink
    from semel.verify.contract_stage import Record, Stage

_ASKED = (Capability.TRANSACTIONAL, Capability.SEQUENCED, Capability.PROBING)

LONG = 10_000
"""How often in a row the ledger does not answer when it is down for good."""

WITHIN = 8
"""How many moments of a call are tried."""

WITHIN_FACTOR = 1.3
"""How far beyond the usual length of a call they reach."""


@dataclass(frozen=True)
class Scene:
    """What is known of a sink before anything goes wrong: a clean run of it."""

    sink: Sink
    clean: Record
    random: Random

    @property
    def calls(self) -> list[int]:
        """The calls at which something happens: the first, the second and the last."""
        count = self.clean.count(Where.CALL)
        return sorted({1, min(2, count), count} if count else set())

    @property
    def middle(self) -> int:
        """The second call, where there is one: something came before it."""
        return min(2, self.clean.count(Where.CALL))

    @property
    def commits(self) -> list[int]:
        """The commits at which something happens: all, or the first and last of very many."""
        count = self.clean.count(Where.COMMIT)
        every = list(range(1, count + 1))
        return every if count <= 7 else [*every[:5], *every[-2:]]

    def moments(self, count: int) -> list[float]:
        """Give moments within a call, spread over its usual length, each with some chance."""
        took = sorted(self.clean.took())
        usual = took[len(took) // 2] if took else 0.001
        step = usual * WITHIN_FACTOR / count
        return [step * (at + self.random.random()) for at in range(count)]


@dataclass(frozen=True)
class Play:
    """One script."""

    title: str
    act: Callable[[Stage], None]
    partitions: int = 1
    whole_chunk: bool = False


@dataclass(frozen=True)
class Case:
    """One line of the verdict."""

    name: str
    says: str
    plays: Callable[[Scene], Iterator[Play]]
    only: frozenset[Capability] = field(default=frozenset(Capability))
    parks: bool = False
    """Whether events are parked in it, which a sink that writes places whole never does."""

    def applies(self, sink: Sink) -> bool:
        """Whether the capability has such a step."""
        return sink.capability in self.only and not (sink.whole and self.parks)


# -- nothing goes wrong


def _clean(_: Scene) -> Iterator[Play]:
    def several(stage: Stage) -> None:
        stage.finish()
        stage.next_minibatch(stage.ordinary(NEXT))
        stage.finish()

    def again(stage: Stage) -> None:
        stage.finish()
        stage.finish()  # the driver died before Spark committed: the same minibatch once more

    yield Play("two minibatches", several)
    yield Play("a complete minibatch, once more", again)


# -- killed


def _kill(fault: Fault, stage: Stage) -> None:
    stage.run(fault)
    stage.finish()


def _at_commits(kinds: set[str], *whats: What) -> Callable[[Scene], Iterator[Play]]:
    def plays(scene: Scene) -> Iterator[Play]:
        for number in scene.commits:
            kind = scene.clean.kinds()[number - 1]
            if kind in kinds:
                for what in whats:
                    fault = Fault(what, Where.COMMIT, number)
                    yield Play(f"{fault} ({kind})", partial(_kill, fault))

    return plays


def _before_intent(scene: Scene) -> Iterator[Play]:
    yield from _at_commits({"register", "open"}, What.KILL_BEFORE, What.KILL_AFTER)(scene)
    yield from _at_commits({"claim", "span"}, What.KILL_BEFORE)(scene)


def _after_intent(scene: Scene) -> Iterator[Play]:
    yield from _at_commits({"claim", "span", "take"}, What.KILL_AFTER)(scene)
    for number in scene.calls:
        fault = Fault(What.KILL_BEFORE, Where.CALL, number)
        yield Play(str(fault), partial(_kill, fault))


def _mid_call(scene: Scene) -> Iterator[Play]:
    for moment in scene.moments(WITHIN):
        fault = Fault(What.KILL_WITHIN, Where.CALL, scene.middle, moment)
        yield Play(str(fault), partial(_kill, fault))


def _after_effect(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        fault = Fault(What.KILL_AFTER, Where.CALL, number)
        yield Play(str(fault), partial(_kill, fault))


def _before_complete(scene: Scene) -> Iterator[Play]:
    kinds = {"complete", "other", "park"}
    yield from _at_commits(kinds, What.KILL_BEFORE, What.KILL_AFTER)(scene)


def _take_over(scene: Scene) -> Iterator[Play]:
    def act(second: Fault, stage: Stage) -> None:
        stage.run(Fault(What.KILL_AFTER, Where.CALL, scene.middle))
        stage.run(second)
        stage.finish()

    for where in (Where.OPEN, Where.ASK) if scene.sink.capability in _ASKED else (Where.OPEN,):
        for what in (What.KILL_BEFORE, What.KILL_AFTER):
            fault = Fault(what, where)
            yield Play(f"killed after an effect, then {fault}", partial(act, fault))


def _twice(scene: Scene) -> Iterator[Play]:
    def act(whats: tuple[What, What], stage: Stage) -> None:
        stage.run(Fault(whats[0], Where.CALL, scene.middle))
        stage.run(Fault(whats[1], Where.CALL))
        stage.finish()

    kills = (What.KILL_BEFORE, What.KILL_AFTER)
    for pair in ((one, other) for one in kills for other in kills):
        yield Play(f"{pair[0]} a call, then {pair[1]} a call", partial(act, pair))


# -- answers


def _reply_lost(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        for what in (What.LOST, What.LOST_CLOSED):
            fault = Fault(what, Where.CALL, number)
            yield Play(str(fault), partial(_kill, fault))


def _request_lost(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        fault = Fault(What.UNSENT, Where.CALL, number)
        yield Play(str(fault), partial(_kill, fault))


def _late_call(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        fault = Fault(What.LATE, Where.CALL, number)
        yield Play(str(fault), partial(_kill, fault))


def _session_closed(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        fault = Fault(What.CLOSED, Where.CALL, number)
        yield Play(str(fault), partial(_kill, fault))


def _connection_cut(scene: Scene) -> Iterator[Play]:
    for number in scene.calls:
        for what in (What.SEVERED, What.DEAF):
            fault = Fault(what, Where.CALL, number)
            yield Play(str(fault), partial(_kill, fault))
    for moment in scene.moments(WITHIN // 2):
        fault = Fault(What.CUT, Where.CALL, scene.middle, moment)
        yield Play(str(fault), partial(_kill, fault))


# -- zombies


def _zombie(scene: Scene) -> Iterator[Play]:
    def by_run(fault: Fault, stage: Stage) -> None:
        zombie = stage.stop(fault)
        stage.replace(zombie)
        stage.finish()
        zombie.wake()

    def by_task(fault: Fault, stage: Stage) -> None:
        zombie = stage.stop(fault)
        stage.replace(zombie, opens=False, task=2)
        zombie.wake()
        stage.finish()

    def after_next(fault: Fault, stage: Stage) -> None:
        zombie = stage.stop(fault)
        stage.finish()
        stage.next_minibatch(stage.ordinary(NEXT))
        stage.finish()
        zombie.wake()

    at = scene.middle
    moment = scene.moments(1)[0]
    faults = [
        Fault(What.STOP_BEFORE, Where.CALL, at),
        Fault(What.STOP_WITHIN, Where.CALL, at, moment),
        Fault(What.STOP_AFTER, Where.CALL, at),
    ]
    for fault in faults:
        yield Play(f"{fault}; a later run finished, then it woke", partial(by_run, fault))
        yield Play(f"{fault}; a later task finished, then it woke", partial(by_task, fault))
    yield Play(f"{faults[0]}; woke after the next minibatch", partial(after_next, faults[0]))


def _two_alive(scene: Scene) -> Iterator[Play]:
    def act(opens: bool, stage: Stage) -> None:
        first = stage.stop(Fault(What.STOP_BEFORE, Where.CALL, scene.middle))
        task = 1 if opens else 2
        second = stage.start(Fault(What.STOP_BEFORE, Where.CALL), opens=opens, task=task)
        second.wait()
        first.wake()
        second.wake()
        stage.finish()

    for opens in (True, False):
        later = "run" if opens else "task"
        yield Play(f"woke while a later {later} was at its first call", partial(act, opens))


# -- the ledger


def _ledger_down(scene: Scene) -> Iterator[Play]:
    kinds = scene.clean.kinds()
    known = {kind: at for at, kind in reversed(list(enumerate(kinds, 1)))}
    for number in sorted({*known.values(), *scene.commits[-2:]}):
        fault = Fault(What.LOST, Where.COMMIT, number)
        yield Play(f"{fault} ({kinds[number - 1]})", partial(_kill, fault))
        fault = Fault(What.AWAY, Where.COMMIT, number, times=LONG)
        yield Play(f"{fault} ({kinds[number - 1]}), and from then on", partial(_kill, fault))
    fault = Fault(What.AWAY, Where.COMMIT, scene.commits[-1], times=3)
    yield Play(f"{fault}, three times", partial(_kill, fault))


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
    def act(stage: Stage) -> None:
        one, other = stage.customers("ab")
        stage.rows = stage.make(payments([one, other], range(1, 6), {(one, 3): REFUSE}))
        stage.refusable.add((one, "3"))
        stage.finish()

    yield Play("the third event of one of two entities reads `refuse this`", act, whole_chunk=True)
    yield Play("the same in small chunks", act)


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
    def act(fault: Fault | None, stage: Stage) -> None:
        stage.run(fault)
        stage.lose_checkpoint(stage.ordinary(range(1, 3)))  # cut in another way, too
        stage.finish()
        stage.next_minibatch(stage.ordinary(range(3, 6)))
        stage.finish()

    yield Play("after a complete minibatch", partial(act, None))
    last = scene.calls[-1]
    for number in sorted({scene.middle, last}):
        for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
            fault = Fault(what, Where.CALL, number)
            yield Play(f"after it was {fault}", partial(act, fault))


def _two_partitions(scene: Scene) -> Iterator[Play]:
    def act(fault: Fault | None, stage: Stage) -> None:
        stage.rows = stage.ordinary(names="abcdefgh")
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
    Case("clean", "nothing goes wrong", _clean),
    Case("before-intent", "killed before anything was sent", _before_intent),
    Case("after-intent", "killed between the intent and the call", _after_intent),
    Case("mid-call", "killed in the middle of a call", _mid_call),
    Case("after-effect", "killed after the effect, before its answer was used", _after_effect),
    Case("before-complete", "killed before and after the minibatch is completed", _before_complete),
    Case("take-over", "killed, and killed again while taking over", _take_over),
    Case("twice", "killed twice in a row", _twice),
    Case("reply-lost", "the effect happened, and its answer was lost", _reply_lost),
    Case("request-lost", "nobody knows whether it was sent, and it was not", _request_lost),
    Case("late-call", "a call arrives after its own repeat", _late_call, _ANSWERS),
    Case("session-closed", "the session is gone when it is called", _session_closed),
    Case("connection-cut", "the connection is cut before, in and after a call", _connection_cut),
    Case("zombie", "stopped, replaced, and woken when all was done", _zombie),
    Case("two-alive", "woken while whoever replaced it is at work", _two_alive),
    Case("ledger-down", "the ledger does not answer, for a while or for long", _ledger_down),
    Case("poison", "one event is rejected, and the others arrive", _poison, parks=True),
    Case("refused", "the destination itself may refuse one event", _refused),
    Case("resend", "a rejected event is sent again by a person", _resend, parks=True),
    Case("lost-checkpoint", "everything is read again under another query", _lost_checkpoint),
    Case("two-partitions", "two partitions at once", _two_partitions),
    Case("odd-texts", "unicode, NUL, empty, null, quotes", _odd(odd_texts)),
    Case("odd-numbers", "zero, negative, the limits of 64 bits", _odd(odd_numbers)),
    Case("large-text", "a megabyte of text", _odd(large_text)),
)
"""Every case, in the order in which they are played."""
