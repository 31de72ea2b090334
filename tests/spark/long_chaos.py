"""`semel chaos`: two minutes of many faults at once, a plain foreachBatch, an end by a signal.

Not part of `make test`: how much of the faults a busy machine gets to differs from run to run. Run
it by its name, `pytest tests/spark/long_chaos.py`; it takes about 12 minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.verify.process_group import command_of
from support.kafka_fixture import jars_or_skip
from support.spark.driver_scripts import wait_for
from support.spark.reconcile import seed

pytestmark = [
    pytest.mark.xdist_group("kafka_to_restart"),  # no other cluster and no other broker beside it
    pytest.mark.needs("sources"),
]

CHAOS = (sys.executable, "-c", "from semel.cli.main import main; main()", "chaos")
MINUTES, LIAR_MINUTES, LIAR_SEED = 2.0, 0.9, 2
TIMEOUT_S = 720.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files that a server of another user may enter."""
    jars_or_skip("broker")
    made = Path(tempfile.mkdtemp(prefix="chaos-test-"))
    made.chmod(0o1777)  # as /tmp: a server of another user removes its folder
    yield made
    shutil.rmtree(made, ignore_errors=True)


def chaos(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the command to its end; return its status, its report and what it said on the way."""
    done = subprocess.run(
        [*CHAOS, *arguments, "--json"],
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def left_in(folder: Path) -> list[str]:
    """Return the folders that are still there, and the commands that still use one of them."""
    pids = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    commands = [command_of(pid) for pid in pids]
    return [*map(str, folder.iterdir()), *(each for each in commands if str(folder) in each)]


@pytest.mark.rows("A17", "A18", "N1")
def test_two_minutes_of_chaos_lose_repeat_and_reorder_nothing(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "chaos.html"
    words = ("--minutes", f"{MINUTES:g}", "--seed", str(seed()), "--html", str(page))
    status, report, said = chaos(folder, *words)
    assert (report["lost"], report["repeated"], report["reordered"], report["unexpected"]) == (
        0,
        0,
        0,
        0,
    ), said
    assert (status, report["verdict"]) == (0, "valid"), said
    assert report["faults_happened"] >= 8
    assert report["events"] > 500
    assert {each["sink"] for each in report["sinks"]} == {"http", "postgres", "redis", "kafka"}
    for sink in report["sinks"]:
        assert sink["delivered"] == report["events"]
        assert sink["in_doubt"] <= sink["in_doubt_max"]
    assert "<svg" in page.read_text()
    wait_for(lambda: not left_in(folder), timeout_s=60)


def test_repeats_of_a_plain_foreach_batch_under_the_same_chaos_are_found(folder: Path) -> None:
    words = ("--liar", "--minutes", f"{LIAR_MINUTES:g}", "--seed", str(LIAR_SEED))
    status, report, said = chaos(folder, *words)
    assert report["repeated"] > 0, said
    assert (status, report["verdict"]) == (1, "invalid")
    wait_for(lambda: not left_in(folder), timeout_s=60)


def test_a_chaos_run_that_is_ended_by_a_signal_leaves_nothing_behind(folder: Path) -> None:
    said = folder / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            CHAOS, env={**os.environ, "TMPDIR": str(folder)}, stdout=output, stderr=output
        )
    wait_for(lambda: "starting a Spark master" in said.read_text(), timeout_s=TIMEOUT_S)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    said.unlink()
    wait_for(lambda: left_in(folder) == [], timeout_s=60)
