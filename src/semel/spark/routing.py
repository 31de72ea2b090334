"""Numbers the partition of each row, as its entity's routing says: the first column of the frame.

How a number becomes a task is the business of `frames`. By hash and by range Spark computes it; by
directory the rows pass Python once, as Arrow batches, and each distinct entity is looked up once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError, SemelError
from semel.events import columns
from semel.events.routing import ByRange, places
from semel.spark.failures import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from semel.events.routing import Routing


def numbered(
    frame: DataFrame,
    entity: Column,
    routing: Routing | None,
    partitions: int,
    name: str,
    token: str = "",
) -> DataFrame:
    """Give the frame with the number of each row's partition as its first column, called `name`.

    `entity` is compared by its bytes if it is text. Runs on the driver; nothing is computed yet.
    """
    from pyspark.sql import functions as sql

    if routing is None:
        number = sql.pmod(sql.xxhash64(entity.cast("string")), sql.lit(partitions))
    elif isinstance(routing, ByRange):
        kind = "bigint" if routing.is_numeric else "string"
        number = _below(entity.cast(kind), routing.bounds, 0)
    else:
        return _looked_up(frame, entity, routing, partitions, name, token)
    return frame.select(number.cast("int").alias(name), "*")


def _below(entity: Column, bounds: Sequence[Any], start: int) -> Column:
    """Search the bounds as a tree of comparisons: as deep as their number has digits in binary."""
    from pyspark.sql import functions as sql

    if not bounds:
        return sql.lit(start)
    middle = len(bounds) // 2
    left = _below(entity, bounds[:middle], start)
    right = _below(entity, bounds[middle + 1 :], start + middle + 1)
    return sql.when(entity < sql.lit(bounds[middle]), left).otherwise(right)


def _looked_up(
    frame: DataFrame, entity: Column, routing: Routing, partitions: int, name: str, token: str
) -> DataFrame:
    """Let Python look entities up, batch by batch; columns travel under plain names."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    names = frame.columns
    plain = frame.select(entity.cast("string"), "*").toDF(
        "entity", *(f"_{place}" for place in range(len(names)))
    )
    fields = [StructField("entity", IntegerType()), *plain.schema.fields[1:]]
    number = _looks_up(routing, partitions, token)
    return plain.mapInArrow(number, StructType(fields)).toDF(name, *names)


def _looks_up(
    routing: Routing, partitions: int, token: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = _Known(routing)
        for batch in batches:
            try:
                found = places(batch.column(0), partitions, known)
            except SemelError as error:
                raise marked(error, token) from None
            arrays = [pa.array(found, pa.int32()), *batch.columns[1:]]
            yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    return look_up


class _Known:
    """Remembers the answers of a routing, for one task."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._places: dict[str, int] = {}

    @property
    def partitions(self) -> int | None:
        return self._routing.partitions

    def place(self, entity: str, partitions: int) -> int:
        if entity not in self._places:
            self._places[entity] = self._routing.place(entity, partitions)
        return self._places[entity]

    def describe(self) -> dict[str, Any]:
        return self._routing.describe()


def refuse_kind(kind: pa.DataType, routing: Routing, entity: str) -> None:
    """Raise `ConfigurationError` where bounds cannot be compared with the entity's column."""
    if not isinstance(routing, ByRange):
        return
    numeric = pa.types.is_integer(kind)
    if numeric != routing.is_numeric or not (numeric or columns.is_text(kind)):
        bounds = "integers" if routing.is_numeric else "strings"
        raise ConfigurationError(
            f"partition_by=by_range: its bounds are {bounds}, and entity column {entity!r} is "
            f"{kind}: give bounds of the column's own kind"
        )
