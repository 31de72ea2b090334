"""The explorer: every crash point of a partition, and every ordered pair of them, one world for each.

Always true:
- nothing is sampled: the points are counted in a world without faults, then each is tried;
- the second point is counted in whatever follows the first crash, until there is no such point any more;
- a zombie is paused instead of crashed, replaced, and woken at every boundary of its replacement, and after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger.parked import read_parked, resolve
from semel.protocol import OnDoubt, ParkedState
from semel.verify.cases import DEADLINE_S, SINK, Case
from semel.verify.checker import Evidence, Judgement, Violation, judge
from semel.verify.cluster import Broken, Cluster, Stopped
from semel.verify.faults import TWIN_PASSED, Fault, Kind
from semel.verify.inputs import Minibatches, feed
from semel.verify.scheduler import Endless, Hub
from semel.verify.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.verify.faults import Wire
    from semel.verify.inputs import Feed
    from semel.verify.scheduler import Job

EVENTS = 12
TASKS = "attempt"
DRIVERS = "driver"
STARTS_MAX = 12
"""A world whose query has to be started more often than this does not end."""


@dataclass(eq=False)
class Script:
    """A plan in which the points are chosen: the life in which, the boundary at which, and the fault.

    A life is a stretch without a crash. `wakes` is the boundary of the next life at which a paused process goes on.
    """

    points: tuple[tuple[int, Fault], ...] = ()
    wakes: int | None = None
    only: str = ""
    over: bool = False
    life: int = 0
    calls: list[int] = field(default_factory=lambda: [0])
    kinds: list[list[Kind]] = field(default_factory=lambda: [[]])
    paused: Wire | None = None
    hub: Hub | None = None
    struck: int = 0

    def fault(self, wire: Wire, kind: Kind) -> Fault | None:
        """Say what goes wrong now; a zombie's calls are not counted."""
        if wire is self.paused or self.over or not wire.title.startswith(self.only):
            return None
        number = self.calls[self.life]
        self.calls[self.life] += 1
        self.kinds[self.life].append(kind)
        if self.paused is not None and self.life == 1 and number == self.wakes:
            self._wake()
        if self.life >= len(self.points) or self.points[self.life][0] != number:
            return None
        fault = self.points[self.life][1]
        self.struck += 1
        if fault in (Fault.CRASH, Fault.CRASH_AFTER, Fault.LATE, Fault.PAUSE):
            self.life += 1
            self.calls.append(0)
            self.kinds.append([])
        if fault is Fault.PAUSE:
            self.paused = wire
        return fault

    def _wake(self) -> None:
        """Let the zombie go on, to its end, before the call that begins now."""
        if self.hub is None or self.paused is None:
            return
        for job in self.hub.jobs:
            if job.actor is self.paused.actor and job.paused:
                self.hub.wake(job)
        self.hub.turn()

    def delay(self, kind: Kind) -> float:
        """Calls that are on their way land just before their deadline."""
        return DEADLINE_S * 0.9 if kind is Kind.SEND else 1.0

    def pause(self) -> float | None:
        """Until somebody wakes it."""
        return None


@dataclass(frozen=True)
class Explored:
    """What an exploration found."""

    worlds: int
    violations: tuple[tuple[str, Violation], ...]
    doubted_most: int = 0
    slipped: int = 0


@dataclass(eq=False)
class World:
    """One world of the explorer: one partition, two minibatches, and a script of faults."""

    case: Case
    script: Script
    refused: frozenset[int] = frozenset()
    ended: bool = False
    broken: str | None = None

    def __post_init__(self) -> None:
        self.feed: Feed = feed(self.case.identities, 1, EVENTS, 6)
        self.hub = Hub()
        self.script.hub = self.hub
        self.cluster = Cluster(self.case, self.feed, self.hub, self.script)
        self.cluster.destination.refuses.update(self.refused)
        name = self.feed.partitions[0]
        self.minibatches: Minibatches = ({name: (0, EVENTS - 2)}, {name: (EVENTS - 2, EVENTS)})

    def run(self) -> Judgement:
        """Play it to its end and judge it."""
        try:
            self._play()
        except (Broken, Endless) as stop:
            self.broken = f"{type(stop).__name__}: {stop}"
        finally:
            self.hub.end()
        return judge(self.evidence())

    def _play(self) -> None:
        batch, starts = 0, 0
        while True:
            starts += 1
            if starts > STARTS_MAX:
                raise Endless("the query was started again and again")
            try:
                lead = self.cluster.start()
                while batch < len(self.minibatches):
                    ranges = self.minibatches[batch]
                    if batch == len(self.minibatches) - 1:
                        self._settle()
                    opening = self.cluster.drive(
                        lead, lambda b=batch: lead.driver.begin(self.cluster.query, b)
                    )
                    reports = Stage(self.cluster, lead, opening, ranges).run()
                    self.cluster.drive(lead, lambda o=opening, r=reports: lead.driver.end(o, r))
                    batch += 1
                    self.script.over = self.script.only == TASKS
                self._settle()
                for _ in range(3):
                    self.cluster.drive(lead, lead.driver.drain)
                self.ended = True
            except Stopped as stopped:
                if stopped.person:
                    self._settle()
                continue
            return

    def _settle(self) -> None:
        """Zombies wake, late calls land; then a person looks at what is held and decides."""
        self.script.wakes = None
        self.hub.settle()
        person = self.cluster.person()
        for key, row, _ in read_parked(person.scribe, SINK):
            if row.state not in (ParkedState.HELD, ParkedState.REJECTED):
                continue
            number = self.feed.numbers[row.scope, row.event]
            if row.state is ParkedState.REJECTED:
                self.cluster.destination.refuses.discard(number)
            there = self.cluster.destination.has(number)
            decision = ParkedState.DELIVERED if there else ParkedState.RESEND
            try:
                resolve(person.scribe, SINK, key, decision, "a person", "looked")
            except ConfigurationError:
                continue

    def evidence(self) -> Evidence:
        """Collect what is known of this world."""
        notes = [self.broken] if self.broken else []
        notes += [step[3] for step in self.cluster.story.steps if step[3] == TWIN_PASSED]
        return Evidence(
            self.case,
            self.feed,
            list(self.cluster.destination.seen()),
            self.cluster.parked(),
            ended=self.ended,
            refused=self.refused,
            disturbances=self.script.struck,
            notes=tuple(notes),
        )


@dataclass(eq=False)
class Explorer:
    """Tries every point of a case and keeps what is not allowed."""

    case: Case
    quick: bool = False
    refused: frozenset[int] = frozenset()
    worlds: int = 0
    doubted_most: int = 0
    slipped: int = 0
    found: list[tuple[str, Violation]] = field(default_factory=list)

    def explored(self) -> Explored:
        """Sum up."""
        return Explored(self.worlds, tuple(self.found), self.doubted_most, self.slipped)

    def try_world(self, script: Script, name: str) -> Script | None:
        """Play one world; None when the exploration is to stop."""
        judgement = World(self.case, script, self.refused).run()
        self.worlds += 1
        self.doubted_most = max(self.doubted_most, judgement.doubted)
        self.slipped += judgement.counts.get("slipped", 0)  # type: ignore[call-overload]
        for violation in judgement.violations:
            self.found.append((name, violation))
        return None if self.quick and self.found else script

    def crashes(self, only: str) -> None:
        """Every single crash point, and every second one in what follows it."""
        first = 0
        while True:
            points = ((first, Fault.CRASH),)
            script = self.try_world(Script(points, only=only), f"crash at {first}")
            if script is None or not script.struck:
                return
            for second in range(script.calls[1]):
                both = (*points, (second, Fault.CRASH))
                name = f"crash at {first}, then at {second}"
                if self.try_world(Script(both, only=only), name) is None:
                    return
            first += 1

    def zombies(self) -> None:
        """Every point at which an attempt can be paused, with every point at which it can come back."""
        first = 0
        while True:
            points = ((first, Fault.PAUSE),)
            script = self.try_world(Script(points, only=TASKS), f"pause at {first}")
            if script is None or not script.struck:
                return
            for at in range(script.calls[1]):
                name = f"pause at {first}, woken at {at}"
                if self.try_world(Script(points, wakes=at, only=TASKS), name) is None:
                    return
                both = (*points, (at, Fault.CRASH))
                name = f"pause at {first}, its replacement crashed at {at}"
                for wakes in (min(4, at), None):
                    if self.try_world(Script(both, wakes=wakes, only=TASKS), name) is None:
                        return
            first += 1

    def others(self) -> None:
        """Every other fault at every boundary, alone."""
        for fault in (Fault.CRASH_AFTER, Fault.LATE, Fault.LOST, Fault.TWIN, Fault.AWAY, Fault.CUT):
            clean = self.try_world(Script(), "nothing goes wrong")
            if clean is None:
                return
            for at, kind in enumerate(clean.kinds[0]):
                if not _possible(fault, kind):
                    continue
                if self.try_world(Script(((at, fault),)), f"{fault.value} at {at}") is None:
                    return


def _possible(fault: Fault, kind: Kind) -> bool:
    from semel.verify.faults import POSSIBLE

    return fault in POSSIBLE[kind]


def explore(case: Case, *, quick: bool = False, refused: frozenset[int] = frozenset()) -> Explored:
    """Try every crash point, pair of them, zombie and other fault of a case; `quick` stops at a violation."""
    explorer = Explorer(case, quick, refused)
    parts = (
        explorer.others,
        lambda: explorer.crashes(TASKS),
        lambda: explorer.crashes(DRIVERS),
        explorer.zombies,
    )
    for part in parts:
        part()
        if quick and explorer.found:
            break
    return explorer.explored()


def policies(case: Case) -> Iterator[Case]:
    """Give the case under every policy of doubt."""
    from dataclasses import replace

    for policy in OnDoubt:
        yield replace(case, on_doubt=policy)


def watched(jobs: list[Job]) -> list[str]:
    """Name the jobs that are still there."""
    return [job.title for job in jobs]
