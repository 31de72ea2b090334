"""The sink that docs/own-sink.md writes earns its capability, and not without its rules."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rows("N10")

PAGE = Path(__file__).parents[2] / "docs" / "own-sink.md"
CASES = ("clean", "after-effect", "zombie", "late-call", "lost-checkpoint")


def till() -> str:
    """The program of the page."""
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(program)


def verified(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "till.py").write_text(program)
    semel = Path(sys.executable).with_name("semel")
    asked = [str(semel), "verify-sink", "till:till"]
    cases = [word for case in CASES for word in ("--case", case)]
    return subprocess.run(
        [*asked, "--arrived", "till:arrived", *cases],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_sink_of_the_page_earns_what_it_claims(tmp_path: Path) -> None:
    said = verified(tmp_path, till())
    assert said.returncode == 0, said.stdout + said.stderr
    assert "0 lost, 0 duplicated" in said.stdout


def test_without_its_fence_it_does_not(tmp_path: Path) -> None:
    rule = "if stood.attempt > target.attempt or stood.minibatch > target.minibatch:"
    assert rule in till()
    said = verified(tmp_path, till().replace(rule, "if False:"))
    assert said.returncode == 1
    assert "broken" in said.stdout
