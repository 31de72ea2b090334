"""A server of the run starts once: one process of xdist has all tests that use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
TELLS = """
def pytest_collection_finish(session):
    for item in session.items:
        for server in {"kafka", "kafka_to_restart", "redis_of_the_run"} & set(item.fixturenames):
            homes = {fixture.baseid for fixture in item._fixtureinfo.name2fixturedefs[server]}
            groups = [mark.args[0] for mark in item.iter_markers("xdist_group")]
            print("TOLD", server, sorted(homes), groups)
"""


def test_all_tests_that_use_a_server_of_the_run_share_it_and_their_process(tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "tells"]
    done = subprocess.run(
        [*command, *(str(TESTS / room) for room in ("contract", "sinks", "spark"))],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("TOLD")]
    assert set(told) == {
        "TOLD kafka ['tests'] ['kafka']",
        "TOLD kafka_to_restart ['tests'] ['kafka_to_restart']",
        "TOLD redis_of_the_run ['tests'] ['redis_of_the_run']",
    }
