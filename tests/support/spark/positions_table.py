"""The table that the source `positions` reads: a test writes it and lets it grow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

SCHEMA = "topic string, partition int, offset bigint, key string, value bigint"

Row = tuple[int, str, int]


def write_table(path: Path, partitions: Mapping[int, Sequence[Row]], topic: str = "t") -> None:
    """Write the table as a whole: whoever reads sees the old one or the new one."""
    rows = {str(number): list(each) for number, each in partitions.items()}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"topic": topic, "partitions": rows}))
    fresh.replace(path)
