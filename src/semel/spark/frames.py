"""Puts a micro-batch's frame into partitions and order, before anything is cut.

Always true: with entity buckets, one bucket is one task and stands in one total order, at any
setting of adaptive execution; with positions the source's own partitions are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import Counter, Given
from semel.spark import versions
from semel.spark.routing import numbered

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from semel.events import Identity
    from semel.events.routing import Routing

BUCKET = "__semel_bucket"


def arranged(
    frame: DataFrame,
    identity: Identity,
    buckets: int | None,
    routing: Routing | None = None,
    token: str = "",
) -> DataFrame:
    """Give the frame as tasks take it; with buckets, their number is the first column."""
    if buckets is None:
        return frame
    if not isinstance(identity, (Given, Counter)):
        raise AssertionError("only entities have buckets")  # noqa: TRY004 - nobody's mistake
    schema = frame.schema
    entity = _plain(schema, identity.entity)
    numbers = numbered(frame, entity, routing, buckets, BUCKET, token)
    bucketed = versions.in_buckets(numbers, buckets, BUCKET)
    return bucketed.sortWithinPartitions(
        *(_plain(schema, path) for path in _order(schema, identity))
    )


def plainly_named(frame: DataFrame) -> tuple[DataFrame, tuple[str, ...] | None]:
    """Give the frame and None; or under plain names, with its own beside, where it has names that
    `mapInArrow` takes for paths.
    """
    names = tuple(frame.columns)
    if not any("." in name or "`" in name for name in names):
        return frame, None
    return frame.toDF(*(f"_{place}" for place in range(len(names)))), names


def _order(schema: StructType, identity: Given | Counter) -> list[str]:
    """The columns of the total order: those of the identity, and where they can tie, all."""
    if isinstance(identity, Given):
        return identity.order()
    for field in schema:
        if _has_no_order(field.dataType):
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which has no order, "
                "and counted ids let every column decide ties: leave it out, or turn it into "
                f"array_sort(map_entries({field.name}))"
            )
    return list(dict.fromkeys([*identity.order_by, identity.entity, *schema.names]))


def _has_no_order(kind: DataType) -> bool:
    text = kind.simpleString()
    return "map<" in text or "variant" in text or text == "interval"


def _plain(schema: StructType, path: str) -> Column:
    """The column at `path`, a name or a dotted path, compared by its bytes if it is text."""
    from pyspark.sql import functions as sql

    names = _names(schema, path)
    column = sql.col(".".join(f"`{name.replace('`', '``')}`" for name in names))
    kind: Any = schema
    for name in names:
        kind = kind[name].dataType
    return versions.by_bytes(column, kind)


def _names(schema: StructType, path: str) -> list[str]:
    """The column at the beginning of a path, which may itself have dots, and the fields in it."""
    names = path.split(".")
    for count in range(len(names), 1, -1):
        if (outer := ".".join(names[:count])) in schema.names:
            return [outer, *names[count:]]
    return names
