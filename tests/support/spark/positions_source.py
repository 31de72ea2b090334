"""A source of Kafka's shape in Python: topic, partition, offset, key, value from a table in a file.

The table is a JSON file {"topic": ..., "partitions": {"0": [[offset, key, value], ...]}}: a test
writes it, lets it grow, and leaves gaps in it. Offsets in the checkpoint look as Kafka's do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from support.spark.positions_table import SCHEMA


class Stretch(InputPartition):
    """Offsets [start, stop) of one partition."""

    def __init__(self, topic: str, partition: str, start: int, stop: int) -> None:
        super().__init__((topic, partition, start, stop))
        self.topic, self.partition, self.start, self.stop = topic, partition, start, stop


class PositionsSource(DataSource):
    """`spark.readStream.format("positions").option("table", path).option("limit", n)`."""

    @classmethod
    def name(cls) -> str:
        return "positions"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> PositionsReader:  # noqa: N802 - Spark's name
        return PositionsReader(self.options["table"], int(self.options.get("limit", "1000000")))


class PositionsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Moves every partition by up to `limit` offsets at a time."""

    def __init__(self, table: str, limit: int) -> None:
        self.table = table
        self.limit = limit
        self.target: dict[str, Any] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.target = self._read()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        table = self._read()
        return {table["topic"]: dict.fromkeys(table["partitions"], 0)}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        table = self.target or self._read()
        ends = {number: rows[-1][0] + 1 for number, rows in table["partitions"].items() if rows}
        begun = start[table["topic"]]
        moved = {
            number: min(ends.get(number, 0), begun.get(number, 0) + self.limit)
            for number in table["partitions"]
        }
        return {table["topic"]: {**begun, **moved}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found: list[InputPartition] = []
        for topic, ends in end.items():
            for number, stop in sorted(ends.items()):
                begin = start.get(topic, {}).get(number, 0)
                if begin < stop:
                    found.append(Stretch(topic, number, begin, stop))
        return found

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Stretch)
        number = partition.partition
        for offset, key, value in self._read()["partitions"][number]:
            if partition.start <= offset < partition.stop:
                yield partition.topic, int(number), offset, key, value

    def _read(self) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(Path(self.table).read_text())
        return table
