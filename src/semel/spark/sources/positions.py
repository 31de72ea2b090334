"""Where a micro-batch begins and ends: positions of partitions, and the markers between them.

Always true:
- an offset has everything that a replay needs: the position of every partition, the markers inside
  the micro-batch that ends here, and, if it is the first one, where that began. Neither the record
  of markers nor an option is read for a replay;
- positions are written as Spark's Kafka source writes its own: {"topic": {"0": 17}};
- a partition that was added first has a marker with the position where it begins, so one that only
  the end of a range names has no events in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Place = tuple[str, int]
"""A partition of a topic, or of an inbox's stream."""

Positions = dict[Place, int]
"""For each partition the position behind its last event."""


@dataclass(frozen=True)
class Border:
    """A marker: its number, and the positions before which its events are."""

    number: int
    positions: Positions


@dataclass(frozen=True)
class Offset:
    """The end of a micro-batch, as Spark keeps it in the checkpoint.

    Attributes:
        marker: the number of the last marker that was passed; 0 before the first.
        positions: what was read of each partition.
        borders: the markers inside the micro-batch that ends here, without the last one.
        into: the marker whose events were begun, if a limit ended the micro-batch before it.
        begin: where that micro-batch began, if it is the first of its query: the start is not
            recorded elsewhere. It counts only together with an `initial` start.
        initial: whether it is that start.
    """

    marker: int
    positions: Positions
    borders: tuple[Border, ...] = ()
    into: int | None = None
    begin: Positions | None = None
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into its checkpoint."""
        found: dict[str, Any] = {"marker": self.marker, "positions": nested(self.positions)}
        if self.borders:
            found["borders"] = [[each.number, nested(each.positions)] for each in self.borders]
        if self.into is not None:
            found["into"] = self.into
        if self.begin is not None:
            found["begin"] = nested(self.begin)
        if self.initial:
            found["initial"] = True
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Offset:
        """Read what `to_json` returned. Raises `ConfigurationError` for anything else."""
        try:
            return cls(
                int(found["marker"]),
                flat(found["positions"]),
                tuple(Border(int(n), flat(at)) for n, at in found.get("borders", ())),
                found.get("into"),
                flat(found["begin"]) if "begin" in found else None,
                bool(found.get("initial")),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"the checkpoint has the offset {found!r}, which this source did not write: it "
                "belongs to another source. Use another checkpointLocation"
            ) from None


@dataclass(frozen=True)
class Piece:
    """Positions [start, stop) of one partition.

    Attributes:
        cuts: where the events of each marker end, and its number; the last one is at `stop`. None
            for events that no marker ends yet.
    """

    topic: str
    partition: int
    start: int
    stop: int
    cuts: tuple[tuple[int, int | None], ...]

    def within(self, begin: int, end: int) -> Piece:
        """Return the part of it between two positions."""
        return replace(self, start=max(self.start, begin), stop=min(self.stop, end))


def pieces(start: Offset, end: Offset) -> list[Piece]:
    """Return what a micro-batch reads: one piece for each partition that moved."""
    return pieces_from(begins_of(start, end), end)


def begins_of(start: Offset, end: Offset) -> Positions:
    """Return where the micro-batch between two offsets begins."""
    return start.positions if end.begin is None or not start.initial else end.begin


def pieces_from(begins: Positions, end: Offset) -> list[Piece]:
    """Return what a micro-batch reads that begins at these positions."""
    into = end.into if end.into is not None else end.marker
    found = []
    for place, stop in sorted(end.positions.items()):
        begin = begins.get(place, stop)
        if begin < stop:
            cuts = _cuts(place, begin, stop, end.borders, into or None)
            found.append(Piece(*place, begin, stop, cuts))
    return found


def _cuts(
    place: Place, begin: int, stop: int, borders: tuple[Border, ...], last: int | None
) -> tuple[tuple[int, int | None], ...]:
    cuts: list[tuple[int, int | None]] = []
    for border in borders:
        at = min(border.positions.get(place, begin), stop)
        if at > begin:
            cuts.append((at, border.number))
            begin = at
    if begin < stop:
        cuts.append((stop, last))
    return tuple(cuts)


def total(positions: Positions) -> int:
    """Return the sum of all positions."""
    return sum(positions.values())


def count(start: Positions, end: Positions) -> int:
    """Return how many positions lie between two; a partition that went back counts as none."""
    return sum(max(0, stop - start.get(place, stop)) for place, stop in end.items())


def later(one: Positions, other: Positions) -> Positions:
    """Return the later position of each partition of both."""
    return {
        place: max(one.get(place, at), other.get(place, at))
        for place, at in {**one, **other}.items()
    }


def clip(start: Positions, end: Positions, room: int) -> Positions:
    """Return the end of at most `room` positions after `start`, shared by what each partition has
    waiting; at least one position moves.
    """
    waiting = {place: max(0, stop - start.get(place, stop)) for place, stop in end.items()}
    whole = sum(waiting.values())
    if whole <= room:
        return end
    moved = {place: each * room // whole for place, each in waiting.items()}
    left = max(1, room) - sum(moved.values())
    for place, each in sorted(waiting.items(), key=lambda item: -item[1]):
        if left > 0 and moved[place] < each:
            moved[place] += 1
            left -= 1
    return {place: start.get(place, stop) + moved[place] for place, stop in end.items()}


def nested(positions: Positions) -> dict[str, dict[str, int]]:
    """Return positions as Spark's Kafka source writes them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(partition)] = at
    return found


def flat(found: Mapping[str, Mapping[str, int]]) -> Positions:
    """Read what `nested` returned. Raises `ValueError` for anything else."""
    return dict(_flat(found))


def _flat(found: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[Place, int]]:
    for topic, partitions in found.items():
        for number, at in partitions.items():
            if type(at) is not int:
                raise ValueError(f"{at!r} is not a position")
            yield (topic, int(number)), at
