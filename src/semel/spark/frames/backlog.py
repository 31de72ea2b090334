"""When a paced query does not wait: Spark left input behind, or its own trigger is longer.

Always true: where it cannot be known whether input is left behind, it is taken to be.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from semel.delivery import FILES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

_UNITS = {
    "millisecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3_600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART = re.compile(r"([\d.]+)\s*([a-z]+?)s?(?=\s|\d|$)")


def trigger_seconds(trigger: Mapping[str, Any]) -> float:
    """Return the interval of a trigger of Spark: 0 for the default one, infinite for one with which
    the query ends by itself, or whose text is not understood.
    """
    if trigger.get("once") or trigger.get("availableNow"):
        return math.inf
    text = trigger.get("processingTime")
    if text is None:
        return 0.0
    written = str(text).lower().removeprefix("interval").strip()
    parts = _PART.findall(written)
    known = [float(number) * _UNITS[unit] for number, unit in parts if unit in _UNITS]
    return sum(known) if parts and len(known) == len(parts) else math.inf


def is_behind(frame: DataFrame, limits: Mapping[str, str], progress: Mapping[str, Any]) -> bool:
    """Whether Spark may have left input for the next micro-batch; `progress` is that of the
    micro-batch before, empty if there was none.
    """
    if not limits:
        return False
    if set(limits) == {FILES_LIMIT}:
        return len(frame.inputFiles()) >= int(limits[FILES_LIMIT])
    sources = progress.get("sources") or [{}]
    return any(
        not _is_position(source.get("latestOffset"))
        or source.get("latestOffset") != source.get("endOffset")
        for source in sources
    )


def _is_position(offset: object) -> bool:
    return offset not in (None, "", "null")
