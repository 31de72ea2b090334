"""What a user sees in a terminal when a query fails: the sentence of the error stands last."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semel.spark.failures import last_sentence
from semel.verify.demo.standalone import ConnectServer, spark_environment
from support.spark import broken_job

TESTS = Path(__file__).parents[1]

BROKEN = (
    "semel.errors.SinkBroken: pipeline '{name}', sink 'charge', minibatch 1.0, partition 0of1: "
    "event 0 of 'a' failed with NameError: name 'reqeusts' is not defined. The sink has never "
    "delivered an event, so the fault is assumed to be in its code. "
)


def shown(master: str, folder: Path) -> list[str]:
    """Run the job as a process; give what each way to wait for the query shows, and the batch."""
    environment = {**os.environ, **spark_environment(folder, [TESTS])}
    made = subprocess.run(
        [sys.executable, str(TESTS / "support" / "spark" / "broken_job.py"), master, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 1, made.stderr
    parts = [part.strip() for part in made.stderr.split(broken_job.BETWEEN)]
    assert len(parts) == 4, made.stderr
    return parts


def assert_last(parts: list[str]) -> None:
    """The sentence is the last line, however the query was waited for, and of the batch."""
    for part, name in zip(parts, ("pay", "pay", "pay", "pay@d"), strict=True):
        assert part.splitlines()[-1].startswith(BROKEN.format(name=name)), part


def test_the_sentence_of_an_error_is_the_last_line_in_a_classic_session(tmp_path: Path) -> None:
    parts = shown("local", tmp_path)
    assert_last(parts)
    assert 'reqeusts.post("http://service/"' in parts[0], "the traceback of the sink is logged"


def test_the_sentence_of_an_error_is_the_last_line_through_connect(
    connect: ConnectServer, tmp_path: Path
) -> None:
    assert_last(shown(connect.url, tmp_path))


STATE = " SQLSTATE: 39000 SQLSTATE: XXKST"
PLAN = "\n=== Streaming Query ===\nIdentifier: [id = 1]\n\nLogical Plan:\n+- ~Relation [c#0]\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f"[STREAM_FAILED] x\nsemel.errors.Diverged: a b.\n{STATE}{PLAN}",
            "semel.errors.Diverged: a b.",
        ),
        (
            f"x\nsemel.spark.failures.Failed: P: y\nModuleNotFoundError: No z\n{STATE}{PLAN}",
            "ModuleNotFoundError: No z",
        ),
        (f"[STREAM_FAILED] out of memory SQLSTATE: XXKST{PLAN}", None),
        ("", None),
    ],
)
def test_the_sentence_is_found_in_what_spark_says(text: str, sentence: str | None) -> None:
    assert last_sentence(text) == sentence
