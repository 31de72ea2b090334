"""When a paced query does not wait: what a trigger says, and what Spark left behind."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from semel.delivery import limits_of
from semel.spark.frames.backlog import is_behind, trigger_seconds


@pytest.mark.parametrize(
    ("trigger", "seconds"),
    [
        ({}, 0.0),
        ({"processingTime": "10 seconds"}, 10.0),
        ({"processingTime": "1 minute 500 milliseconds"}, 60.5),
        ({"processingTime": "interval 2 hours"}, 7_200.0),
        ({"processingTime": "a while"}, math.inf),
        ({"availableNow": True}, math.inf),
        ({"once": True}, math.inf),
    ],
)
def test_the_interval_of_a_trigger_is_read(trigger: dict[str, Any], seconds: float) -> None:
    assert trigger_seconds(trigger) == seconds


@pytest.mark.rows("A3")
def test_a_full_micro_batch_of_a_limited_source_may_leave_input_behind() -> None:
    frame: Any = SimpleNamespace(inputFiles=lambda: ["a", "b"])
    assert not is_behind(frame, {}, {})
    assert is_behind(frame, limits_of({"maxFilesPerTrigger": "2", "path": "x"}), {})
    assert not is_behind(frame, limits_of({"maxFilesPerTrigger": "3"}), {})
    kafka = limits_of({"maxOffsetsPerTrigger": "100"})
    read = {"endOffset": '{"t":{"0":5}}', "latestOffset": '{"t":{"0":5}}'}
    assert is_behind(frame, kafka, {}), "nothing is known yet"
    assert not is_behind(frame, kafka, {"sources": [read]})
    assert is_behind(frame, kafka, {"sources": [read, {**read, "latestOffset": '{"t":{"0":9}}'}]})
    assert is_behind(frame, kafka, {"sources": [{**read, "latestOffset": "null"}]})
