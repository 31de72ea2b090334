"""Puts a micro-batch's frame into partitions and order, before anything is cut.

Always true: with entity buckets, one bucket is one task and stands in one total order, at any
setting of adaptive execution; with positions the source's own partitions are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Counter, Given

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from semel.events import Identity

BUCKET = "__semel_bucket"


def arranged(frame: DataFrame, identity: Identity, buckets: int | None) -> DataFrame:
    """Give the frame as tasks take it; with buckets, their number is the first column."""
    if buckets is None:
        return frame
    from pyspark.sql import functions as sql

    if not isinstance(identity, (Given, Counter)):
        raise AssertionError("only entities have buckets")  # noqa: TRY004 - nobody's mistake
    entity = _plain(frame, identity.entity).cast("string")
    number = sql.pmod(sql.xxhash64(entity), sql.lit(buckets)).cast("int")
    bucketed = frame.select(number.alias(BUCKET), "*").repartitionById(buckets, BUCKET)
    return bucketed.sortWithinPartitions(*(_plain(frame, path) for path in _order(frame, identity)))


def _order(frame: DataFrame, identity: Given | Counter) -> list[str]:
    """The columns of the total order: those of the identity, and where they can tie, all."""
    if isinstance(identity, Given):
        return identity.order()
    for name, kind in zip(frame.columns, [each.dataType for each in frame.schema], strict=True):
        if _has_no_order(kind):
            raise ConfigurationError(
                f"column {name!r} is {kind.simpleString()}, which has no order, and counted ids "
                f"let every column decide ties: leave it out, or turn it into "
                f"array_sort(map_entries({name}))"
            )
    return list(dict.fromkeys([*identity.order_by, identity.entity, *frame.columns]))


def _has_no_order(kind: DataType) -> bool:
    text = kind.simpleString()
    return "map<" in text or "variant" in text or text == "interval"


def _plain(frame: DataFrame, path: str) -> Column:
    """The column at `path`, a name or a dotted path, compared by its bytes if it is text."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType

    quoted = f"`{path}`" if path in frame.columns else ".".join(f"`{x}`" for x in path.split("."))
    column = sql.col(quoted)
    kind = frame.select(column).schema[0].dataType
    if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
        return sql.collate(column, "UTF8_BINARY")
    return column
