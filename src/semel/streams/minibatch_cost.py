"""What a minibatch costs, learned from minibatches that ran: seconds as a function of its events.

`fixed_s + per_event_s * n + growth_s * n * n`; the last part is 0 except for a sink that becomes
slower with the size of a minibatch.

Always true:
- the three parts are never negative, so a larger minibatch never costs less;
- a part that the measurements do not show is 0: one size of minibatch shows only a fixed part;
- sizes that have not been seen for a long time are remembered, but count less than recent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLOWER = 0.5
FASTER = 0.2
"""How much a new measurement moves a running average: a slower minibatch counts more, so that noise
raises the estimate and does not make events late."""
CHANGED = 1.5
"""A minibatch that took more than expected by this factor, or less, shows that the sink changed."""
CHANGED_S = 0.02
"""A smaller difference shows nothing."""
AGING = 0.97
"""How the weight of a size falls with each minibatch of another size."""
WEIGHT_MIN = 0.02
SPREAD = 2.0
"""Sizes that differ by less show only noise: no part is derived from their difference."""
ERROR_MAX = 0.05
"""A model that errs less, relative to the measurements, is not replaced by one with more parts."""


@dataclass
class _Size:
    """The running averages of the minibatches of one size: n to 1.4 n events."""

    events: float
    seconds: float
    age: int = 0

    def ran(self, events: int, seconds: float) -> None:
        share = SLOWER if seconds > self.seconds else FASTER
        # Both by one share: their ratio stays that of minibatches that ran.
        self.events += share * (events - self.events)
        self.seconds += share * (seconds - self.seconds)
        self.age = 0

    @property
    def weight(self) -> float:
        return max(WEIGHT_MIN, AGING**self.age)


class MinibatchCost:
    """Learns from `ran` and answers `of`; all of its state is in `dump`."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._parts = (0.0, 0.0, 0.0)

    @property
    def measured(self) -> bool:
        """Whether any minibatch was measured."""
        return bool(self._sizes)

    @property
    def fixed_s(self) -> float:
        """The part that does not depend on the events."""
        return self._parts[0]

    @property
    def per_event_s(self) -> float:
        """The part of each event."""
        return self._parts[1]

    @property
    def growth_s(self) -> float:
        """The part of each pair of events: above 0 for a sink that becomes slower with size."""
        return self._parts[2]

    @property
    def largest(self) -> float:
        """How many events the largest size that was measured has."""
        return max((size.events for size in self._sizes.values()), default=0.0)

    def of(self, events: float) -> float:
        """Return the seconds that a minibatch of `events` is expected to take."""
        fixed, per_event, growth = self._parts
        return fixed + events * (per_event + events * growth)

    def ran(self, events: int, seconds: float) -> None:
        """Learn from a minibatch. A negative or not finite measurement is ignored."""
        if events < 0 or not math.isfinite(seconds) or seconds < 0:
            return
        for size in self._sizes.values():
            size.age += 1
        known = self._sizes.get(_class_of(events))
        if known is None:
            self._sizes[_class_of(events)] = _Size(float(events), seconds)
        else:
            self._follow(known, events, seconds)
            known.ran(events, seconds)
        self._parts = _fitted(list(self._sizes.values()))

    def _follow(self, known: _Size, events: int, seconds: float) -> None:
        """If the sink became slower or faster, expect the same of every size, until it is measured
        again: an old measurement beside a new one would look like an effect of the size.
        """
        scale = self.of(events) / self.of(known.events) if self.of(known.events) else 1.0
        expected = known.seconds * scale
        if abs(seconds - expected) < CHANGED_S or min(seconds, expected) <= 0:
            return
        factor = seconds / expected
        if not 1 / CHANGED <= factor <= CHANGED:
            for size in self._sizes.values():
                size.seconds *= factor

    def dump(self) -> list[list[float]]:
        """Return what was learned, as plain numbers."""
        return [[size.events, size.seconds, size.age] for size in self._sizes.values()]

    def load(self, dumped: Sequence[Sequence[Any]]) -> None:
        """Continue with what `dump` returned; anything else is ignored."""
        sizes = {}
        for row in dumped:
            if len(row) != 3 or not all(_is_number(each) for each in row):
                continue
            events, seconds, age = float(row[0]), float(row[1]), int(row[2])
            sizes[_class_of(events)] = _Size(events, seconds, age)
        self._sizes = sizes
        if sizes:
            self._parts = _fitted(list(sizes.values()))


def _class_of(events: float) -> int:
    """Return the class of a size: two for each doubling."""
    return int(2 * math.log2(events)) if events > 1 else 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _fitted(sizes: Sequence[_Size]) -> tuple[float, float, float]:
    """Return the three parts that fit the measurements: the fewest parts that explain them.

    The error that is made small is relative to each measurement, because a minibatch of 0.1 s says
    as much about the fixed part as one of 10 s about the part per event.
    """
    scale = max(1.0, *(size.events for size in sizes))
    best: Mapping[int, float] = {}
    best_error = math.inf
    apart = max(size.events for size in sizes) >= SPREAD * min(size.events for size in sizes)
    for count in range(1, min(3, len(sizes)) + 1 if apart else 2):
        if best_error <= ERROR_MAX:
            break
        # With equal errors the first wins: a fixed part before one per event, before growth.
        for powers in combinations(range(3), count):
            found = _solved(sizes, powers, scale)
            error = math.inf if found is None else _error(sizes, found, scale)
            if found is not None and error < best_error * 0.7 - 1e-9:
                best, best_error = found, error
    return tuple(best.get(power, 0.0) / scale**power for power in range(3))  # type: ignore[return-value]


def _error(sizes: Sequence[_Size], parts: Mapping[int, float], scale: float) -> float:
    """Return the relative error of a model: the weighted root of the mean square."""
    total = weights = 0.0
    for size in sizes:
        x = size.events / scale
        expected = sum(part * x**power for power, part in parts.items())
        weights += size.weight
        total += size.weight * ((expected - size.seconds) / _least(size)) ** 2
    return math.sqrt(total / weights)


def _least(size: _Size) -> float:
    return max(size.seconds, 1e-3)


def _solved(
    sizes: Sequence[_Size], powers: tuple[int, ...], scale: float
) -> Mapping[int, float] | None:
    """Return the part of each power by weighted least squares; None if one would be negative, or
    if the sizes do not tell the parts apart.
    """
    count = len(powers)
    rows = [[0.0] * (count + 1) for _ in range(count)]
    for size in sizes:
        weight = size.weight / _least(size) ** 2
        terms = [(size.events / scale) ** power for power in powers]
        for row, term in zip(rows, terms, strict=True):
            for at, other in enumerate([*terms, size.seconds]):
                row[at] += weight * term * other
    solved = _eliminated(rows)
    if solved is None or any(part < 0 for part in solved):
        return None
    return dict(zip(powers, solved, strict=True))


def _eliminated(rows: list[list[float]]) -> list[float] | None:
    """Solve linear equations by elimination; None if they are degenerate."""
    count = len(rows)
    least = 1e-9 * max(abs(each) for row in rows for each in row[:count])
    for at in range(count):
        pivot = max(range(at, count), key=lambda row: abs(rows[row][at]))
        if abs(rows[pivot][at]) <= least:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(at + 1, count):
            share = rows[below][at] / rows[at][at]
            rows[below] = [
                one - share * two for one, two in zip(rows[below], rows[at], strict=True)
            ]
    found = [0.0] * count
    for at in reversed(range(count)):
        known = sum(rows[at][right] * found[right] for right in range(at + 1, count))
        found[at] = (rows[at][count] - known) / rows[at][at]
    return found
