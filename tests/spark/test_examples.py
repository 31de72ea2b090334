"""The examples run as they are, on real Spark, and say what they say they do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from semel.verify.demo.standalone import SMALL_JVM, spark_environment
from semel.verify.process_group import ProcessGroup
from support.spark.version_needs import require

EXAMPLES = Path(__file__).parents[2] / "examples"
START = Path(__file__).parents[2] / "docs" / "start.md"
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
        "page a, update 1: 2 clicks",
        "page b, update 2: 2 clicks",
        "page b, update 3: 3 clicks",
        "page a, update 2: 3 clicks",
    ],
    "pattern": ["user a: 3 failures, then a login", "user b: 3 failures, then a login"],
    "batch": [
        "delivered now {'remind': 3}, again: False",
        "delivered now {'remind': 0}, again: True",
        "refused: pipeline 'reminders@2026-01-31'",
        "3 reminders in",
    ],
    "fan_out": ["archive: 6 orders", "mail: 5 orders", "events parked for another reason"],
    "webhook": [
        "order-1 is event 1: shipped",
        "order-2 is event 2: parked",
        "order-3 is event 3: shipped",
        "order-1 is event 1, sent again: shipped",
        "shipped:\ncustomer-42 1 7\ncustomer-42 3 5\n",
    ],
    "own_sink": [
        "booked: {'c0': 18, 'c1': 22, 'c2': 26}",
        "checkpoint lost, read again: {'c0': 18, 'c1': 22, 'c2': 26}",
    ],
}


BESIDE_THEIR_SERVERS = {
    "files": "test_files",
    "http_service": "test_http",
    "kafka": "test_kafka",
    "kafka_markers": "test_sources_semel",
    "postgres": "test_postgres",
    "redis_counters": "test_redis",
    "rest_to_postgres": "test_postgres",
}
"""The examples that the tests of their destinations run."""


def test_every_example_is_run() -> None:
    assert {each.stem for each in EXAMPLES.glob("*.py")} == {*SAYS, *BESIDE_THEIR_SERVERS}
    for name, test in BESIDE_THEIR_SERVERS.items():
        assert f'"{name}.py"' in Path(__file__).with_name(f"{test}.py").read_text()


def test_every_example_and_the_first_page_run_only_as_a_script() -> None:
    programs = {each.stem: each.read_text() for each in EXAMPLES.glob("*.py")}
    shown = [each for each in blocks(START, "python") if "awaitTermination" in each]
    assert len(shown) == 2
    programs |= {f"start.md, program {number}": each for number, each in enumerate(shown)}
    for name, program in programs.items():
        body = ast.parse(program).body
        runs = [each for each in body if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
        *before, last = runs
        assert ast.unparse(last).startswith("if __name__ == '__main__':"), name
        text = "".join(map(ast.unparse, before))
        assert ".start()" not in text, name
        assert "semel.deliver" not in text, name


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_and_says_what_it_did(name: str, tmp_path: Path) -> None:
    needed = {"positions": "positions", "pattern": "transformWithState", "webhook": "sources"}
    if name in needed:
        require(needed[name])
    with ProcessGroup("examples") as group:
        said = run(group, tmp_path, str(EXAMPLES / f"{name}.py"), str(tmp_path / "out"))
    for text in SAYS[name]:
        assert text in said


def test_what_the_first_page_says_to_paste_runs_as_it_is(tmp_path: Path) -> None:
    [program] = [each for each in blocks(START, "python") if '.json("payments")' in each]
    [shell] = [each for each in blocks(START, "") if "python pay.py" in each]
    with ProcessGroup("examples") as group:
        (group.folder / "pay.py").write_text(program.replace("sleep(0.2)", "sleep(0)"))
        prepare = shell.replace("python pay.py", "").replace("seq 100", "seq 20")
        subprocess.run(["sh", "-ec", prepare], cwd=group.folder, check=True)
        for _ in range(2):
            run(group, tmp_path, "pay.py")
            charged = (group.folder / "charged.txt").read_text().splitlines()
            assert sorted(charged) == sorted(f"c{n} {n}" for n in range(1, 21))


def run(group: ProcessGroup, folder: Path, *arguments: str) -> str:
    """Run a program to its end; give what it said."""
    log = folder / "log.txt"
    environment = spark_environment(group.folder) | {"JAVA_TOOL_OPTIONS": SMALL_JVM}
    code = group.start([sys.executable, *arguments], environment, log).wait(PATIENCE_S)
    said = log.read_text(errors="replace")
    assert code == 0, said
    return said


def blocks(paper: Path, language: str) -> list[str]:
    """Give the blocks of code of a paper."""
    return re.findall(rf"^```{language}\n(.*?)^```$", paper.read_text(), re.DOTALL | re.MULTILINE)
