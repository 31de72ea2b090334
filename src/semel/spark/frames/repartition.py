"""Partitions and sorts the DataFrame of a micro-batch before it is cut into chunks.

Always true: with entity buckets, one bucket is one task in one total order, at any setting of
adaptive execution; with positions the source's own partitions stay unchanged.

The bucket of a row is the first column. By hash and by range Spark computes it; by directory the
rows pass through Python once, as Arrow batches, and each distinct entity is looked up once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semel.errors import ConfigurationError, SemelError
from semel.events import ByRange, is_text, places
from semel.spark import versions
from semel.spark.failures import marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from semel.events import Identity, Routing


BUCKET = "__semel_bucket"


def arranged(
    frame: DataFrame,
    identity: Identity,
    buckets: int | None,
    routing: Routing | None = None,
    token: str = "",
) -> DataFrame:
    """Return the DataFrame as tasks take it; with buckets, the bucket is the first column."""
    if buckets is None:
        return frame
    if identity.uses_source_partitions or identity.entity is None:
        raise AssertionError("only entities have buckets")
    schema = frame.schema
    entity = _plain(schema, identity.entity)
    numbers = numbered(frame, entity, routing, buckets, BUCKET, token)
    bucketed = versions.in_buckets(numbers, buckets, BUCKET)
    return bucketed.sortWithinPartitions(
        *(_plain(schema, path) for path in _order(schema, identity))
    )


def plainly_named(frame: DataFrame) -> tuple[DataFrame, tuple[str, ...] | None]:
    """Return the DataFrame and None; if it has column names that `mapInArrow` takes for paths, the
    DataFrame with plain names, and its own names.
    """
    names = tuple(frame.columns)
    if not any("." in name or "`" in name for name in names):
        return frame, None
    return frame.toDF(*(f"_{place}" for place in range(len(names)))), names


def _order(schema: StructType, identity: Identity) -> list[str]:
    """Return the columns of the total order: those of the identity, or all if those can tie."""
    for field in schema if identity.all_columns_break_ties else ():
        if _has_no_order(field.dataType):
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which has no order, "
                "and with counted ids every column decides ties: remove it, or convert it to "
                f"array_sort(map_entries({field.name}))"
            )
    return identity.order_columns(versions.arrow_schema(schema))


def _has_no_order(kind: DataType) -> bool:
    text = kind.simpleString()
    return "map<" in text or "variant" in text or text == "interval"


def _plain(schema: StructType, path: str) -> Column:
    """Return the column at `path`, a name or a dotted path; text is compared by its bytes."""
    from pyspark.sql import functions as sql

    names = _names(schema, path)
    column = sql.col(".".join(f"`{name.replace('`', '``')}`" for name in names))
    kind: Any = schema
    for name in names:
        kind = kind[name].dataType
    return versions.by_bytes(column, kind)


def _names(schema: StructType, path: str) -> list[str]:
    """Split a path into its column, whose name may contain dots, and the fields in it."""
    names = path.split(".")
    for count in range(len(names), 1, -1):
        if (outer := ".".join(names[:count])) in schema.names:
            return [outer, *names[count:]]
    return names


def numbered(
    frame: DataFrame,
    entity: Column,
    routing: Routing | None,
    partitions: int,
    name: str,
    token: str = "",
) -> DataFrame:
    """Return the DataFrame with the number of each row's partition as its first column `name`.

    `entity` is compared by its bytes if it is text. Runs on the driver and computes nothing yet.
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
    """Search the bounds with a tree of comparisons, of logarithmic depth."""
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
    """Look entities up in Python, batch by batch; columns have plain names on the way."""
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
    """Caches the results of a routing within one task."""

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
    """Raise `ConfigurationError` if bounds cannot be compared with the entity's column."""
    if not isinstance(routing, ByRange):
        return
    numeric = pa.types.is_integer(kind)
    if numeric != routing.is_numeric or not (numeric or is_text(kind)):
        bounds = "integers" if routing.is_numeric else "strings"
        raise ConfigurationError(
            f"partition_by=by_range: its bounds are {bounds}, and entity column {entity!r} is "
            f"{kind}: pass bounds of the column's type"
        )
