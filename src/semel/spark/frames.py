"""Puts a micro-batch's frame into partitions and order, before anything is cut.

Always true: with entity buckets, one bucket is one task and stands in one total order, at any
setting of adaptive execution; with positions the source's own partitions are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import Counter, Given

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from semel.events import Identity

BUCKET = "__semel_bucket"


def arranged(frame: DataFrame, identity: Identity, buckets: int | None) -> DataFrame:
    """Give the frame as tasks take it; with buckets, their number is the first column."""
    if buckets is None:
        return frame
    from pyspark.sql import functions as sql

    if not isinstance(identity, (Given, Counter)):
        raise AssertionError("only entities have buckets")  # noqa: TRY004 - nobody's mistake
    schema = frame.schema
    entity = _plain(schema, identity.entity).cast("string")
    number = sql.pmod(sql.xxhash64(entity), sql.lit(buckets)).cast("int")
    bucketed = frame.select(number.alias(BUCKET), "*").repartitionById(buckets, BUCKET)
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


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """Give the columns as tasks get them. Raises `ConfigurationError` where one cannot travel."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise ConfigurationError(
            f"a column cannot travel as Arrow ({error}); leave it out or cast it"
        ) from None


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
    from pyspark.sql.types import StringType

    names = _names(schema, path)
    column = sql.col(".".join(f"`{name.replace('`', '``')}`" for name in names))
    kind: Any = schema
    for name in names:
        kind = kind[name].dataType
    if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
        return sql.collate(column, "UTF8_BINARY")
    return column


def _names(schema: StructType, path: str) -> list[str]:
    """The column at the beginning of a path, which may itself have dots, and the fields in it."""
    names = path.split(".")
    for count in range(len(names), 1, -1):
        if (outer := ".".join(names[:count])) in schema.names:
            return [outer, *names[count:]]
    return names
