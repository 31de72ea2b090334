"""`.ci/go` decides what to do about a missing Go; the programs around it only tell that they were
called.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.script_machine import ScriptMachine


@pytest.fixture
def machine(tmp_path: Path) -> ScriptMachine:
    return ScriptMachine(tmp_path, "go")


def test_a_go_that_is_there_is_left_alone(machine: ScriptMachine) -> None:
    machine.put("go")
    machine.put_manager("apt-get", "go")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == []


@pytest.mark.parametrize(
    ("manager", "call"),
    [
        ("apt-get", "apt-get install -y --no-install-recommends golang-go"),
        ("dnf", "dnf install -y golang"),
        ("apk", "apk add go"),
        ("brew", "brew install go"),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_who_may_gets_it_installed(
    machine: ScriptMachine, manager: str, call: str, user: int
) -> None:
    machine.put_manager(manager, "go")
    machine.be(user, sudo=user != 0)
    machine.assert_installs(call)


def test_who_may_not_is_told_the_one_line(machine: ScriptMachine) -> None:
    machine.put_manager("apt-get", "go")
    machine.be(1000)
    assert "type: sudo sh -c 'apt-get update && apt-get install" in machine.refusal()


def test_an_unknown_system_is_told_what_is_missing(machine: ScriptMachine) -> None:
    machine.be(0)
    assert "needs Go: install it" in machine.refusal()
