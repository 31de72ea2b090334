"""Chooses the identity of events from the user's parameters and the columns of the DataFrame.

Always true: nothing is guessed. Position is chosen without being named only if the plan shows that
the columns are the source's own; counted ids must be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events import Counter, Given, Identity, Position, Routing, column, is_text
from semel.spark.frames.plan import keeps_positions
from semel.spark.frames.repartition import BUCKET, refuse_kind
from semel.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

OFFSET = "offset"
POSITION = ("topic", "partition", OFFSET)
CHOICES = (
    'entity="customer", event="payment_id" if columns identify an event; '
    'identity="position" if the DataFrame keeps topic, partition and offset of its source; '
    'identity="counter" with entity="customer" if semel should count events (the checkpoint must '
    "then not be lost)"
)


@dataclass(frozen=True)
class Named:
    """The user's parameters about identity."""

    identity: str | Identity | None = None
    entity: str | None = None
    event: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    increasing: bool = False

    def events(self) -> tuple[str, ...]:
        """Return the event columns, one or several."""
        return _several(self.event)


def choose(frame: DataFrame, named: Named) -> Identity:
    """Return the identity, checked against the columns. Raises `ConfigurationError`."""
    identity = _chosen(frame, named)
    _check(frame, identity)
    return identity


def require_order(frame: DataFrame, identity: Identity) -> None:
    """Refuse order without `order_by` if the ids are not integers."""
    identity.require_order(_nothing(frame))


def refuse_routing(frame: DataFrame, identity: Identity, routing: object) -> None:
    """Refuse a routing that does not fit the entity's column."""
    entity = None if identity.uses_source_partitions else identity.entity
    if isinstance(routing, Routing) and entity is not None:
        refuse_kind(column(_nothing(frame), entity).type, routing, entity)


def forms(frame: DataFrame, identity: Identity) -> dict[str, str]:
    """Return the form of each id column: with another form it would be another event."""
    if not identity.id_columns:
        return {}
    nothing = _nothing(frame)
    return {path: _form(column(nothing, path).type) for path in identity.id_columns}


def _form(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp without zone"
    if pa.types.is_date(kind):
        return "date"
    return "text" if is_text(kind) else "integer"


def implied(named: Named) -> Identity | None:
    """Return the identity that the parameters imply; None if the columns decide.

    Raises `ConfigurationError` for parameters that contradict each other.
    """
    if named.identity is None:
        events = named.events()
        return _given(named) if events and events[0] != OFFSET else None
    if not isinstance(named.identity, str):
        if isinstance(named.identity, Identity):
            _refuse_besides(named)
            return named.identity
        raise _unknown(named.identity)
    if named.identity == Position.kind:
        return _position(named)
    if named.identity == Given.kind:
        return _given(named)
    if named.identity == Counter.kind:
        return _counter(named)
    raise _unknown(named.identity)


def _chosen(frame: DataFrame, named: Named) -> Identity:
    return implied(named) or _guessed(frame, named)


def _unknown(identity: object) -> ConfigurationError:
    return ConfigurationError(
        f"unknown identity {identity!r}; use 'position', 'given' or 'counter': {CHOICES}"
    )


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
        "no parameter says which rows are the same event after a replay. Pass " + CHOICES
    )


def _position(named: Named) -> Position:
    events = named.events()
    if events and events[0] != OFFSET:
        raise ConfigurationError(
            f"event={list(events)!r} with position identity: an event is identified by its "
            'offset, or by offset and ordinal: event=["offset", "ordinal"]'
        )
    if named.increasing or named.order_by:
        raise ConfigurationError(
            "position identity orders events by offset: remove order_by and increasing"
        )
    return Position(ordinals=events[1:], entity=named.entity)


def _given(named: Named) -> Given:
    if named.entity is None or not named.events():
        raise ConfigurationError(
            'given identity needs both entity="customer" (whose event it is) and '
            'event="payment_id" (unique for that entity, never reused)'
        )
    return Given(named.entity, named.events(), named.increasing, _several(named.order_by))


def _counter(named: Named) -> Counter:
    if named.entity is None or named.events():
        raise ConfigurationError(
            'identity="counter" counts the events of each entity: pass entity="customer" and '
            "remove event="
        )
    if named.increasing:
        raise ConfigurationError("counted ids always increase: remove increasing")
    return Counter(named.entity, _several(named.order_by))


def _refuse_besides(named: Named) -> None:
    if named.entity or named.events() or named.order_by or named.increasing:
        raise ConfigurationError(
            "an identity object already names entity, event, order_by and increasing: remove these "
            "parameters"
        )


def _check(frame: DataFrame, identity: Identity) -> None:
    """Let the identity stamp an empty batch: it refuses columns as it would with rows."""
    for name in frame.columns:
        if frame.columns.count(name) > 1 or name == BUCKET:
            raise ConfigurationError(
                f"column {name!r} is there twice, or its name is reserved for semel: rename it"
            )
    identity.stamper("").stamp(_nothing(frame))


def _nothing(frame: DataFrame) -> pa.RecordBatch:
    """Return an empty batch with the DataFrame's columns."""
    return pa.RecordBatch.from_pylist([], schema=arrow_schema(frame.schema))


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
