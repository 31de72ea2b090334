"""The scenarios of the contract: processes are killed, stopped or cut off, and then replaced.

A scenario is a script of processes in its own sandbox. Crash points are enumerated first: every
commit, the first, second and last call; moments within a call are spread over its usual length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from semel.protocol import Capability, OnReject
from semel.verify.contract.faults import SinkFault, What, Where
from semel.verify.contract.rows import MinibatchRows
from semel.verify.contract.sandbox import IDS, NEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from semel.sinks import Sink
    from semel.verify.contract.sandbox import ProcessRecord, Sandbox

_ASKED = (Capability.TRANSACTIONAL, Capability.SEQUENCED, Capability.PROBING)

LONG = 10_000
"""How many commits in a row get no answer when the ledger is down for good."""

WITHIN = 8
"""How many moments of a call are tried."""

WITHIN_FACTOR = 1.3
"""How far they reach, as a multiple of the usual length of a call."""


@dataclass(frozen=True)
class Scene:
    """What a clean run of the sink shows, as the input of scenarios."""

    sink: Sink
    clean: ProcessRecord
    random: Random

    @property
    def calls(self) -> list[int]:
        """The calls at which faults are injected: the first, the second and the last."""
        count = self.clean.count(Where.CALL)
        return sorted({1, min(2, count), count} if count else set())

    @property
    def middle(self) -> int:
        """The second call if there is one: it has a call before it."""
        return min(2, self.clean.count(Where.CALL))

    @property
    def commits(self) -> list[int]:
        """The commits at which faults are injected: all, or the first and last of very many."""
        count = self.clean.count(Where.COMMIT)
        every = list(range(1, count + 1))
        return every if count <= 7 else [*every[:5], *every[-2:]]

    def moments(self, count: int) -> list[float]:
        """Return moments within a call, spread over its usual length with some randomness."""
        took = sorted(self.clean.took())
        usual = took[len(took) // 2] if took else 0.001
        step = usual * WITHIN_FACTOR / count
        return [step * (at + self.random.random()) for at in range(count)]


@dataclass(frozen=True)
class Scenario:
    """One script of processes and faults."""

    title: str
    act: Callable[[Sandbox], None]
    partitions: int = 1
    whole_chunk: bool = False
    by_position: bool = False
    on_reject: OnReject = OnReject.PARK


# -- nothing goes wrong


def clean(_: Scene) -> Iterator[Scenario]:
    """Nothing goes wrong."""

    def several(sandbox: Sandbox) -> None:
        sandbox.finish()
        sandbox.next_minibatch(sandbox.ordinary(NEXT))
        sandbox.finish()

    def again(sandbox: Sandbox) -> None:
        sandbox.finish()
        sandbox.finish()  # the driver died before Spark committed: the same minibatch once more

    def counted(sandbox: Sandbox) -> None:
        later = [sandbox.ordinary([number]) for number in IDS]
        sandbox.rows = MinibatchRows({}, {})
        for rows in [*[sandbox.rows] * 7, *later]:
            sandbox.finish()
            sandbox.next_minibatch(rows)
        sandbox.finish()

    yield Scenario("two minibatches", several)
    yield Scenario("minibatches 8, 9 and 10 in runs 9, 10 and 11, compared as numbers", counted)
    yield Scenario("a complete minibatch, once more", again)
    yield Scenario("all events in one call", lambda sandbox: sandbox.finish(), whole_chunk=True)


# -- killed


def _kill(fault: SinkFault, sandbox: Sandbox) -> None:
    sandbox.run(fault)
    sandbox.finish()


def _struck(fault: SinkFault) -> Scenario:
    """Return a scenario with one fault that then runs to its end."""
    return Scenario(str(fault), partial(_kill, fault))


def _at_calls(scene: Scene, *whats: What) -> Iterator[Scenario]:
    for number in scene.calls:
        for what in whats:
            yield _struck(SinkFault(what, Where.CALL, number))


def _at_commits(scene: Scene, kinds: set[str], *whats: What) -> Iterator[Scenario]:
    for number in scene.commits:
        kind = scene.clean.kinds()[number - 1]
        if kind in kinds:
            for what in whats:
                fault = SinkFault(what, Where.COMMIT, number)
                yield Scenario(f"{fault} ({kind})", partial(_kill, fault))


def before_intent(scene: Scene) -> Iterator[Scenario]:
    """Killed before anything was sent."""
    yield from _at_commits(scene, {"register", "open"}, What.KILL_BEFORE, What.KILL_AFTER)
    yield from _at_commits(scene, {"claim", "span"}, What.KILL_BEFORE)


def after_intent(scene: Scene) -> Iterator[Scenario]:
    """Killed between an intent and its call."""
    yield from _at_commits(scene, {"claim", "span", "take"}, What.KILL_AFTER)
    yield from _at_calls(scene, What.KILL_BEFORE)


def mid_call(scene: Scene) -> Iterator[Scenario]:
    """Killed at moments within a call."""
    for moment in scene.moments(WITHIN):
        yield _struck(SinkFault(What.KILL_WITHIN, Where.CALL, scene.middle, moment))


def after_effect(scene: Scene) -> Iterator[Scenario]:
    """Killed after a call, before its reply was used."""
    yield from _at_calls(scene, What.KILL_AFTER)


def before_complete(scene: Scene) -> Iterator[Scenario]:
    """Killed around the end of the minibatch."""
    kinds = {"complete", "other", "park"}
    yield from _at_commits(scene, kinds, What.KILL_BEFORE, What.KILL_AFTER)


def take_over(scene: Scene) -> Iterator[Scenario]:
    """Killed, and killed again while taking over."""

    def act(second: SinkFault, sandbox: Sandbox) -> None:
        sandbox.rows = sandbox.wide(scene.middle)
        sandbox.run(SinkFault(What.KILL_AFTER, Where.CALL, scene.middle))
        sandbox.run(second)
        sandbox.finish()

    for where in (Where.OPEN, Where.ASK) if scene.sink.capability in _ASKED else (Where.OPEN,):
        for what in (What.KILL_BEFORE, What.KILL_AFTER):
            fault = SinkFault(what, where)
            yield Scenario(f"killed after an effect, then {fault}", partial(act, fault))


def twice(scene: Scene) -> Iterator[Scenario]:
    """Killed twice in a row."""

    def act(whats: tuple[What, What], sandbox: Sandbox) -> None:
        sandbox.rows = sandbox.wide(scene.middle)
        sandbox.run(SinkFault(whats[0], Where.CALL, scene.middle))
        sandbox.run(SinkFault(whats[1], Where.CALL))
        sandbox.finish()

    kills = (What.KILL_BEFORE, What.KILL_AFTER)
    for pair in ((one, other) for one in kills for other in kills):
        yield Scenario(f"{pair[0]} a call, then {pair[1]} a call", partial(act, pair))


# -- replies


def reply_lost(scene: Scene) -> Iterator[Scenario]:
    """The reply of a call is lost."""
    yield from _at_calls(scene, What.LOST, What.LOST_CLOSED)


def request_lost(scene: Scene) -> Iterator[Scenario]:
    """A request is lost, and its outcome is unknown."""
    yield from _at_calls(scene, What.UNSENT)


def late_call(scene: Scene) -> Iterator[Scenario]:
    """A call arrives after its own repeat."""
    yield from _at_calls(scene, What.LATE)


def session_closed(scene: Scene) -> Iterator[Scenario]:
    """The session is closed before a call."""
    yield from _at_calls(scene, What.CLOSED)


def connection_cut(scene: Scene) -> Iterator[Scenario]:
    """Connections are cut before or during a call, or receive no reply."""
    yield from _at_calls(scene, What.SEVERED, What.DEAF)
    for what in (What.CUT, What.DEAF):
        for moment in scene.moments(WITHIN // 2):
            yield _struck(SinkFault(what, Where.CALL, scene.middle, moment))


# -- a destination that lost data


def lost_progress(scene: Scene) -> Iterator[Scenario]:
    """The row is behind what was acknowledged; a row that is not behind is accepted."""

    def behind(fault: SinkFault, sandbox: Sandbox) -> None:
        sandbox.run(fault)
        sandbox.finish()

    def later(fault: SinkFault, sandbox: Sandbox) -> None:
        sandbox.finish()
        sandbox.next_minibatch(sandbox.ordinary(NEXT))
        sandbox.run(fault)
        sandbox.finish()

    for number in scene.calls:
        fault = SinkFault(What.BEHIND, Where.CALL, number)
        yield Scenario(str(fault), partial(behind, fault))
    for what in (What.BEHIND, What.KILL_BEFORE, What.KILL_AFTER):
        fault = SinkFault(what, Where.CALL)
        yield Scenario(f"in the next minibatch {fault}", partial(later, fault))


# -- zombies


def zombie(scene: Scene) -> Iterator[Scenario]:
    """Stopped, replaced, and woken when all is done."""

    def by_run(fault: SinkFault, sandbox: Sandbox) -> None:
        zombie = sandbox.stop(fault)
        sandbox.replace(zombie)
        sandbox.finish()
        zombie.wake()

    def by_task(fault: SinkFault, sandbox: Sandbox) -> None:
        zombie = sandbox.stop(fault)
        sandbox.replace(zombie, opens=False, task=2)
        zombie.wake()
        sandbox.finish()

    def after_next(fault: SinkFault, sandbox: Sandbox) -> None:
        zombie = sandbox.stop(fault)
        sandbox.finish()
        sandbox.next_minibatch(sandbox.ordinary(NEXT))
        sandbox.finish()
        zombie.wake()

    def after_loss(fault: SinkFault, sandbox: Sandbox) -> None:
        zombie = sandbox.stop(fault)
        sandbox.lose_checkpoint(sandbox.ordinary(range(1, 3)))
        sandbox.finish()
        sandbox.next_minibatch(sandbox.ordinary(range(3, 6)))
        sandbox.finish()
        zombie.wake()

    # The last call moves a place that is overwritten whole.
    at = scene.calls[-1] if scene.sink.whole else scene.middle
    moment = scene.moments(1)[0]
    faults = [
        SinkFault(What.STOP_BEFORE, Where.CALL, at),
        SinkFault(What.STOP_WITHIN, Where.CALL, at, moment),
        SinkFault(What.STOP_AFTER, Where.CALL, at),
    ]
    for fault in faults:
        yield Scenario(f"{fault}; a later run finished, then it woke", partial(by_run, fault))
        yield Scenario(f"{fault}; a later task finished, then it woke", partial(by_task, fault))
    yield Scenario(f"{faults[0]}; woke after the next minibatch", partial(after_next, faults[0]))
    yield Scenario(
        f"{faults[0]}; woke after the checkpoint was lost", partial(after_loss, faults[0])
    )


def two_alive(scene: Scene) -> Iterator[Scenario]:
    """Woken while its replacement is running."""

    def act(opens: bool, sandbox: Sandbox) -> None:
        sandbox.rows = sandbox.wide(scene.middle)
        first = sandbox.stop(SinkFault(What.STOP_BEFORE, Where.CALL, scene.middle))
        task = 1 if opens else 2
        second = sandbox.start(SinkFault(What.STOP_BEFORE, Where.CALL), opens=opens, task=task)
        second.wait()
        first.wake()
        second.wake()
        sandbox.finish()

    for opens in (True, False):
        later = "run" if opens else "task"
        yield Scenario(f"woke while a later {later} was at its first call", partial(act, opens))


# -- the checkpoint


def lose_checkpoint(fault: SinkFault | None, sandbox: Sandbox) -> None:
    """Lose the checkpoint after a minibatch with or without a fault; all input comes again."""
    sandbox.run(fault)
    sandbox.lose_checkpoint(sandbox.ordinary(range(1, 3)))  # also cut into other minibatches
    sandbox.finish()
    sandbox.next_minibatch(sandbox.ordinary(range(3, 6)))
    sandbox.finish()


# -- identity by position


def by_position(scene: Scene) -> Iterator[Scenario]:
    """Events are identified by their offset; the most important scenarios run again."""

    def woken(fault: SinkFault, sandbox: Sandbox) -> None:
        zombie = sandbox.stop(fault)
        sandbox.replace(zombie)
        sandbox.finish()
        zombie.wake()

    acts: list[tuple[str, Callable[[Sandbox], None]]] = [
        (each.title, each.act) for each in clean(scene)
    ]
    at = scene.middle
    for what in (What.KILL_BEFORE, What.KILL_AFTER, What.LOST):
        fault = SinkFault(what, Where.CALL, at)
        acts.append((str(fault), partial(_kill, fault)))
        acts.append((f"the checkpoint was lost after {fault}", partial(lose_checkpoint, fault)))
    acts.append(
        ("the checkpoint was lost after a complete minibatch", partial(lose_checkpoint, None))
    )
    fault = SinkFault(What.STOP_BEFORE, Where.CALL, at)
    acts.append((f"{fault}; a later run finished, then it woke", partial(woken, fault)))
    for title, act in acts:
        yield Scenario(title, act, by_position=True)


# -- the ledger


def ledger_down(scene: Scene) -> Iterator[Scenario]:
    """The ledger does not answer, or its reply is lost."""
    kinds = scene.clean.kinds()
    known = {kind: at for at, kind in reversed(list(enumerate(kinds, 1)))}
    for number in sorted({*known.values(), *scene.commits[-2:]}):
        fault = SinkFault(What.LOST, Where.COMMIT, number)
        yield Scenario(f"{fault} ({kinds[number - 1]})", partial(_kill, fault))
        fault = SinkFault(What.AWAY, Where.COMMIT, number, times=LONG)
        yield Scenario(f"{fault} ({kinds[number - 1]}), and from then on", partial(_kill, fault))
    fault = SinkFault(What.AWAY, Where.COMMIT, scene.commits[-1], times=3)
    yield Scenario(f"{fault}, three times", partial(_kill, fault))
