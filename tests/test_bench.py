"""A benchmark leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from semel.bench.turns import folder
from semel.ledger.clock import SystemClock

CLOCK = SystemClock()
PATIENCE_S = 20.0
BENCHMARK = """
from semel.bench.turns import folder
with folder() as place:
    (place / "checkpoint").mkdir()
    print(place, flush=True)
    input()
"""


def test_the_folder_of_a_benchmark_is_gone_at_its_end() -> None:
    with folder() as place:
        (place / "ledger.db").touch()
    assert not place.exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_folder_of_a_benchmark_is_gone_when_its_process_is_ended(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BENCHMARK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        place = Path(process.stdout.readline().strip())
        assert place.is_dir()
        process.send_signal(how)
    ends = CLOCK.monotonic() + PATIENCE_S
    while place.exists() and CLOCK.monotonic() < ends:
        CLOCK.sleep(0.05)
    assert not place.exists()
