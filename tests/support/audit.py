"""Reads an audit log as any reader of Parquet does, and checks it against what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from semel.sinks import AUDIT_SCHEMA

Name = tuple[str, str]
"""Entity and event, as texts."""


def audit_rows(folder: Path, pipeline: str) -> list[dict[str, Any]]:
    """Every row of a pipeline; none if it has no folder yet."""
    place = folder / pipeline
    if not place.exists() or not any(place.glob("day=*/*.parquet")):
        return []
    found: list[dict[str, Any]] = (
        ds.dataset(place, schema=AUDIT_SCHEMA, format="parquet").to_table().to_pylist()
    )
    return found


def audit_findings(folder: Path, pipeline: str, expected: Mapping[Name, str]) -> list[str]:
    """What is wrong: an event whose delivery has no row or more than one, or another outcome than
    is known. Rows of what was resolved later have no attempt.
    """
    rows = [row for row in audit_rows(folder, pipeline) if row["attempt"] is not None]
    counted = Counter((row["entity"], row["event"]) for row in rows)
    wrong = [f"{name} has {counted[name]} rows" for name in expected if counted[name] != 1]
    wrong += [
        f"{name} was not delivered, and has a row" for name in counted if name not in expected
    ]
    wrong += [
        f"{name} is {row['outcome']}, but should be {expected[name]}"
        for row in rows
        if (name := (row["entity"], row["event"])) in expected and row["outcome"] != expected[name]
    ]
    numbers = [(row["sink"], row["partition"], row["osn"]) for row in rows]
    wrong += [f"number {at} twice" for at, count in Counter(numbers).items() if count > 1]
    return wrong
