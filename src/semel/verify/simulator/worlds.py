"""A world from one seed: a pipeline, its destinations, faults, decisions, and a verdict.

Always true:
- the same seed gives the same world and the same story, byte for byte, in any process;
- with `processes=0` nothing is forked or pickled: code that a test replaced is what runs.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING, Any

from semel.protocol import Capability, OnDoubt, OnReject
from semel.verify.simulator.cases import Case, Variant
from semel.verify.simulator.changes import Changes, rescales_most
from semel.verify.simulator.checker import Assessment, Category, Evidence, Verdict, judge
from semel.verify.simulator.cluster import Cluster
from semel.verify.simulator.destinations import Gateway
from semel.verify.simulator.fault_plan import RandomFaults
from semel.verify.simulator.inputs import Identities, cut, feed, tail_apart
from semel.verify.simulator.runner import Runner
from semel.verify.simulator.scheduler import Hub, require_greenlet

if TYPE_CHECKING:
    from semel.verify.simulator.destinations import SimulatedDestination

CHUNK = 100
"""The number of worlds that a process gets at a time."""
STORIES_MAX = 5
SHUT_S = (0.0, 0.0, 0.5, 8.0, 60.0, 900.0)
"""How long a gateway may refuse calls after a lost reply."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class WorldResult:
    """The result of a world."""

    seed: int
    case: Case
    verdict: Verdict
    counts: dict[str, int]
    violations: tuple[str, ...]
    doubted: int
    unreported: int
    faults: int
    turns: int
    story: tuple[str, ...] = ()


@dataclass
class Tally:
    """The counts of many worlds."""

    worlds: int = 0
    invalid: int = 0
    unknown: int = 0
    faults: int = 0
    doubted: int = 0
    unreported: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: WorldResult) -> None:
        """Count a world."""
        self.worlds += 1
        self.invalid += outcome.verdict is Verdict.INVALID
        self.unknown += outcome.verdict is Verdict.UNKNOWN
        self.faults += outcome.faults
        self.doubted += outcome.doubted
        self.unreported += outcome.unreported
        for category, times in outcome.counts.items():
            self.counts[category] = self.counts.get(category, 0) + times

    def merge(self, other: Tally) -> None:
        """Add other counts."""
        for name in ("worlds", "invalid", "unknown", "faults", "doubted", "unreported"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for category, times in other.counts.items():
            self.counts[category] = self.counts.get(category, 0) + times

    def of(self, category: Category) -> int:
        """Return how many events are in a category."""
        return self.counts.get(category.value, 0)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "worlds": self.worlds,
            "invalid": self.invalid,
            "unknown": self.unknown,
            "faults": self.faults,
            "events": sum(self.of(each) for each in Category if each is not Category.REORDERED),
            **{each.value.replace(" ", "_"): self.of(each) for each in Category},
            "doubted": self.doubted,
            "unreported": self.unreported,
        }


@dataclass
class Summary:
    """The counts of all worlds, in total and by capability and policy, and the invalid worlds."""

    total: Tally = field(default_factory=Tally)
    groups: dict[tuple[str, str], Tally] = field(default_factory=dict)
    invalid: list[WorldResult] = field(default_factory=list)

    def add(self, outcome: WorldResult) -> None:
        """Count a world."""
        self.total.add(outcome)
        case = outcome.case
        policy = case.on_doubt.value if case.capability is Capability.OPAQUE else "any"
        self.groups.setdefault((case.capability.value, policy), Tally()).add(outcome)
        if outcome.verdict is Verdict.INVALID and len(self.invalid) < STORIES_MAX:
            self.invalid.append(outcome)

    def merge(self, other: Summary) -> None:
        """Add the worlds of another process."""
        self.total.merge(other.total)
        for name, tally in other.groups.items():
            self.groups.setdefault(name, Tally()).merge(tally)
        self.invalid = sorted([*self.invalid, *other.invalid], key=lambda each: each.seed)
        del self.invalid[STORIES_MAX:]

    def capabilities(self) -> dict[str, Tally]:
        """Return the counts by capability, for all policies."""
        found: dict[str, Tally] = {}
        for (capability, _), tally in sorted(self.groups.items()):
            found.setdefault(capability, Tally()).merge(tally)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            **self.total.to_json(),
            "capabilities": {name: tally.to_json() for name, tally in self.capabilities().items()},
            "policies": {
                f"{capability}/{policy}": tally.to_json()
                for (capability, policy), tally in sorted(self.groups.items())
            },
            "seeds_of_invalid_worlds": [outcome.seed for outcome in self.invalid],
        }


def case_of(random: Random) -> Case:
    """Choose the pipeline and the destination of a world."""
    variant = random.choice((*Variant, Variant.OPAQUE, Variant.OPAQUE))
    policies = list(OnDoubt)
    return Case(
        variant,
        random.choice(policies),
        random.choice(list(OnReject)),
        random.choice(list(Identities)),
        partitions=random.choice((1, 1, 2)),
        window=random.choice((1, 2, 3)),
        span_chunks=random.choice((1, 2, 3)),
        remembers_s=60.0 if random.random() < 0.1 else 86_400.0,
        forgetful_probe=random.random() < 0.3,
    )


def _second(case: Case, more: Random) -> tuple[Case, ...]:
    """Choose a second sink of the pipeline, or none."""
    if more.random() < 0.6:
        return ()
    return (
        replace(
            case,
            name="second",
            variant=more.choice((*Variant, Variant.PLACES)),
            on_doubt=more.choice(list(OnDoubt)),
            on_reject=more.choice(list(OnReject)),
        ),
    )


def _isolates(case: Case) -> bool:
    """Whether an event that never gets an answer is parked alone; not if a policy repeats it."""
    if case.variant is Variant.PLACES or case.on_doubt in (OnDoubt.RESEND, OnDoubt.PROBE):
        return False
    return case.capability in (Capability.REPEATABLE, Capability.OPAQUE)


@dataclass(eq=False)
class SimulatedWorld:
    """The world of a seed."""

    seed: int

    def __post_init__(self) -> None:
        self.random = random = Random(self.seed)
        self.case = case_of(random)
        self.feed = feed(
            self.case.identities, self.case.partitions, random.randint(6, 14), random.randrange(24)
        )
        self.fault_plan = RandomFaults(
            random,
            rate=random.choice((0.0, 0.02, 0.05, 0.1)),
            left=random.choice((1, 2, 3, 6)),
            zombies=random.random() < 0.6,
            cuts=random.random() < 0.5,
        )
        self.hub = Hub(random)
        self.more = more = Random(f"{self.seed}: what came later")
        self.cases = (self.case, *_second(self.case, more))
        self.cluster = Cluster(
            self.cases,
            self.feed,
            self.hub,
            self.fault_plan,
            random,
            knows_the_dead=random.random() < 0.5,
        )
        self.changes = self._changes()
        self.runner = Runner(
            self.cluster,
            tail_apart(cut(self.feed, random.randint(1, 3), random), self.feed),
            random,
            loses=random.choice((0.0, 0.0, 0.3)),
            speculates=random.choice((0.0, 0.0, 0.5)),
            deaf=random.random() < 0.15,
            stops=self._stops(),
            quiet=self.stop_faults,
            changes=self.changes,
        )
        if random.random() < 0.3 and self.case.variant is not Variant.PLACES:
            numbers = [fact.number for fact in self.feed.facts]
            self.refused = frozenset(random.sample(numbers, random.randint(1, 2)))
        else:
            self.refused = frozenset()
        for case in self.cases:
            if case.variant is not Variant.PLACES:
                self._trouble(case, self.cluster.destinations[case.name])

    def _changes(self) -> Changes:
        """Choose the changes to the pipeline while it is stopped."""
        more, case = self.more, self.case
        second = self.cases[1].name if len(self.cases) > 1 else None
        joins, leaves = more.choice(((None, None), (second, None), (None, second)))
        releases = more.random() < 0.2
        rescales = 0
        if not releases and not case.identities.by_source and more.random() < 0.3:
            rescales = rescales_most({each.capability for each in self.cases})
        return Changes(self.cluster, more, joins, leaves, releases, rescales)

    def _stops(self) -> Random | None:
        """Choose whether the run is asked to stop now and then."""
        stops = Random(f"{self.seed}: orderly stops")
        return stops if stops.random() < 0.4 else None

    def _trouble(self, case: Case, destination: SimulatedDestination) -> None:
        """Choose what a destination refuses, and how."""
        more, numbers = self.more, [fact.number for fact in self.feed.facts]
        destination.refuses.update(self.refused)
        if more.random() < 0.3:
            destination.gateway = Gateway(self.hub, lambda: more.choice(SHUT_S))
        if more.random() < 0.4:
            destination.poison.update(self.refused)
        if _isolates(case) and more.random() < 0.15:
            destination.broken.add(more.choice(numbers))

    def stop_faults(self) -> None:
        """Stop all faults from now on; refused, broken and poison events stay so."""
        self.fault_plan.stop_faults()
        self.runner.stops = None
        for destination in self.cluster.destinations.values():
            if destination.gateway is not None:
                destination.gateway.quiet = True

    def run(self) -> Assessment:
        """Run the world to its end and check it, sink by sink."""
        notes = (*self.runner.play_out(), *self._doubted_for_nothing())
        assessment = judge(self._evidence(self.case, notes))
        for case in self.cases[1:]:
            assessment.merge(judge(self._evidence(case)), case.name)
        return assessment

    def _doubted_for_nothing(self) -> tuple[str, ...]:
        """Return the events that were in doubt in a world in which nothing failed: an orderly stop
        leaves none.
        """
        troubled = any(
            each.gateway is not None or each.broken or each.poison
            for each in self.cluster.destinations.values()
        )
        if troubled or self.fault_plan.struck or self.runner.speculates:
            return ()
        rows = (row for case in self.cases for row in self.cluster.parked(case.name))
        return tuple(
            f"event {row.event} of {row.entity} was in doubt although nothing failed ({row.why})"
            for row in rows
            if row.doubted
        )

    def _evidence(self, case: Case, notes: tuple[str, ...] = ()) -> Evidence:
        destination = self.cluster.destinations[case.name]
        return Evidence(
            case,
            self.feed,
            list(destination.seen()),
            self.cluster.parked(case.name),
            ended=self.runner.ended,
            refused=self.refused | destination.turned_away,
            disturbances=self.fault_plan.struck + self.cluster.attempts,
            generations=self.cluster.generation(),
            expired=case.remembers_s < 3600.0,
            notes=notes,
            required=self.changes.owed(case.name),
            gateway=destination.gateway is not None,
            broken=frozenset(destination.broken),
            poison=frozenset(destination.poison),
            drained=self.runner.ended and not self.runner.deaf and case.name in self.cluster.active,
        )


def run_world(seed: int, *, with_story: bool = False) -> WorldResult:
    """Run one world; the result has a story if the world is invalid or `with_story` is set."""
    world = SimulatedWorld(seed)
    with _logging_off():
        assessment = world.run()
    verdict = assessment.verdict
    story = world.cluster.story.lines() if with_story or verdict is Verdict.INVALID else []
    return WorldResult(
        seed,
        world.case,
        verdict,
        {category.value: times for category, times in assessment.counts.items()},
        tuple(str(violation) for violation in assessment.violations),
        assessment.doubted,
        assessment.unreported,
        world.fault_plan.struck,
        world.hub.turns,
        tuple(story),
    )


@contextmanager
def _logging_off() -> Iterator[None]:
    """Turn off semel's log: the faults of a world are planned."""
    log = logging.getLogger("semel")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def run_worlds(
    count: int, seed: int, processes: int = 0, progress: Progress = lambda _: None
) -> Summary:
    """Run many worlds and add them up; `progress` is called with the number of worlds just done.

    With `processes=0` they run in this process; other processes end at once on Ctrl-C. Raises
    `MissingExtra` without greenlet.
    """
    require_greenlet()
    seeds = [world_seed(seed, at) for at in range(count)]
    chunks = [seeds[at : at + CHUNK] for at in range(0, count, CHUNK)]
    summary = Summary()
    if not processes:
        for chunk in chunks:
            summary.merge(_run_chunk(chunk))
            progress(len(chunk))
        return summary
    with get_context("spawn").Pool(processes, _leave_interrupts_to_the_parent) as pool:
        for part in pool.imap_unordered(_run_chunk, chunks):
            summary.merge(part)
            progress(part.total.worlds)
    return summary


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C: the parent ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def world_seed(seed: int, at: int) -> int:
    """Return the seed of world number `at` of `seed`."""
    return seed * 1_000_000 + at


def _run_chunk(seeds: list[int]) -> Summary:
    summary = Summary()
    for seed in seeds:
        outcome = run_world(seed)
        if len(summary.invalid) >= STORIES_MAX:
            outcome = replace(outcome, story=())
        summary.add(outcome)
    return summary
