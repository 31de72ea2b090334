"""Decides where a micro-batch ends: sets markers when the clock says so, and takes what is due.

Always true:
- without a marker that is due there is no new data: `next` returns where the query stands;
- a micro-batch ends at a marker, except where a limit is smaller than what lies between two markers
  that were set before: then it ends between them;
- a marker is recorded before an offset names it; the first one of a number counts for all readers;
- events that depend on others (the children of a partition) are never in the same micro-batch as
  those, whichever query set the marker: the other query may have begun later, or stand further;
- a partition that was added is first in an offset with the position where it begins;
- a partition that ends before what was read of it is reported: the next events there would be taken
  for those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from semel.spark.sources.positions import Border, Offset, Positions, clip, count, later, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semel.runtime import Clock
    from semel.spark.sources.options import ReadingPlace as Start
    from semel.spark.sources.positions import Piece, Place
    from semel.streams import MarkerClock

LOOKS = 20
"""How often per planned latency the source is asked how much has arrived, within these bounds."""
LOOK_MIN_S, LOOK_MAX_S = 0.05, 1.0
POSITIONS_MAX = 500
"""How many positions an offset has at most for the markers inside its micro-batch."""
TRIES = 20
UNPACED = "a marker whenever Spark asks: no application and no latency is set"


@dataclass(frozen=True)
class Handoff:
    """Partitions that were added to a topic, while a producer may not know them yet.

    Attributes:
        since: when they were found, by the wall clock.
        seen: their ends, as they were before `after` was read.
        after: the ends of all other partitions: what has to be read before `seen`.
    """

    since: float
    seen: Positions
    after: Positions


@dataclass(frozen=True)
class Marker:
    """A marker in the stream: the end of every partition, and why it was set there.

    Attributes:
        events: how many events lie between the marker before and this one.
        handoff: partitions that were added; the marker is not taken together with another one.
    """

    number: int
    positions: Positions
    interval_s: float = 0.0
    rate: float = 0.0
    reason: str = ""
    at: float = 0.0
    events: int = 0
    handoff: Handoff | None = None


@dataclass(frozen=True)
class TriggerLimits:
    """How much one micro-batch takes at most; None means without a limit."""

    events: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Cut:
    """Where a marker may be set.

    Attributes:
        ends: the ends of the partitions, without what has to wait.
        held: whether what waits may follow in a micro-batch right after this one.
    """

    ends: Positions
    handoff: Handoff | None = None
    held: bool = False


class Stream(Protocol):
    """A stream with markers, as a reader sees it."""

    def ends(self) -> Positions:
        """Return the end of each partition that exists."""

    def begins(self, places: Sequence[Place]) -> Positions:
        """Return the first position that is kept of each of these partitions."""

    def cut(self, last: Marker, base: Positions, now: float) -> Cut:
        """Return where the marker after `last` may be set by who has read up to `base`."""

    def follows(self, last: Marker, marker: Marker) -> bool:
        """Whether a micro-batch that has the events of `last` may have those of `marker` too."""

    def together(self, start: Positions, end: Positions) -> Positions:
        """Return as much of a range as one micro-batch may have: without what has to follow."""

    def after(self, number: int, most: int) -> list[Marker]:
        """Return the first markers with greater numbers."""

    def put(self, marker: Marker, clock: MarkerClock) -> bool:
        """Record a marker; False if another reader has recorded one of that number."""

    def start(self, start: Start, *, default: str) -> Offset:
        """Return where a query or a batch begins. Raises `ConfigurationError` if it is gone."""

    def borders(self, start: Offset, stop: Positions) -> Offset:
        """Return the end of a batch, with the markers inside it."""

    def kept(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return what can be read. Raises `SemelError` if events are gone, unless that is
        allowed.
        """

    def lost(self, text: str) -> None:
        """Raise `SemelError`, or warn where going on without events is allowed."""

    def learned(self) -> Mapping[str, Any]:
        """Return what the marker clock had learned when the newest marker was set."""

    def newest(self) -> Marker | None:
        """Return the newest marker; None if there is none."""

    def register(self) -> None:
        """Keep events from now on until `completed`, if the stream has such a rule."""

    def completed(self, positions: Positions) -> None:
        """Learn that what is before these positions is not needed any more."""

    def bytes_per_event(self, start: Positions, end: Positions) -> float:
        """Return the mean size of the events between two positions, from a sample."""


@dataclass
class Marking:
    """The markers of one query that reads a stream. Runs in the process that Spark has for it.

    Attributes:
        paced: whether the clock says when a marker is due; otherwise it is whenever Spark asks.
        delay_s: the longest time between two markers while events wait; None is the clock's choice.
        target: with the trigger availableNow, where the query ends.
        known: the ends of the partitions when they were last asked for.
    """

    stream: Stream
    clock: MarkerClock
    limits: TriggerLimits
    time: Clock
    paced: bool = True
    delay_s: float | None = None
    target: Positions | None = None
    known: Positions = field(default_factory=dict, init=False)
    _handed: tuple[Offset, int, float] | None = field(default=None, init=False)
    _looked_at: float = field(default=-math.inf, init=False)
    _marked_at: float = field(default=-math.inf, init=False)
    _reported: set[Place] = field(default_factory=set, init=False)
    _hurry: bool = field(default=True, init=False)
    """Whether more is known to wait than was taken: the clock is not asked."""

    def next(self, start: Offset, *, limited: bool = True) -> Offset:
        """Return where the micro-batch after `start` ends; `start` itself if no marker is due."""
        now = self.time.monotonic()
        self._measure(start, now)
        if self.target is not None:
            self._require_reached(start.positions, self.target)
        if not (self._hurry or self.target is not None or self._due(start, now)):
            return start
        last, unread = self._unread(start)
        room = self._room(start.positions, self.limits if limited else TriggerLimits(), unread)
        known = len(unread) < POSITIONS_MAX  # otherwise there are more
        if not unread or (known and count(start.positions, unread[-1].positions) < room):
            unread = self._mark(start, last, unread, room, now)
        end = self._take(start, unread, room)
        if end is None:
            self._hurry = False
            return start
        if start.initial:
            end = replace(end, begin=start.positions)
        self._handed = (end, count(start.positions, end.positions), now)
        return end

    def _measure(self, start: Offset, now: float) -> None:
        """Learn what the last micro-batch took: Spark asks again when it is complete."""
        if self._handed is not None and start == self._handed[0]:
            _, events, at = self._handed
            self.clock.ran(events, now - at)
            self._handed = None

    def _due(self, start: Offset, now: float) -> bool:
        look_s = min(max(self.clock.planned_s / LOOKS, LOOK_MIN_S), LOOK_MAX_S)
        if now - self._looked_at >= look_s:
            self._looked_at = now
            self.known = self.stream.ends()
            self._require_reached(start.positions, self.known)
            self.clock.arrived(total(self.known), now)
        if not self.paced:
            return self.clock.waiting > 0
        late = self.delay_s is not None and now - self._marked_at >= self.delay_s
        return self.clock.due(now) or (late and self.clock.waiting > 0)

    def _require_reached(self, read: Positions, ends: Positions) -> None:
        """Report partitions that end before what was read of them, each once."""
        for place, at in read.items():
            if ends.get(place, at) < at and place not in self._reported:
                self._reported.add(place)
                self.stream.lost(
                    f"{place[0]}/{place[1]} ends at {ends[place]:,}, and {at:,} were read before: "
                    "it was restored from an older copy or recreated, or the query began beyond "
                    "the end. What comes now is not read before this offset: restore it, begin "
                    "with a new checkpoint, or set failOnDataLoss=false to wait"
                )

    def _unread(self, start: Offset) -> tuple[Marker, list[Marker]]:
        """Return the last marker that was passed, and the first ones that were not."""
        last = Marker(start.marker, start.positions)
        number = max(0, start.marker - 1)  # with the last one itself, for its handoff
        while True:
            found = self.stream.after(number, POSITIONS_MAX)
            passed = 0
            while passed < len(found) and not _moves(start.positions, found[passed]):
                passed += 1
            last = found[passed - 1] if passed else last
            if passed < len(found) or not found:
                return last, found[passed:]
            number = last.number

    def _room(self, start: Positions, limits: TriggerLimits, unread: list[Marker]) -> float:
        """Return how many events the micro-batch may have."""
        room = math.inf if limits.events is None else float(limits.events)
        if limits.bytes is not None:
            end = unread[-1].positions if unread else self.stream.ends()
            size = self.stream.bytes_per_event(start, later(start, end))
            room = min(room, max(1.0, limits.bytes // max(size, 1.0)))
        return room

    def _mark(
        self, start: Offset, last: Marker, unread: list[Marker], room: float, now: float
    ) -> list[Marker]:
        """Set a marker at the ends of the stream, if there is anything before it."""
        for _ in range(TRIES):
            newest = unread[-1] if unread else last
            base = later(start.positions, newest.positions)
            cut = self.stream.cut(newest, base, self.time.wall())
            ends = later(base, self._bounded(cut.ends))
            at = ends
            if not math.isinf(room):
                at = clip(base, ends, int(room) - count(start.positions, base))
            if count(base, at) == 0 and at.keys() == base.keys():
                self._hurry = False
                return unread
            self._hurry = at != ends or cut.held
            if self._set(newest.number + 1, base, at, cut.handoff, now):
                self.clock.arrived(total(ends), now)
                self.known = ends
                self.clock.marked(now)
                self._marked_at = now
            last, unread = self._unread(start)
            if self._marked_at == now:
                break
        return unread

    def _bounded(self, ends: Positions) -> Positions:
        """Return positions that are not behind the end of the query, if it has one."""
        target = self.target
        if target is None:
            return ends
        return {place: min(at, target[place]) for place, at in ends.items() if place in target}

    def _set(
        self, number: int, base: Positions, at: Positions, handoff: Handoff | None, now: float
    ) -> bool:
        marker = Marker(number, at, at=self.time.wall(), events=count(base, at), handoff=handoff)
        marker = replace(marker, reason=UNPACED)
        if self.paced:
            choice = self.clock.choose(now)
            marker = replace(
                marker, interval_s=choice.interval_s, rate=choice.rate, reason=choice.reason
            )
        return self.stream.put(marker, self.clock)

    def _take(self, start: Offset, unread: list[Marker], room: float) -> Offset | None:
        """Return the end of the micro-batch: as many whole markers as there is room for."""
        taken: list[Border] = []
        at, before = start.positions, None
        for marker in unread:
            full = later(at, marker.positions)
            whole = later(at, self._bounded(full))
            end = self._together(start.positions, whole)
            self._hurry = self._hurry or end != whole
            if before is not None and (
                end != whole
                or not self.stream.follows(before, marker)
                or (len(taken) + 1) * len(full) > POSITIONS_MAX
            ):
                self._hurry = True
                break
            if count(start.positions, end) > room:
                self._hurry = True
                end = clip(at, end, int(room)) if before is None else at
            if end != full:  # a limit, the end of the query or what has to follow is before it
                if end == at:
                    break
                number = start.marker if before is None else before.number
                return Offset(number, end, tuple(taken), marker.number)
            before, at = marker, end
            taken.append(Border(marker.number, end))
        if before is None:
            return None
        return Offset(before.number, at, tuple(taken[:-1]))

    def _together(self, start: Positions, end: Positions) -> Positions:
        """Return as much of a range as one micro-batch may have; what was added begins in the next
        one.
        """
        added = sorted(end.keys() - start.keys())
        if added:
            begins = self.stream.begins(added)
            end = {**end, **{at: min(end[at], begins.get(at, end[at])) for at in added}}
        return self.stream.together(start, end)


def _moves(positions: Positions, marker: Marker) -> bool:
    """Whether a marker has events, or a partition, that are not before these positions."""
    return any(at > positions.get(place, -1) for place, at in marker.positions.items())
