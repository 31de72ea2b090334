"""Chooses the identity of events from the user's parameters and the columns of the DataFrame.

Always true: nothing is guessed. Position is chosen without being named only if the plan shows that
the columns are the source's own; counted ids must be asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import ConfigurationError
from semel.events import (
    CHOICES,
    OFFSET,
    Identity,
    Named,
    Routing,
    column,
    given_named,
    implied,
    is_text,
    position_named,
)
from semel.spark.frames.plan import keeps_positions
from semel.spark.frames.repartition import BUCKET, refuse_kind
from semel.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POSITION = ("topic", "partition", OFFSET)


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


def _chosen(frame: DataFrame, named: Named) -> Identity:
    return implied(named) or _guessed(frame, named)


def _guessed(frame: DataFrame, named: Named) -> Identity:
    events = named.events()
    has_positions = set(POSITION) <= set(frame.columns)
    if events[:1] == (OFFSET,) and has_positions:
        return position_named(named)
    if events:
        return given_named(named)
    if has_positions and keeps_positions(frame, POSITION):
        return position_named(named)
    raise ConfigurationError(
        "no parameter says which rows are the same event after a replay. Pass " + CHOICES
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
