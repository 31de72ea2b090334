"""A partition larger than memory is streamed, and the frame is computed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark.driver_scripts import TESTS


@pytest.mark.parametrize(
    ("rows", "identity"), [(10_000_000, "position"), (2_000_000, "increasing"), (500_000, "given")]
)
def test_a_large_minibatch_streams_through_a_worker_of_one_gigabyte(
    tmp_path: Path, rows: int, identity: str
) -> None:
    paths = [str(TESTS), str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "support.spark.large_job", str(rows), identity, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["rows"] == rows
    assert told["sum"] == rows * (rows - 1) // 2
    assert told["read"] == rows, "the frame is computed once"
    assert told["peak_mb"] < 1024
