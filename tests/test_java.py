"""`.ci/java` decides what to do about a missing Java; the programs around it only tell that they
were called.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "java"
OURS = ("sh", "sed", "head", "cat", "chmod")


class Machine:
    """A PATH with nothing on it but what the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bin"
        self.path.mkdir()
        self.record = folder / "calls"
        for name in OURS:
            found = next(
                place for place in (Path("/bin") / name, Path("/usr/bin") / name) if place.exists()
            )
            (self.path / name).symlink_to(found)

    def put(self, name: str, *lines: str) -> None:
        program = self.path / name
        program.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        program.chmod(0o755)

    def put_java(self, version: str) -> None:
        self.put("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def put_manager(self, name: str) -> None:
        """A package manager that records its call; what it installs is a Java 17."""
        java = self.path / "java"
        self.put(
            name,
            f'echo "{name} $*" >> {self.record}',
            f"echo '#!/bin/sh' > {java}",
            f'echo "echo \'openjdk version \\"17.0.1\\"\' >&2" >> {java}',
            f"chmod +x {java}",
        )

    def be(self, user: int, *, sudo: bool = False) -> None:
        self.put("id", f"echo {user}")
        if sudo:
            self.put("sudo", '[ "$1" != -n ] || shift', 'exec "$@"')
            self.put("true", "exit 0")

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT],
            env={"PATH": str(self.path), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_there_is_left_alone(machine: Machine, version: str) -> None:
    machine.put_java(version)
    machine.put_manager("apt-get")
    machine.be(0)
    machine.put_java(version)
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == []


@pytest.mark.parametrize(
    ("manager", "call"),
    [
        ("apt-get", "apt-get install -y openjdk-17-jre-headless"),
        ("dnf", "dnf install -y java-17-openjdk-headless"),
        ("apk", "apk add openjdk17-jre-headless"),
        ("brew", "brew install --cask temurin@21"),
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


def test_an_old_one_is_as_good_as_none(machine: Machine) -> None:
    machine.put_java("1.8.0_402")
    machine.put_manager("apt-get")
    machine.be(0)
    assert machine.run().returncode == 0
    assert machine.calls


def test_who_may_not_is_told_the_one_line(machine: Machine) -> None:
    machine.put_manager("apt-get")
    machine.be(1000)
    done = machine.run()
    assert done.returncode == 1
    assert machine.calls == []
    [line] = done.stderr.splitlines()
    assert "type: sudo sh -c 'apt-get update && { apt-get install -y openjdk-17" in line


def test_a_java_home_without_java_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.put_manager("apt-get")
    machine.be(0)
    done = machine.run(JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert machine.calls == []
    [line] = done.stderr.splitlines()
    assert f"JAVA_HOME={tmp_path}" in line


def test_an_unknown_system_is_told_where_to_get_it(machine: Machine) -> None:
    machine.be(0)
    done = machine.run()
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "https://adoptium.net" in line
