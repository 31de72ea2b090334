"""A source, a sink and what decides when a minibatch begins, in simulated time.

Always true:
- one seed gives one run: arrivals and costs are drawn from it, and no clock is read;
- a minibatch takes everything that has arrived by its marker, up to a limit if the source has one,
  and minibatches run one by one;
- an event has its latency from its arrival until its whole minibatch is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from semel.streams import Choice, MarkerClock

TICK_S = 0.005
"""Arrivals are counted, and a clock in the source is asked, this often."""
SETTLED = 2
"""How many minibatches after a step may be late."""

Cost = Callable[[int, float], float]
"""What a minibatch of so many events takes, if it begins at that time."""


def linear(fixed_s: float, per_event_s: float, growth_s: float = 0.0) -> Cost:
    """A sink with a fixed part, a part per event, and one that grows with the square."""
    return lambda events, _: fixed_s + events * (per_event_s + events * growth_s)


@dataclass(frozen=True)
class ArrivalRates:
    """How many events arrive: phases of (seconds, events per second), and bursts.

    Attributes:
        bursts: the seconds at which so many events arrive at once.
    """

    phases: Sequence[tuple[float, float]]
    bursts: Sequence[tuple[float, int]] = ()

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        return sum(seconds for seconds, _ in self.phases)

    @property
    def steps(self) -> list[float]:
        """When the rate changes; a burst is not a step."""
        ends = np.cumsum([seconds for seconds, _ in self.phases])
        return [
            float(end)
            for end, (one, other) in zip(ends, pairwise(self.phases), strict=False)
            if one[1] != other[1]
        ]

    def arrivals(self, seed: int) -> npt.NDArray[Any]:
        """Return how many events have arrived by the end of each tick."""
        rng = np.random.default_rng(seed)
        counts = np.concatenate(
            [rng.poisson(rate * TICK_S, round(each / TICK_S)) for each, rate in self.phases]
        )
        for at, events in self.bursts:
            counts[round(at / TICK_S)] += events
        return np.cumsum(counts)


@dataclass(frozen=True)
class TimedMinibatch:
    """One minibatch that ran: `events` up to `marker`, delivered at `done`."""

    marker: float
    events: int
    done: float
    choice: Choice | None


@dataclass
class TimedRun:
    """What happened: the minibatches, and the latency of each event with its minibatch."""

    load: ArrivalRates
    minibatches: list[TimedMinibatch] = field(default_factory=list)
    latencies: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = field(default_factory=list)

    def unsettled(self) -> set[int]:
        """Return the minibatches that end first after each step."""
        markers = np.array([each.marker for each in self.minibatches])
        first = [int(np.searchsorted(markers, step)) for step in self.load.steps]
        return {at + more for at in first for more in range(SETTLED)}

    def quantile(self, share: float, *, settled: bool = True) -> float:
        """Return the latency that this share of the events has at most; with `settled`, without
        the minibatches after a step.
        """
        left_out = self.unsettled() if settled else set()
        kept = [each for at, each in enumerate(self.latencies) if at not in left_out]
        if not kept:
            return 0.0
        seconds = np.concatenate([each for each, _ in kept])
        counts = np.concatenate([each for _, each in kept])
        order = np.argsort(seconds)
        reached = np.cumsum(counts[order])
        return float(seconds[order][np.searchsorted(reached, share * reached[-1])])


class Pace(Protocol):
    """Decides when the next minibatch begins."""

    choice: Choice | None

    def next(self, world: KnownArrivals, ready: float) -> float | None:
        """Return the time of the next marker, not before `ready`; None if none comes any more."""

    def ran(self, minibatch: TimedMinibatch, total: int) -> None:
        """Learn what the last minibatch took."""


class KnownArrivals:
    """The arrivals of one run, as what decides can see them."""

    def __init__(self, load: ArrivalRates, seed: int) -> None:
        self.load = load
        self.arrived = load.arrivals(seed)
        self.taken = 0
        self.behind = False

    def total(self, now: float) -> int:
        """Return how many events have arrived by now."""
        tick = min(int(now / TICK_S + 1e-9), len(self.arrived))
        return int(self.arrived[tick - 1]) if tick else 0

    def first_after(self, now: float) -> float | None:
        """Return when an event is there that no minibatch has taken, not before now."""
        tick = int(np.searchsorted(self.arrived, self.taken, side="right"))
        if tick >= len(self.arrived):
            return None
        return max(now, (tick + 1) * TICK_S)


def simulate(
    load: ArrivalRates, cost: Cost, pace: Pace, seed: int = 1, limit: int | None = None
) -> TimedRun:
    """Run until every event that arrived is delivered; a minibatch takes at most `limit`."""
    world, run, ready = KnownArrivals(load, seed), TimedRun(load), 0.0
    while (marker := pace.next(world, ready)) is not None:
        came = world.total(marker)
        total = came if limit is None else min(came, world.taken + limit)
        first = int(np.searchsorted(world.arrived, world.taken, side="right"))
        last = int(np.searchsorted(world.arrived, total)) + 1
        upto = np.minimum(world.arrived[first:last], total)
        counts = np.diff(upto, prepend=world.taken)
        done = marker + cost(total - world.taken, marker)
        # An event may have come at the beginning of its tick.
        arrived = np.arange(first, last, dtype=np.float64) * TICK_S
        run.latencies.append((done - arrived, counts))
        ended = TimedMinibatch(marker, total - world.taken, done, pace.choice)
        run.minibatches.append(ended)
        world.taken, world.behind, ready = total, total < came, done
        pace.ran(ended, total)
    return run


class Fixed:
    """Spark's own trigger: a fixed interval, and no minibatch while nothing has come."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.choice: Choice | None = None
        self._last: float | None = None

    def next(self, world: KnownArrivals, ready: float) -> float | None:
        """As the trigger: at multiples of the interval, or as soon as the last one is done."""
        due = 0.0 if self._last is None else self._last + self.interval_s
        came = world.first_after(max(due, ready))
        if came is None:
            return None
        late = came > max(due, ready)
        beats = -(-came // self.interval_s) * self.interval_s
        self._last = beats if late else max(due, ready)
        return self._last

    def ran(self, minibatch: TimedMinibatch, total: int) -> None:
        """A trigger learns nothing."""


class PacedSource:
    """The marker clock over any source: what has arrived is seen only in a minibatch."""

    def __init__(self, clock: MarkerClock) -> None:
        self.clock = clock
        self.choice: Choice | None = None
        self._last = 0.0
        clock.arrived(0, 0.0)
        clock.marked(0.0)

    def next(self, world: KnownArrivals, ready: float) -> float | None:
        """After the interval; if nothing has come by then, with the first event."""
        self.choice = self.clock.choose(ready)
        if world.behind:
            return ready
        return world.first_after(max(self._last + self.choice.interval_s, ready))

    def ran(self, minibatch: TimedMinibatch, total: int) -> None:
        """Learn the rate and the cost."""
        self._last = minibatch.marker
        self.clock.arrived(total, minibatch.marker)
        self.clock.marked(minibatch.marker)
        self.clock.ran(minibatch.events, minibatch.done - minibatch.marker)


class InSource:
    """The marker clock in a source of its own, which sees what arrives."""

    def __init__(self, clock: MarkerClock) -> None:
        self.clock = clock
        self.choice: Choice | None = None
        self._asked = 0.0
        clock.arrived(0, 0.0)

    def next(self, world: KnownArrivals, ready: float) -> float | None:
        """Ask every tick whether a marker is due; arrivals are seen while a minibatch runs."""
        now = self._asked
        while True:
            now += TICK_S
            self.clock.arrived(world.total(now), now)
            if now >= ready and self.clock.due(now):
                break
            if now > world.load.seconds and world.first_after(now) is None:
                return None
        self._asked = now
        self.choice = self.clock.choose(now)
        self.clock.marked(now)
        return now

    def ran(self, minibatch: TimedMinibatch, total: int) -> None:
        """Learn the cost."""
        del total  # it was seen arriving
        self.clock.ran(minibatch.events, minibatch.done - minibatch.marker)


def best_fixed(
    load: ArrivalRates, cost: Cost, latency_s: float, seed: int = 1
) -> tuple[float, TimedRun] | None:
    """Return the fixed interval with the fewest minibatches whose p99 of all events is in time,
    chosen with hindsight, and its run; None if there is none.
    """
    best: tuple[float, TimedRun] | None = None
    for interval in np.arange(0.02, 1.0, 0.02) * latency_s:
        run = simulate(load, cost, Fixed(float(interval)), seed)
        in_time = run.quantile(0.99, settled=False) <= latency_s
        if in_time and (best is None or len(run.minibatches) < len(best[1].minibatches)):
            best = float(interval), run
    return best
