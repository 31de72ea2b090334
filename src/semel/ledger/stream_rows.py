"""The rows of the room `streams` as values: what a stream keeps in the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from semel.ledger.payloads import LATER, Form, Row, Unfit, read_object

MARKERS_TABLE = "markers"


def _read_positions(value: Any, name: str) -> dict[str, int | str]:
    found = read_object(value, name)
    if not all(type(each) is int or type(each) is str for each in found.values()):
        raise Unfit(f"the field {name!r} must be an object of integers and texts")
    return found


_POSITIONS = Form(_read_positions)


@dataclass(frozen=True, slots=True)
class MarkerRow(Row):
    """One marker of a stream: where a minibatch ends in every input partition, and why there. Its
    key is the stream and the number of the marker.

    Attributes:
        positions: of every input partition, what it ends at, as the source writes it; empty if it
            is not known.
        interval_s: what the marker clock had chosen for the time since the marker before; 0 for
            the first marker of a start.
        rate: events per second, as the clock planned.
        reason: why the clock chose it, in words.
        at: when the marker was set, by the clock of its machine.
        events: how many events lie between the marker before and this one, if it is known.
        since_s: the time since the marker before, as it was.
        cost_s: what their minibatch took, until it was complete.
        minibatch: the minibatch that ends here, as text, if there is one.
    """

    TABLE = MARKERS_TABLE

    positions: Annotated[dict[str, int | str], _POSITIONS]
    interval_s: float
    rate: float
    reason: str
    at: float
    events: Annotated[int | None, LATER] = None
    since_s: Annotated[float | None, LATER] = None
    cost_s: Annotated[float | None, LATER] = None
    minibatch: Annotated[str | None, LATER] = None


@dataclass(frozen=True, slots=True)
class MarkerHead(Row):
    """The newest marker of a stream, and what its clock has learned. Its key is the stream.

    Attributes:
        number: of the newest marker; the first is 1.
        clock: the state of the marker clock, a full snapshot.
        application: the type of application, with its latency and safety in seconds and as a share.
        p50_s: estimate of the latency that half of the recent events had at most; None if it
            is not known.
        p99_s: the same for 99 of 100.
    """

    TABLE = MARKERS_TABLE

    number: int
    clock: dict[str, Any] = field(default_factory=dict)
    application: Annotated[str | None, LATER] = None
    latency_s: Annotated[float | None, LATER] = None
    safety: Annotated[float | None, LATER] = None
    p50_s: Annotated[float | None, LATER] = None
    p99_s: Annotated[float | None, LATER] = None
