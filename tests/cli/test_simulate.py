"""The command `semel simulate`, as a person and as a machine see it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semel.verify.simulator.worlds import world_seed
from support.command_line import semel


def test_a_few_worlds_are_summed_up_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = semel(capsys, "simulate", "--worlds", "60", "--seed", "7", "--processes", "1")
    assert status == 0
    assert "0 lost, 0 duplicated" in out
    for word in ("transactional", "sequenced", "repeatable", "probing", "opaque", "hold"):
        assert word in out


def test_json_is_one_object_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", "--worlds", "40", "--seed", "7", "--processes", "1", "--json")
    status, out, _ = semel(capsys, *arguments)
    told = json.loads(out)
    assert status == 0
    assert told["worlds"] == 40
    for name in ("lost", "duplicated", "reordered", "invalid"):
        assert told[name] == 0
    assert isinstance(told["in_doubt"], int)
    assert sum(each["worlds"] for each in told["capabilities"].values()) == 40
    assert all(each["lost"] == 0 for each in told["capabilities"].values())
    assert semel(capsys, *arguments)[1] == out


def test_a_world_is_told_again_by_its_seed(capsys: pytest.CaptureFixture[str]) -> None:
    seed = str(world_seed(7, 3))
    status, out, _ = semel(capsys, "simulate", "--replay", seed)
    assert status == 0
    assert "driver of run 1" in out
    assert f"semel simulate --replay {seed}" in out
    assert semel(capsys, "simulate", "--replay", seed)[1] == out
    assert json.loads(semel(capsys, "simulate", "--replay", seed, "--json")[1])["story"]


def test_an_invalid_world_ends_with_status_1_its_story_and_its_seed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.ledger.verbs.partitions import PartitionClaim
    from semel.protocol import Found

    monkeypatch.setattr(PartitionClaim, "_take_over", lambda _: Found.NEW)
    status, out, err = semel(capsys, "simulate", "--worlds", "10", "--processes", "0", "--json")
    told = json.loads(out)
    assert status == 1
    assert told["invalid"] > 0
    assert f"semel simulate --replay {told['seeds_of_invalid_worlds'][0]}" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "--wrlds", "3"),
        ("simulate", "--worlds", "0"),
        ("simulate", "--seed", "seven"),
        ("simulat",),
    ],
)
def test_a_wrong_option_gets_one_clear_line(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = semel(capsys, *arguments)
    assert status == 2
    assert not out
    assert len(err.splitlines()) == 1
    assert err.startswith("semel: ")


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = semel(capsys, "simulate", "--help")
    assert status == 0
    assert "semel simulate --worlds 20000 --seed 7" in " ".join(out.split())


def test_the_installed_command_knows_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from semel.cli.main import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("semel ")


def worked_s(parent: int) -> list[float]:
    """How long each of the two that share the work has worked, once they are there."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(") ")[2].split()
            if int(fields[1]) == parent:
                found.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return sorted(found)[-2:] if len(found) >= 2 else []


def test_an_interrupt_stops_it_at_once_and_is_no_fault_of_a_world() -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    command = [sys.executable, "-c", f"{heard} from semel.cli.main import main; main()"]
    running = subprocess.Popen(
        [*command, "simulate", "--worlds", "200000", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        ends = time.monotonic() + 180
        while min(worked_s(running.pid), default=0.0) < 2.0:  # no process imports any more
            assert time.monotonic() < ends
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert out == ""
    assert "semel: stopped" in err
    assert "Traceback" not in err


def test_without_greenlet_the_message_has_the_pip_line() -> None:
    script = (
        "import sys\n"
        "sys.modules['greenlet'] = None\n"  # its import fails
        "sys.argv = ['semel', 'simulate', '--worlds', '1', *sys.argv[1:]]\n"
        "from semel.cli.main import main\n"
        "main()\n"
    )
    for options in ([], ["--replay", "7000003"]):
        command = [sys.executable, "-c", script, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "semel: greenlet is not installed: pip install 'semel[simulate]'" in done.stderr
        assert "Traceback" not in done.stderr
