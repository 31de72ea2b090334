"""`.ci/java` decides what to do about a missing Java; the programs around it only tell that they
were called.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.script_machine import ScriptMachine


def says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


@pytest.fixture
def machine(tmp_path: Path) -> ScriptMachine:
    return ScriptMachine(tmp_path, "java")


def put_manager(machine: ScriptMachine, name: str) -> None:
    machine.put_manager(name, "java", says("17.0.1"))


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_there_is_left_alone(machine: ScriptMachine, version: str) -> None:
    machine.put("java", says(version))
    put_manager(machine, "apt-get")
    machine.be(0)
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
def test_who_may_gets_it_installed(
    machine: ScriptMachine, manager: str, call: str, user: int
) -> None:
    put_manager(machine, manager)
    machine.be(user, sudo=user != 0)
    machine.assert_installs(call)


def test_an_old_one_is_as_good_as_none(machine: ScriptMachine) -> None:
    machine.put("java", says("1.8.0_402"))
    put_manager(machine, "apt-get")
    machine.be(0)
    assert machine.run().returncode == 0
    assert machine.calls


def test_who_may_not_is_told_the_one_line(machine: ScriptMachine) -> None:
    put_manager(machine, "apt-get")
    machine.be(1000)
    assert (
        "type: sudo sh -c 'apt-get update && { apt-get install -y openjdk-17" in machine.refusal()
    )


def test_a_java_home_without_java_is_named(machine: ScriptMachine, tmp_path: Path) -> None:
    put_manager(machine, "apt-get")
    machine.be(0)
    assert f"JAVA_HOME={tmp_path}" in machine.refusal(JAVA_HOME=str(tmp_path))


def test_an_unknown_system_is_told_where_to_get_it(machine: ScriptMachine) -> None:
    machine.be(0)
    assert "https://adoptium.net" in machine.refusal()
