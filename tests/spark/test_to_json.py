"""The JSON that Kafka records get, beside what Spark's own `to_json` makes of the same rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from semel.events.encoding import json_column
from support.spark.version_needs import require

SAME = {
    "an integer": "7",
    "a long": "9223372036854775807",
    "a boolean": "true",
    "a null": "cast(null as int)",
    "a double": "0.1D + 0.2D",
    "a NaN": "double('NaN')",
    "an infinity": "double('-Infinity')",
    "a decimal": "cast('12.30' as decimal(10,2))",
    "a small decimal": "cast('0.0000001' as decimal(20,10))",
    "a large decimal": "cast('12345678901234567890.123456789012345678' as decimal(38,18))",
    "a zero": "cast(0 as decimal(38,18))",
    "a text": r"""'a"b\\c\nd/é\u2028\u0001\u007f'""",
    "binary": "X'00ff10'",
    "a date": "date'2024-02-29'",
    "an interval": "interval '1 02:03:04.5' day to second",
    "a negative interval": "interval '-3 00:00:00.000001' day to second",
    "an interval of nothing": "interval '0 00:00:00' day to second",
    "an array": "array(1, null, 3)",
    "an array without a value": "cast(null as array<int>)",
    "an empty array": "cast(array() as array<int>)",
    "an array of decimals": "array(cast('1.50' as decimal(10,2)), null)",
    "an array of arrays": "array(array(X'ff'), array(), null)",
    "a struct": "struct(1 as a, cast('1.50' as decimal(10,2)) as b, cast(null as string) as c)",
    "a struct without a value": "cast(null as struct<a:int>)",
    "a struct of nulls": "struct(cast(null as int) as a)",
    "a field with quotes": 'struct(1 as `a"b`)',
    "a map": "map('a', 1, 'b', cast(null as int))",
    "an empty map": "cast(map() as map<string,int>)",
    "a key with quotes": "map('a\"b', 1)",
    "a map by integers": "map(1, 'x', 2, 'y')",
    "a map by booleans": "map(true, 1)",
    "a map by doubles": "map(1.0D, 1)",
    "a map by decimals": "map(cast('1.50' as decimal(10,2)), cast('2.50' as decimal(38,2)))",
    "maps in structs in arrays in maps": (
        "map('a', array(struct(map(1, cast('0.10' as decimal(9,2))) as m, date'2024-02-29' as d)))"
    ),
    "an interval in a struct": "struct(interval '1 00:00:00' day to second as i, X'ff' as b)",
}

OTHERWISE = {
    "a timestamp": ("timestamp'2024-02-29 12:30:45.123456Z'", '"2024-02-29T12:30:45.123456+00:00"'),
    "a whole timestamp": ("timestamp'2024-02-29 12:30:45Z'", '"2024-02-29T12:30:45+00:00"'),
    "a local timestamp": ("timestamp_ntz'2024-02-29 00:00:00.5'", '"2024-02-29T00:00:00.500000"'),
    "an interval of hours": ("interval '-5' hour", "\"INTERVAL '-0 05:00:00' DAY TO SECOND\""),
    "a map by dates": ("map(date'2024-02-29', 1)", '{"2024-02-29":1}'),
    "a map by intervals": (
        "map(interval '1' day, 1)",
        "{\"INTERVAL '1 00:00:00' DAY TO SECOND\":1}",
    ),
    "a map by binary": ("map(X'ff', 1)", '{"/w==":1}'),
    "a map by structs": ("map(struct(1 as a), 2)", '{"{\\"a\\":1}":2}'),
    "a large double": ("1e20D", "1e+20"),
    "a whole double": ("1.0D", "1"),
}
"""What docs/sinks/kafka.md says is written otherwise, and how."""


@pytest.fixture(scope="module")
def written(spark: SparkSession) -> dict[str, tuple[str, str]]:
    """Each case as Spark writes it, and as semel does: all in one row."""
    require("toArrow")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        cases = {**SAME, **{case: text for case, (text, _) in OTHERWISE.items()}}
        frame = spark.sql(
            "select " + ", ".join(f"{text} as `{case}`" for case, text in cases.items())
        )
        told = [
            f"to_json(struct(`{case}` as v), map('ignoreNullFields', 'false')) as `{case}`"
            for case in cases
        ]
        by_spark = frame.selectExpr(*told).collect()[0]
        ours = frame.toArrow().combine_chunks()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    return {
        case: (by_spark[case].removeprefix('{"v":').removesuffix("}"), _text(ours.column(case)))
        for case in cases
    }


def _text(column: pa.ChunkedArray) -> str:
    found = json_column(column.combine_chunks())[0].as_py()
    return "null" if found is None else str(found)


@pytest.mark.parametrize("case", SAME)
def test_json_is_as_spark_writes_it(written: dict[str, tuple[str, str]], case: str) -> None:
    by_spark, ours = written[case]
    assert ours == by_spark


@pytest.mark.parametrize("case", OTHERWISE)
def test_json_is_otherwise_where_sparks_says_less(
    written: dict[str, tuple[str, str]], case: str
) -> None:
    by_spark, ours = written[case]
    assert ours == OTHERWISE[case][1]
    assert ours != by_spark, "then it belongs to those that are the same"
    if "double" in case:
        assert json.loads(ours) == json.loads(by_spark)
