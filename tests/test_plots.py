"""Benchmarks are drawn from what they printed: a bar a row, more is better, the goal shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.plots import bar_of, draw
from benchmarks.rows import Comparison

ROOT = Path(__file__).parents[1]
APPEND = Comparison(
    "append; peer: Spark's JDBC <as it comes>", 300.0, 100.0, 3.1, (2.5, 3.5), "rows/s"
)
VISIBLE = Comparison("until visible, median, at 1,000 rec/s", 100.0, 500.0, 0.2, (0.1, 0.25), "ms")


def test_a_time_is_turned_round_so_that_more_is_better() -> None:
    bar = bar_of("kafka", VISIBLE)
    assert (bar.factor, bar.low, bar.high) == pytest.approx((5.0, 4.0, 10.0))


def test_a_goal_is_a_ratio_or_a_figure_of_semels_own() -> None:
    assert bar_of("postgres", APPEND).goal == 3.0
    assert bar_of("kafka", VISIBLE).goal == pytest.approx(500.0 / 200.0)
    assert bar_of("redis", APPEND).goal is None


def test_bars_are_as_long_as_their_ratios_and_names_are_escaped() -> None:
    twice = Comparison("twice", 2.0, 1.0, 2.0, (2.0, 2.0), "rows/s")
    thrice = Comparison("thrice < four", 3.0, 1.0, 3.0, (3.0, 3.0), "rows/s")
    picture = ET.fromstring(draw("redis", [twice, thrice]))
    parts = [(each.tag.rpartition("}")[2], each) for each in picture.iter()]
    widths = [float(each.get("width", "0")) for tag, each in parts if tag == "rect"][2:]
    assert widths[1] / widths[0] == pytest.approx(1.5, rel=0.01)
    assert "thrice < four" in [each.text for tag, each in parts if tag == "text"]


def test_the_command_draws_what_a_benchmark_printed(tmp_path: Path) -> None:
    given = tmp_path / "postgres-2026-11-18.json"
    given.write_text(json.dumps({"benchmark": "postgres", "rows": [APPEND.to_json()]}))
    command = [sys.executable, "-m", "benchmarks.plots", str(given), "--into", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert (tmp_path / "postgres.svg").read_text() == draw("postgres", [APPEND])
    line = "| append | Spark's JDBC <as it comes> | 300 | 100 rows/s | **3.10** | 2.50 - 3.50 | 3 |"
    assert done.stdout.splitlines() == [line]
