"""Whether a process is alive, and the time, from the kernel and not from /proc."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from semel.runtime import Process, SystemClock

NAMING = (
    "import json, sys; from dataclasses import asdict; from semel.runtime import Process;"
    "print(json.dumps(asdict(Process.here())), flush=True); sys.stdin.read()"
)
ASKING = (
    "import json, os, sys; from semel.runtime import Process;"
    "os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]));"
    "print(os.path.exists('/proc/' + str(json.loads(sys.argv[1])['pid'])),"
    " Process(**json.loads(sys.argv[1])).gone())"
)


def privileged(*command: str) -> str:
    """Run a command that only root may run; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if os.getuid() != 0 or done.returncode:
        pytest.skip(f"only root may: {done.stderr}")
    return done.stdout.strip()


@pytest.fixture
def living() -> Iterator[Process]:
    child = subprocess.Popen(
        [sys.executable, "-c", NAMING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    yield Process(**json.loads(child.stdout.readline()))
    child.communicate("")


def hidden(process: Process) -> str:
    """Ask as another user, where /proc hides processes of other users."""
    nobody = str(pwd.getpwnam("nobody").pw_uid)
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    asks = [sys.executable, "-c", ASKING, json.dumps(asdict(process)), nobody]
    return privileged("unshare", "-m", "sh", "-c", mount, "-", *asks)


def test_a_living_process_of_another_user_that_proc_hides_is_not_gone(living: Process) -> None:
    assert not living.gone()
    assert hidden(living) == "False False"


def test_a_process_that_has_ended_is_gone_also_where_proc_hides(living: Process) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = Process(living.host, living.boot, ended.pid, living.start)
    assert gone.gone()
    assert hidden(gone) == "False True"


def test_a_process_that_nobody_has_waited_for_yet_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", NAMING], stdin=-1, stdout=-1, text=True)
    assert child.stdout is not None
    process = Process(**json.loads(child.stdout.readline()))
    child.kill()
    ends = time.monotonic() + 10
    while not process.gone():
        assert time.monotonic() < ends
    assert child.returncode is None, "it is a zombie still"
    child.communicate()


def test_a_lease_runs_out_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    began = clock.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # as it stands still in a suspended machine
    time.sleep(0.05)
    assert clock.monotonic() >= began + 0.05


def test_the_clock_of_leases_counts_suspended_time() -> None:
    """In a time namespace whose boot was a day ago by the one clock, and just now by the other."""
    asks = "import time; from semel.runtime import SystemClock as S; print(S().monotonic())"
    apart = ("unshare", "--fork", "--time", "--boottime", "86400000")
    assert float(privileged(*apart, sys.executable, "-c", asks)) > 86_400_000
