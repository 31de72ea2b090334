"""The explorer: runs a world for every crash point of a partition and every pair of them.

Always true:
- nothing is sampled: the points are counted in a world without faults, then each is tried;
- second points are counted in what follows the first crash, until there are no more;
- a zombie is paused instead of crashed, replaced, and woken at every call of its replacement, and
  after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.verify.simulator.cases import DEADLINE_S
from semel.verify.simulator.checker import Category, Evidence, judge
from semel.verify.simulator.cluster import Cluster
from semel.verify.simulator.destinations import Gateway
from semel.verify.simulator.faults import POSSIBLE, CallFault, Kind
from semel.verify.simulator.inputs import feed
from semel.verify.simulator.runner import Runner
from semel.verify.simulator.scheduler import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.verify.simulator.cases import Case
    from semel.verify.simulator.checker import Assessment, Violation
    from semel.verify.simulator.faults import FaultyWire

EVENTS = 12
FIRST = 10
"""The events of the first minibatch, which is explored; the rest follow without faults."""
SHAPE = 6
"""The feed in which three entities take turns."""
TASKS = "attempt"
DRIVERS = "driver"

ENDS_A_LIFE = frozenset({CallFault.CRASH, CallFault.CRASH_AFTER, CallFault.LATE, CallFault.PAUSE})
OTHERS = (
    CallFault.CRASH_AFTER,
    CallFault.LATE,
    CallFault.LOST,
    CallFault.TWIN,
    CallFault.AWAY,
    CallFault.CUT,
)

Points = tuple[tuple[int, CallFault], ...]


@dataclass(eq=False)
class FaultScript:
    """A plan with chosen points: for each life the number of a call, and the fault there.

    A life is a stretch without a crash; each of its calls is a boundary.

    Attributes:
        wakes: the boundary of the second life at which a paused process continues; None: the end.
        only: whose boundaries count: those of tasks, of drivers, or all.
        over: whether faults have ended.
        kinds: the kinds of the boundaries of each life.
    """

    points: Points = ()
    wakes: int | None = None
    only: str = ""
    over: bool = False
    kinds: list[list[Kind]] = field(default_factory=lambda: [[]])
    paused: FaultyWire | None = None
    struck: int = 0

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        """Return the fault of the call that begins now; calls of a zombie are not counted."""
        if wire is self.paused or self.over or not wire.title.startswith(self.only):
            return None
        life = len(self.kinds) - 1
        number = len(self.kinds[life])
        self.kinds[life].append(kind)
        if self.paused is not None and life == 1 and number == self.wakes:
            self._wake(wire.hub, self.paused)
        if life >= len(self.points) or self.points[life][0] != number:
            return None
        fault = self.points[life][1]
        self.struck += 1
        if fault in ENDS_A_LIFE:
            self.kinds.append([])
        if fault is CallFault.PAUSE:
            self.paused = wire
        return fault

    def _wake(self, hub: Hub, paused: FaultyWire) -> None:
        """Let the zombie run to its end before the call that begins now."""
        for job in hub.jobs:
            if job.actor is paused.actor and job.paused:
                hub.wake(job)
        hub.turn()

    def delay(self, kind: Kind) -> float:
        """Return a delay just before the deadline of a call."""
        return DEADLINE_S * 0.9 if kind is Kind.SEND else 1.0

    def pause(self) -> float | None:
        """Return None: the process is paused until it is woken."""
        return None

    def describe(self) -> str:
        """Return the script as text."""
        words = [f"{fault.value} (boundary {at})" for at, fault in self.points]
        if any(fault is CallFault.PAUSE for _, fault in self.points):
            words.append("woken at the end" if self.wakes is None else f"woken at {self.wakes}")
        return ", then ".join(words) or "no fault"


@dataclass(eq=False)
class ScriptedWorld:
    """One partition, two minibatches, and a script of faults."""

    case: Case
    script: FaultScript
    refused: frozenset[int] = frozenset()
    shut_s: float | None = None

    def __post_init__(self) -> None:
        rows = feed(self.case.identities, 1, EVENTS, SHAPE)
        self.hub = Hub()
        self.cluster = Cluster((self.case,), rows, self.hub, self.script)
        self.cluster.destination.refuses.update(self.refused)
        [name] = rows.partitions
        minibatches = ({name: (0, FIRST)}, {name: (FIRST, EVENTS)})
        if self.shut_s is not None:
            shut_s = self.shut_s
            self.cluster.destination.gateway = Gateway(self.hub, lambda: shut_s)
        self.runner = Runner(
            self.cluster, minibatches, quiet=self._open_the_gateway, done=self._done
        )

    def _open_the_gateway(self) -> None:
        """Let the gateway accept every call, towards the end."""
        if self.cluster.destination.gateway is not None:
            self.cluster.destination.gateway.quiet = True

    def _done(self, batch: int) -> None:
        """End the faults after the first minibatch: the rest only shows what it left."""
        self.script.over = self.script.over or (self.script.only == TASKS and batch > 0)

    def run(self) -> Assessment:
        """Run the world to its end and check it."""
        notes = self.runner.play_out()
        return judge(
            Evidence(
                self.case,
                self.cluster.feed,
                list(self.cluster.destination.seen()),
                self.cluster.parked(),
                ended=self.runner.ended,
                refused=self.refused | self.cluster.destination.turned_away,
                disturbances=self.script.struck,
                generations=self.cluster.generation(),
                notes=notes,
                gateway=self.shut_s is not None,
            )
        )


@dataclass
class Explored:
    """The result of an exploration.

    Attributes:
        violations: the violations, with the scripts of their worlds.
        doubted_most: the greatest number of events in doubt in one world.
        slipped: events that slipped because of a policy or a broken deadline, in all worlds.
    """

    worlds: int = 0
    violations: list[tuple[FaultScript, Violation]] = field(default_factory=list)
    doubted_most: int = 0
    slipped: int = 0

    def describe(self) -> str:
        """Return the result as a few lines of text."""
        numbers = (
            f"{self.worlds} worlds, {len(self.violations)} violations,"
            f" at most {self.doubted_most} events in doubt, {self.slipped} slipped"
        )
        found = [f"{script.describe()}: {violation}" for script, violation in self.violations[:10]]
        return "\n".join([numbers, *found])


class Enough(Exception):
    """A violation was found, and one is enough."""


@dataclass(eq=False)
class Explorer:
    """Tries the points of a case one by one."""

    case: Case
    quick: bool = False
    refused: frozenset[int] = frozenset()
    shut_s: float | None = None
    explored: Explored = field(default_factory=Explored)

    def play(self, script: FaultScript) -> FaultScript:
        """Run one world. Raises `Enough` if it has violations and one is enough."""
        assessment = ScriptedWorld(self.case, script, self.refused, self.shut_s).run()
        explored = self.explored
        explored.worlds += 1
        explored.doubted_most = max(explored.doubted_most, assessment.doubted)
        explored.slipped += assessment.counts.get(Category.SLIPPED, 0)
        explored.violations += [(script, violation) for violation in assessment.violations]
        if self.quick and assessment.violations:
            raise Enough
        return script

    def others(self) -> None:
        """Try every fault other than a plain crash at every boundary, alone."""
        clean = self.play(FaultScript())
        for at, kind in enumerate(clean.kinds[0]):
            for fault in OTHERS:
                if fault in POSSIBLE[kind]:
                    self.play(FaultScript(((at, fault),)))

    def crashes(self, only: str) -> None:
        """Try every crash point, and every second crash point after it."""
        for points, calls in self._firsts(CallFault.CRASH, only):
            for second in range(calls):
                self.play(FaultScript((*points, (second, CallFault.CRASH)), only=only))

    def zombies(self, only: str) -> None:
        """Try every point at which an attempt can be paused, with every point at which it can be
        woken.
        """
        for points, calls in self._firsts(CallFault.PAUSE, only):
            for at in range(calls):
                self.play(FaultScript(points, wakes=at, only=only))

    def zombies_of_the_dead(self, only: str) -> None:
        """Try the same with a replacement that crashes before or after the zombie wakes."""
        for points, calls in self._firsts(CallFault.PAUSE, only):
            for at in range(calls):
                both = (*points, (at, CallFault.CRASH))
                self.play(FaultScript(both, wakes=min(at, self._claimed()), only=only))
                self.play(FaultScript(both, only=only))

    def _claimed(self) -> int:
        """Return the boundary by which a replacement has claimed: its third or fourth call."""
        return 4

    def _firsts(self, fault: CallFault, only: str) -> Iterator[tuple[Points, int]]:
        """Yield every first point, and the number of boundaries after it in the next life."""
        at = 0
        while True:
            points: Points = ((at, fault),)
            script = self.play(FaultScript(points, only=only))
            if not script.struck:
                return
            yield points, len(script.kinds[1])
            at += 1


def explore(
    case: Case,
    *,
    quick: bool = False,
    refused: frozenset[int] = frozenset(),
    shut_s: float | None = None,
) -> Explored:
    """Try every fault, crash point, pair of crash points and zombie of a case.

    `quick` stops at the first violation. `refused` are the numbers of events that the destination
    rejects; `shut_s` is how long a gateway refuses all calls after a lost reply.
    """
    explorer = Explorer(case, quick, refused, shut_s)
    try:
        explorer.others()
        explorer.crashes(TASKS)
        explorer.crashes(DRIVERS)
        explorer.zombies(TASKS)
        explorer.zombies_of_the_dead(TASKS)
    except Enough:
        pass
    return explorer.explored
