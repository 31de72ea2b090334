"""The marker clock: chooses when the next minibatch begins, so that its events arrive in time.

A marker is the place in the input where one minibatch ends and the next begins. An event that
arrives just after a marker waits for the next one, then for its minibatch:
`interval + fixed_s + per_event_s * rate * interval` seconds. The clock chooses the longest interval
for which this is at most `safety * latency_s`, and which is not shorter than a minibatch takes.

Always true:
- time is passed in, as seconds of one clock; nothing here reads a clock or waits;
- a minibatch has at most `GROWTH` times as many events as the largest that was measured, except
  where that would make it shorter than a minibatch takes: a cost is not extrapolated further;
- the whole state is in `dump`, so that a restart continues with what was learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.streams.minibatch_cost import MinibatchCost

if TYPE_CHECKING:
    from collections.abc import Mapping

GROWTH = 2.0
SMOOTHING = 0.3
"""How much a new measurement moves the running average of the rate, if it is not a step."""
STEP = 1.5
"""A rate that changes by more than this factor is a step, and is followed at once."""
UNKNOWN_SHARE = 0.5
"""Before anything is measured, the interval is this share of the time that is planned."""


@dataclass(frozen=True, slots=True)
class Application:
    """A type of application: how soon its events must be delivered.

    Attributes:
        latency_s: from the arrival of an event at the source until it is delivered.
        safety: the share of the latency that is planned; the rest is for what is not measured.
    """

    name: str
    latency_s: float
    safety: float

    def __post_init__(self) -> None:
        _require(self.latency_s, "latency_s must be a number of seconds above 0", math.inf)
        _require(self.safety, "safety must be above 0 and at most 1", 1.0)

    @classmethod
    def of(cls, name: str, latency_s: float | None = None) -> Application:
        """Return the application of that name, with another latency if one is given. Raises
        `ConfigurationError`.
        """
        known = APPLICATIONS.get(name) if isinstance(name, str) else None
        if known is None:
            raise ConfigurationError(
                f"unknown application {name!r}; use one of {', '.join(APPLICATIONS)}"
            )
        return known if latency_s is None else replace(known, latency_s=latency_s)


def _require(value: object, what: str, most: float) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 < number <= most or math.isinf(number):
        raise ConfigurationError(f"{what}, got {value!r}")


APPLICATIONS = {
    each.name: each
    for each in (
        Application("alerts", 1.0, 0.7),
        Application("payments", 5.0, 0.8),
        Application("dashboard", 10.0, 0.8),
        Application("etl", 60.0, 0.9),
        Application("archive", 600.0, 0.9),
    )
}
"""The types of application, with their defaults."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the clock chose, and why.

    Attributes:
        rate: events per second that are planned for.
        cost_s: what the next minibatch is expected to take, and what a crash costs to do again.
        reachable: whether the latency that is required can be reached.
    """

    interval_s: float
    rate: float
    reason: str
    fixed_s: float
    per_event_s: float
    cost_s: float
    reachable: bool


class MarkerClock:
    """Learns the rate and the cost of minibatches, and says when the next marker is due."""

    def __init__(self, application: Application | str, latency_s: float | None = None) -> None:
        if isinstance(application, str):
            application = Application.of(application, latency_s)
        elif latency_s is not None:
            application = replace(application, latency_s=latency_s)
        self.application = application
        self._cost = MinibatchCost()
        self._average: float | None = None
        self._before = 0.0
        self._total: int | None = None
        self._marked_total = 0
        self._marked_at: float | None = None
        self._marked_cost = 0.0
        self._looked_at: float | None = None
        self._waiting_since: float | None = None

    @property
    def planned_s(self) -> float:
        """The time that an event may take: `safety * latency_s`."""
        return self.application.safety * self.application.latency_s

    @property
    def waiting(self) -> int:
        """How many events have arrived since the last marker, as far as is known."""
        return 0 if self._total is None else self._total - self._marked_total

    @property
    def rate(self) -> float:
        """The rate that is planned for: the higher one of the last two, so that a burst that
        ended in the middle of an interval is not forgotten with the next.
        """
        return max(self._average or 0.0, self._before)

    def arrived(self, total: int, now: float) -> None:
        """Learn how many events have arrived in all since the source began. A smaller number than
        before means that the source began again.
        """
        if self._total is None or total < self._total:
            self._marked_total = total if self._total is None else 0
        if self._waiting_since is None and total > self._marked_total:
            # They may have arrived just after the last look.
            self._waiting_since = now if self._looked_at is None else self._looked_at
        self._total = total
        self._looked_at = now

    def ran(self, events: int, seconds: float) -> None:
        """Learn what a minibatch took, from its marker until it was complete, sinks included."""
        self._cost.ran(events, seconds)
        self._marked_cost = min(self._marked_cost, seconds)  # it is done, whatever was expected

    def marked(self, now: float) -> None:
        """Learn that a marker was set now, after all events that have arrived."""
        events = self.waiting
        if self._waiting_since is not None and now > self._waiting_since:
            self._follow(events, now - self._waiting_since)
        elif self._marked_at is not None and now > self._marked_at:
            self._follow(0, now - self._marked_at)
        self._marked_total += events
        self._marked_at = self._looked_at = now
        self._marked_cost = self._cost.of(events)
        self._waiting_since = None

    def _follow(self, events: int, seconds: float) -> None:
        """Move the rate: at once if it is a step that chance does not explain, else slowly."""
        now, known = events / seconds, self._average
        if known is None:
            self._average = self._before = now
            return
        self._before = known
        expected = known * seconds
        by_chance = abs(events - expected) <= 4.0 * math.sqrt(max(expected, 1.0))
        if by_chance or max(now, known) <= STEP * min(now, known):
            self._average = known + SMOOTHING * (now - known)
        else:
            self._average = now

    def due(self, now: float) -> bool:
        """Whether a marker is due: never while nothing has arrived since the last one.

        The interval is counted from the first event that waits, and is cut short if more events
        came than were expected.
        """
        if self._waiting_since is None:
            return False
        if self._marked_at is not None and now < self._marked_at + self._marked_cost:
            return False  # the minibatch of the last marker is still being delivered
        waited = now - self._waiting_since
        if self._cost.measured and (
            waited + self._cost.of(self.waiting) >= self.planned_s
            or self.waiting >= GROWTH * max(1.0, self._cost.largest)
        ):
            return True
        return waited >= self.choose(now).interval_s

    def choose(self, now: float | None = None) -> Choice:
        """Return the interval from one marker to the next, as of what is known now."""
        del now  # the choice follows from what was learned
        cost, rate, planned = self._cost, self.rate, self.planned_s
        if not cost.measured:
            return self._choice(planned * UNKNOWN_SHARE, "no minibatch has been measured yet")
        growth, slope = cost.growth_s * rate * rate, cost.per_event_s * rate
        in_time = _roots(growth, slope + 1.0, cost.fixed_s - planned)[1]
        least, most = _roots(growth, slope - 1.0, cost.fixed_s)
        if least > most:
            why = f"the sink cannot keep up with {_rate(rate)}; minibatches run without a pause"
            return self._choice(cost.fixed_s, why, reachable=False)
        if in_time < least:
            return self._without_pause(least)
        # Beyond the middle a minibatch that is late for any reason makes the next one larger by
        # more than the pause that is left, and the sink falls behind.
        stable = (least + most) / 2
        interval = min(in_time, stable)
        why = f"the longest interval that delivers within {_seconds(planned)}"
        if stable < in_time:
            why = "the sink is slower with more events, and keeps up with minibatches of this size"
        careful = GROWTH * max(1.0, cost.largest) / rate if rate > 0 else math.inf
        if max(careful, least) < interval:
            interval = max(careful, least)
            why = f"the largest minibatch so far had {cost.largest:,.0f} events; growing in steps"
        return self._choice(interval, why)

    def _without_pause(self, least: float) -> Choice:
        """Return the shortest interval that the sink keeps up with: longer than what is planned."""
        takes, wanted = least + self._cost.of(self.rate * least), self.application.latency_s
        why = f"at {_rate(self.rate)} an event takes {_seconds(takes)} at best"
        if takes <= wanted:
            why += "; minibatches run without a pause, and nothing is left for what is not measured"
            return self._choice(least, why)
        why = f"{_seconds(wanted)} cannot be reached: {why}; minibatches run without a pause"
        return self._choice(least, why, reachable=False)

    def _choice(self, interval: float, why: str, *, reachable: bool = True) -> Choice:
        cost, rate, application = self._cost, self.rate, self.application
        takes = cost.of(rate * interval)
        known = ""
        if cost.measured:
            parts = [_seconds(cost.fixed_s)]
            parts += [f"{_seconds(cost.per_event_s)} per event"] if cost.per_event_s else []
            parts += ["more for large minibatches"] if cost.growth_s else []
            known = f"; {_rate(rate)}, and a minibatch takes {' + '.join(parts)}"
        reason = (
            f"a marker every {_seconds(interval)}: {why} ({application.name}, "
            f"{application.safety:.0%} of {_seconds(application.latency_s)}){known}"
        )
        return Choice(
            interval, rate, reason, cost.fixed_s, cost.per_event_s, takes, reachable=reachable
        )

    def dump(self) -> dict[str, Any]:
        """Return what was learned, as plain values for one row; times are not part of it."""
        return {"rate": self._average, "before": self._before, "cost": self._cost.dump()}

    def load(self, dumped: Mapping[str, Any]) -> None:
        """Continue with what `dump` returned; a value that cannot be used is left out."""
        rate, before, cost = (dumped.get(name) for name in ("rate", "before", "cost"))
        if isinstance(rate, int | float) and math.isfinite(rate) and rate >= 0:
            self._average = self._before = float(rate)
            if isinstance(before, int | float) and math.isfinite(before) and before >= 0:
                self._before = float(before)
        if isinstance(cost, list):
            self._cost.load([row for row in cost if isinstance(row, list)])


def _roots(square: float, linear: float, constant: float) -> tuple[float, float]:
    """Return the least and the greatest interval I >= 0 with `square * I^2 + linear * I + constant
    <= 0`; (inf, -inf) if there is none. `square` is not negative.
    """
    if square <= 1e-18:
        if linear == 0:
            return (0.0, math.inf) if constant <= 0 else (math.inf, -math.inf)
        at = -constant / linear
        if linear > 0:
            return (0.0, at) if at >= 0 else (math.inf, -math.inf)
        return max(0.0, at), math.inf
    inside = linear * linear - 4 * square * constant
    if inside < 0:
        return math.inf, -math.inf
    # The root without cancellation first; the other follows from the product of both.
    far = -(linear + math.copysign(math.sqrt(inside), linear)) / 2
    one, two = far / square, (constant / far if far else 0.0)
    least, most = min(one, two), max(one, two)
    return (max(0.0, least), most) if most >= 0 else (math.inf, -math.inf)


def _seconds(value: float) -> str:
    """Write a duration in the unit that fits: 1.4 s, 24 ms, 3.1 us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size * 0.1 or value == 0:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def _rate(value: float) -> str:
    return f"{value:,.0f} events/s" if value >= 10 else f"{value:.2g} events/s"
