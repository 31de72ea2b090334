"""Chooses what makes an event the same event, from what the user said and what the frame holds.

Always true: nothing is guessed. Position is taken by itself only where the plan shows that the
source's own columns come through; ids that semel counts have to be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Position, columns
from semel.events.routing import Routing
from semel.spark.plan import keeps_positions
from semel.spark.repartition import BUCKET, refuse_kind
from semel.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from semel.events import Identity

OFFSET = "offset"
POSITION = ("topic", "partition", OFFSET)
CHOICES = (
    'entity="customer", event="payment_id" where columns tell events apart; '
    'identity="position" where the frame keeps topic, partition and offset of its source; '
    'identity="counter" with entity="customer" where semel shall count (the checkpoint must then '
    "not be lost)"
)


@dataclass(frozen=True)
class Named:
    """What the user said about identity, word by word."""

    identity: str | Identity | None = None
    entity: str | None = None
    event: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    increasing: bool = False

    def events(self) -> tuple[str, ...]:
        """The event columns, one or several."""
        return _several(self.event)


def choose(frame: DataFrame, named: Named) -> Identity:
    """Give the identity, checked against the frame's columns. Raises `ConfigurationError`."""
    identity = _chosen(frame, named)
    _check(frame, identity)
    return identity


def require_order(frame: DataFrame, identity: Identity) -> None:
    """Refuse to promise an order that ids which are not integers cannot give."""
    if not isinstance(identity, Given) or identity.order_by:
        return
    rows = identity.stamper("").stamp(_nothing(frame))
    for path, ids in zip(identity.event, rows.ids, strict=True):
        if not pa.types.is_int64(ids.type):
            raise ConfigurationError(
                f"event column {path!r} is not a number, so it does not say which event of an "
                'entity comes first. Say order_by="created_at" (a column that does), or '
                "order=False where order does not matter"
            )


def refuse_routing(frame: DataFrame, identity: Identity, routing: object) -> None:
    """Refuse a routing that does not fit the entity's column."""
    if isinstance(routing, Routing) and isinstance(identity, Given | Counter):
        kind = columns.column(_nothing(frame), identity.entity).type
        refuse_kind(kind, routing, identity.entity)


def forms(frame: DataFrame, identity: Identity) -> dict[str, str]:
    """Give the form of each column that is an id: under another one it would be another event."""
    if not isinstance(identity, Given):
        return {}
    nothing = _nothing(frame)
    return {path: _form(columns.column(nothing, path).type) for path in identity.event}


def _form(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp without zone"
    if pa.types.is_date(kind):
        return "date"
    return "text" if columns.is_text(kind) else "integer"


def _chosen(frame: DataFrame, named: Named) -> Identity:
    if named.identity is None:
        return _guessed(frame, named)
    if not isinstance(named.identity, str):
        if isinstance(named.identity, (Position, Given, Counter)):
            _refuse_besides(named)
            return named.identity
        raise ConfigurationError(f"identity={named.identity!r} is none; it can be {CHOICES}")
    if named.identity == Position.kind:
        return _position(named)
    if named.identity == Given.kind:
        return _given(named)
    if named.identity == Counter.kind:
        return _counter(named)
    raise ConfigurationError(f"identity={named.identity!r} is none; it can be {CHOICES}")


def _guessed(frame: DataFrame, named: Named) -> Identity:
    events = named.events()
    has_positions = set(POSITION) <= set(frame.columns)
    if events[:1] == (OFFSET,) and has_positions:
        return _position(named)
    if events:
        return _given(named)
    if has_positions and keeps_positions(frame, POSITION):
        return _position(named)
    raise ConfigurationError(
        "nothing says what makes two rows the same event after a replay. Say " + CHOICES
    )


def _position(named: Named) -> Position:
    events = named.events()
    if events and events[0] != OFFSET:
        raise ConfigurationError(
            f"event={list(events)!r} with position identity: an event is its offset, and for "
            'several of one offset also an ordinal: event=["offset", "ordinal"]'
        )
    if named.increasing or named.order_by:
        raise ConfigurationError(
            "positions have an order of their own: leave order_by and increasing away"
        )
    return Position(ordinals=events[1:], entity=named.entity)


def _given(named: Named) -> Given:
    if named.entity is None or not named.events():
        raise ConfigurationError(
            'ids that columns give need both: entity="customer" (whose event it is) and '
            'event="payment_id" (unique for that entity, for ever)'
        )
    return Given(named.entity, named.events(), named.increasing, _several(named.order_by))


def _counter(named: Named) -> Counter:
    if named.entity is None or named.events():
        raise ConfigurationError(
            'identity="counter" counts the events of each entity: it needs entity="customer" and '
            "no event="
        )
    if named.increasing:
        raise ConfigurationError("counted ids increase by themselves: leave increasing away")
    return Counter(named.entity, _several(named.order_by))


def _refuse_besides(named: Named) -> None:
    if named.entity or named.events() or named.order_by or named.increasing:
        raise ConfigurationError(
            "identity= says it all: leave entity, event, order_by and increasing away, or out of it"
        )


def _check(frame: DataFrame, identity: Identity) -> None:
    """Let the identity look at a batch without rows: it refuses columns as it would with some."""
    for name in frame.columns:
        if frame.columns.count(name) > 1 or name == BUCKET:
            raise ConfigurationError(
                f"column {name!r} is there twice, or has a name that semel needs: rename it"
            )
    identity.stamper("").stamp(_nothing(frame))


def _nothing(frame: DataFrame) -> pa.RecordBatch:
    """A batch of the frame's columns without rows."""
    return pa.RecordBatch.from_pylist([], schema=arrow_schema(frame.schema))


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
