"""`.ci/maven` decides what to do about a missing Maven; the programs around it only tell that they
were called.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "maven"


class Machine:
    """A PATH with nothing on it but what the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin"
        self.path.mkdir()
        self.record = folder / "calls"
        for name in ("sh", "chmod"):
            places = (Path("/bin") / name, Path("/usr/bin") / name)
            (self.path / name).symlink_to(next(place for place in places if place.exists()))

    def put(self, name: str, *lines: str) -> None:
        program = self.path / name
        program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        program.chmod(0o755)

    def put_manager(self, name: str) -> None:
        """A package manager that records its call, and installs a Maven."""
        maven = self.path / "mvn"
        made = f"echo '#!/bin/sh' > {maven}; chmod +x {maven}"
        self.put(name, f'echo "{name} $*" >> {self.record}', made)

    def be(self, user: int, *, sudo: bool = False) -> None:
        self.put("id", f"echo {user}")
        if sudo:
            self.put("sudo", '[ "$1" != -n ] || shift', 'exec "$@"')
            self.put("true", "exit 0")

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT], env={"PATH": str(self.path)}, capture_output=True, text=True, check=False
        )

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_maven_that_is_there_is_left_alone(machine: Machine) -> None:
    machine.put("mvn")
    machine.put_manager("apt-get")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == []


@pytest.mark.parametrize(
    ("manager", "call"),
    [
        ("apt-get", "apt-get install -y --no-install-recommends maven"),
        ("dnf", "dnf install -y maven"),
        ("apk", "apk add maven"),
        ("brew", "brew install maven"),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_who_may_gets_it_installed(machine: Machine, manager: str, call: str, user: int) -> None:
    machine.put_manager(manager)
    machine.be(user, sudo=user != 0)
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.calls[-1] == call
    assert call in done.stderr


def test_who_may_not_is_told_the_one_line(machine: Machine) -> None:
    machine.put_manager("apt-get")
    machine.be(1000)
    done = machine.run()
    assert done.returncode == 1
    assert machine.calls == []
    [line] = done.stderr.splitlines()
    assert "type: sudo sh -c 'apt-get update && apt-get install" in line


def test_an_unknown_system_is_told_what_is_missing(machine: Machine) -> None:
    machine.be(0)
    done = machine.run()
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "need Maven (mvn): install it" in line
