"""`.ci/chromium` decides what to do about a missing Chromium; the programs around it only tell that
they were called.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.script_machine import ScriptMachine


@pytest.fixture
def machine(tmp_path: Path) -> ScriptMachine:
    return ScriptMachine(tmp_path, "chromium")


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_chromium_that_is_there_is_left_alone(machine: ScriptMachine, name: str) -> None:
    machine.put(name)
    machine.put_manager("apt-get", "chromium")
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == []


@pytest.mark.parametrize(
    ("manager", "call"),
    [
        ("apt-get", "apt-get install -y --no-install-recommends chromium"),
        ("dnf", "dnf install -y chromium"),
        ("apk", "apk add chromium"),
        ("brew", "brew install --cask google-chrome"),
    ],
)
@pytest.mark.parametrize("user", [0, 1000])
def test_who_may_gets_it_installed(
    machine: ScriptMachine, manager: str, call: str, user: int
) -> None:
    machine.put_manager(manager, "chromium")
    machine.be(user, sudo=user != 0)
    machine.assert_installs(call)


def test_who_may_not_is_told_the_one_line(machine: ScriptMachine) -> None:
    machine.put_manager("apt-get", "chromium")
    machine.be(1000)
    assert "type: sudo sh -c 'apt-get update && apt-get install" in machine.refusal()


def test_an_unknown_system_is_told_what_is_missing(machine: ScriptMachine) -> None:
    machine.be(0)
    assert "need Chromium: install it" in machine.refusal()
