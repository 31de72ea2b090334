"""Benchmarks are drawn from what they printed: a bar a row, more is better, the goal shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.plots import Curve, bar_of, draw, draw_curves
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


CURVE = [
    {"what": "10", "x": 10, "CPU ms a minibatch": 2.0, "CPU ns an event": 200_000.0},
    {"what": "1,000", "x": 1_000, "CPU ms a minibatch": 4.0, "CPU ns an event": 2_000.0},
    {"what": "100,000", "x": 100_000, "CPU ms a minibatch": 20.0, "CPU ns an event": 20.0},
]


def test_a_curve_has_a_point_for_each_row_and_both_axes_are_logarithmic() -> None:
    curve = Curve.of("events of a minibatch", CURVE)
    assert curve.unit == "CPU ns an event"
    assert Curve.of("partitions", CURVE).unit == "CPU ms a minibatch"
    picture = ET.fromstring(draw_curves([curve]))
    spots = [each for each in picture.iter() if each.tag.endswith("circle")]
    x, y = ([float(each.get(name, "0")) for each in spots] for name in ("cx", "cy"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], rel=0.01)
    assert y[1] - y[0] == pytest.approx(y[2] - y[1], rel=0.01)
    assert y[0] < y[1] < y[2], "less is lower"


def test_the_command_draws_curves_and_prints_the_tables_of_a_benchmark(tmp_path: Path) -> None:
    given = tmp_path / "ledger.json"
    tables = {"size: few": [{"what": "position", "MB": 0.01}], "curve: partitions": CURVE}
    given.write_text(json.dumps({"benchmark": "ledger", "tables": tables}))
    command = [sys.executable, "-m", "benchmarks.plots", str(given), "--into", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    drawn = (tmp_path / "ledger.svg").read_text()
    assert drawn == draw_curves([Curve.of("partitions", CURVE)])
    printed = done.stdout.splitlines()
    assert printed[:4] == ["size: few:", "| what | MB |", "|---|--:|", "| position | 0.01 |"]
    assert "| 1,000 | 4 | 2,000 |" in printed
