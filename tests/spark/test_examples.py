"""The examples run as they are, on real Spark, and say what they say they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semel.verify.households import Household
from semel.verify.standalone import SMALL_JVM, spark_environment

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 300.0

SAYS = {
    "charges": [
        "after start 1: 5 charges of 5 payments",
        "after start 2: 5 charges of 5 payments",
        "events parked for another reason",
    ],
    "positions": [
        "10 readings in each of 2 partitions: 20 delivered",
        "checkpoint lost, 15 in each by now: 30 delivered",
    ],
    "counter": [
        "page a, window 1: 2 clicks",
        "page b, window 2: 1 clicks",
        "page a, window 3: 1 clicks",
    ],
    "batch": [
        "delivered now {'remind': 3}, again: False",
        "delivered now {'remind': 0}, again: True",
        "refused: pipeline 'reminders@2026-01-31'",
        "3 reminders in",
    ],
    "fan_out": ["archive: 6 orders", "mail: 5 orders", "events parked for another reason"],
    "own_sink": [
        "booked: {'c0': 18, 'c1': 22, 'c2': 26}",
        "checkpoint lost, read again: {'c0': 18, 'c1': 22, 'c2': 26}",
    ],
}


def test_every_example_is_run() -> None:
    assert {each.stem for each in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_did(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path / "out")]
    with Household("examples") as household:
        environment = spark_environment(household.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
        code = household.start(command, environment, log).wait(PATIENCE_S)
    said = log.read_text(errors="replace")
    assert code == 0, said
    for text in SAYS[name]:
        assert text in said
