"""`.ci/promtool` decides what to do about a missing promtool; the programs around it only tell that
they were called.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.script_machine import ScriptMachine

TOOLS = ("mktemp", "rm", "mv")


@pytest.fixture
def machine(tmp_path: Path) -> ScriptMachine:
    made = ScriptMachine(tmp_path, "promtool")
    for name in TOOLS:
        (made.path / name).symlink_to(Path("/usr/bin") / name)
    return made


def debian(machine: ScriptMachine, *download: str) -> None:
    """A Debian whose package has a promtool."""
    machine.put("apt-get", f'echo "apt-get $*" >> {machine.record}', *download)
    machine.put("dpkg-deb", f'echo "dpkg-deb $1" >> {machine.record}')
    machine.put("tar", "printf '#!/bin/sh\\necho promtool\\n'")


def test_a_promtool_that_is_there_is_left_alone(machine: ScriptMachine, tmp_path: Path) -> None:
    debian(machine)
    machine.put("promtool")
    done = machine.run(PROMTOOL=str(tmp_path / "promtool"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert machine.calls == []


def test_it_is_taken_out_of_the_package_without_root(
    machine: ScriptMachine, tmp_path: Path
) -> None:
    debian(machine, ": > prometheus_2.deb")
    machine.be(1000)
    tool = tmp_path / "promtool"
    done = machine.run(PROMTOOL=str(tool))
    assert done.returncode == 0, done.stderr
    assert machine.calls == ["apt-get download prometheus", "dpkg-deb --fsys-tarfile"]
    assert "promtool" in tool.read_text()
    assert machine.run(PROMTOOL=str(tool)).stderr == "", "the second time it is there"


def test_the_lists_of_packages_are_fetched_where_that_needs_no_password(
    machine: ScriptMachine, tmp_path: Path
) -> None:
    once = f'[ "$1" = update ] || [ $(cat {machine.record} | sed -n "$=") -gt 1 ] || exit 1'
    debian(machine, once, '[ "$1" = update ] || : > prometheus_2.deb')
    machine.be(0)
    done = machine.run(PROMTOOL=str(tmp_path / "promtool"))
    assert done.returncode == 0, done.stderr
    assert machine.calls[1:3] == ["apt-get update", "apt-get download prometheus"]


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        ((), "it can be had where apt-get is"),
        (("exit 1",), "apt-get update needs root"),
    ],
)
def test_where_it_cannot_be_had_that_is_said_and_stops_nothing(
    machine: ScriptMachine, tmp_path: Path, commands: tuple[str, ...], why: str
) -> None:
    if commands:
        debian(machine, *commands)
    machine.be(1000)
    done = machine.run(PROMTOOL=str(tmp_path / "promtool"))
    assert done.returncode == 0
    assert f"There is no promtool ({why}): the tests of the alert rules are skipped" in done.stderr
    assert not (tmp_path / "promtool").exists()
