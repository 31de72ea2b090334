"""One bucket is one task, whatever adaptive execution does, by the means each version has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from semel.events import Counter, Given
from semel.spark.frames.repartition import BUCKET, arranged
from semel.spark.versions import in_buckets, installed, numbers, spark_hash
from support.spark.clusters import ADAPTIVE

ROWS = 4000
GIVEN = Given("customer", ("payment_id",))


@pytest.fixture(scope="module")
def adaptive(spark: SparkSession) -> SparkSession:
    """A session in which Spark joins small tasks and splits large ones."""
    apart = spark.newSession()
    for name, value in ADAPTIVE.items():
        apart.conf.set(name, value)
    return apart


def skewed(spark: SparkSession) -> DataFrame:
    """Payments: nine of ten are those of one customer."""
    whose = sql.expr("if(id % 10 = 0, concat('c', id), 'large')")
    pay = spark.range(0, ROWS, 1, 5).select(whose.alias("customer"), sql.col("id").alias("n"))
    return pay.withColumn("payment_id", sql.col("n"))


def joined(spark: SparkSession) -> DataFrame:
    """The same through a shuffled join whose keys are as skewed, and an aggregation."""
    names = skewed(spark).groupBy("customer").agg(sql.count("*").alias("count"))
    return skewed(spark).join(names, "customer")


def tasks_of(frame: DataFrame) -> list[tuple[int, list[int], int]]:
    """Give for each task its number, the buckets it holds and how many rows came to it."""
    rows = frame.mapInArrow(_told, "task int, buckets array<int>, rows bigint").collect()
    return [(row.task, row.buckets, row.rows) for row in rows]


def _told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context: Any = TaskContext.get()
    buckets: set[int] = set()
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        buckets.update(batch.column(BUCKET).to_pylist())
    if rows:
        found = {"task": [context.partitionId()], "buckets": [sorted(buckets)], "rows": [rows]}
        kinds = [("task", pa.int32()), ("buckets", pa.list_(pa.int32())), ("rows", pa.int64())]
        yield pa.RecordBatch.from_pydict(found, schema=pa.schema(kinds))


@pytest.mark.smoke
@pytest.mark.rows("S5", "A11")
@pytest.mark.parametrize("source", [skewed, joined])
def test_one_bucket_is_one_task_under_adaptive_execution_and_skew(
    adaptive: SparkSession, source: Any
) -> None:
    for count in (1, 2, 7, 32):
        found = tasks_of(arranged(source(adaptive), GIVEN, count))
        assert [buckets for _, buckets, _ in sorted(found)] == [[task] for task in range(count)]
        assert sum(rows for _, _, rows in found) == ROWS
        assert [task for task, _, _ in sorted(found)] == list(range(count))


def test_a_bucket_stands_in_one_order_under_adaptive_execution(adaptive: SparkSession) -> None:
    counted = arranged(skewed(adaptive), Counter("customer", ("n",)), 3)
    for rows in counted.select(BUCKET, "n").rdd.glom().collect():
        assert [row.n for row in rows] == sorted(row.n for row in rows)
        assert len({row[BUCKET] for row in rows}) == 1


@pytest.mark.smoke
def test_the_salt_puts_each_bucket_into_its_own_task_and_the_hash_is_sparks(
    adaptive: SparkSession,
) -> None:
    """Also on a Spark that has `repartitionById` itself: the ways are one."""
    values = [*range(-50, 50), 2**31 - 1, -(2**31), *range(10**6, 10**9, 10**8)]
    frame = adaptive.createDataFrame([(value,) for value in values], "v int")
    told = [row[0] for row in frame.select(sql.expr("hash(v)")).collect()]
    assert told == spark_hash(np.array(values)).tolist()

    class Older:
        """The frame as a Spark before 4.1 has it."""

        def __init__(self, frame: DataFrame) -> None:
            self.repartition = frame.repartition

    for count in (1, 3, 40):
        numbered = adaptive.range(0, 1000, 1, 4).select(
            sql.expr(f"cast(pmod(xxhash64(id), {count}) as int)").alias(BUCKET)
        )
        salted: Any = Older(numbered)
        for each in (in_buckets(salted, count, BUCKET), in_buckets(numbered, count, BUCKET)):
            found = sorted(tasks_of(each))
            assert [(task, buckets) for task, buckets, _ in found] == [
                (task, [task]) for task in range(count)
            ]


def test_the_versions_own_way_is_taken(adaptive: SparkSession) -> None:
    assert hasattr(adaptive.range(1), "repartitionById") == (numbers(installed()) >= (4, 1))
