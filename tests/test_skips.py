"""A test that is left out on CI is a failure, wherever and however it is left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import skips

FILES = {
    "test_one.py": """
import pytest

@pytest.fixture
def disk():
    pytest.skip("no disk")

def test_runs(): pass
def test_within(): pytest.skip("only root may")
def test_asks(disk): pass
@pytest.mark.skipif(True, reason="not here")
def test_marked(): pass
@pytest.mark.xfail(reason="not yet", strict=True)
def test_not_yet(): assert False
""",
    "test_whole.py": 'import pytest\npytest.skip("no server", allow_module_level=True)\n',
    "test_listed.py": 'import pytest\ndef test_listed(): pytest.skip("listed")\n',
}


@pytest.mark.parametrize("ci", [True, False])
def test_on_ci_every_skip_that_is_not_listed_fails(ci: bool, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "listing.py").write_text(
        "from support import skips\nskips.MAY_BE_SKIPPED['test_listed.py::'] = 'for this test'\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), str(tmp_path)])
    options = ["-q", "-ra", "-p", "support.skips", "-p", "listing", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors"],
        env={"PYTHONPATH": paths, "CI": str(ci).lower()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1]
    if not ci:
        assert done.returncode == 0
        assert "1 passed, 5 skipped, 1 xfailed" in last
        return
    assert done.returncode == 1
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 3 errors" in last
    for why in ("only root may", "no disk", "not here", "no server"):
        assert f"lists: Skipped: {why}" in done.stdout or f"lists: {why}" in done.stdout


def test_the_list_is_short_and_gives_its_reasons() -> None:
    assert all(skips.MAY_BE_SKIPPED.values())
    assert len(skips.MAY_BE_SKIPPED) <= 3
