"""The broker of the tests ends with who started it; where it cannot be had, the test says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from semel.verify.servers import kafka
from support.kafka_fixture import jars_or_skip

TESTS = Path(__file__).parents[1]
STARTS = """
import sys, time
from semel.verify.servers.kafka import KafkaBroker
broker = KafkaBroker(quick=True)
print(broker._process.pid, broker._home, flush=True)
time.sleep(600)
"""


def test_a_broker_ends_with_the_process_that_started_it() -> None:
    jars_or_skip("broker")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS], cwd=TESTS, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid, home = starter.stdout.readline().split()
    assert Path(home).exists()
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    ends = time.monotonic() + 30
    while time.monotonic() < ends and (Path(home).exists() or runs(int(pid))):
        time.sleep(0.05)
    assert not Path(home).exists()
    assert not runs(int(pid))


def test_a_broker_that_is_late_with_its_heartbeats_leads_on() -> None:
    """As on a machine that has no time for it."""
    jars_or_skip("broker")
    late = {"broker.heartbeat.interval.ms": 5_000}
    with closing(kafka.KafkaBroker(quick=True, settings=late)) as broker:
        topic, admin, leaders = broker.create_topic(), broker.admin(), set()
        ends = time.monotonic() + 5.5
        while time.monotonic() < ends:
            parts = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
            leaders |= {part.leader for part in parts}
            time.sleep(0.05)
        assert leaders == {1}
        with pytest.raises(ValueError, match="restarts=True"):
            broker.restart()


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def nothing_to_fetch_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "fetch"
    script.write_text("#!/bin/sh\necho 'type: sudo apt-get install maven' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(kafka, "FETCH", script)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("nothing_to_fetch_with")
def test_where_the_jars_cannot_be_had_tests_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"not run: .*install maven"):
        jars_or_skip("broker")


@pytest.mark.usefixtures("nothing_to_fetch_with")
def test_in_ci_that_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install maven"):
        jars_or_skip("broker")


def test_jars_are_fetched_once_and_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    program = tmp_path / "mvn"
    program.write_text(
        "#!/bin/sh\n"
        f"echo called >> {tmp_path}/calls\n"
        'for each in "$@"; do case $each in -DoutputDirectory=*) out=${each#*=} ;; esac; done\n'
        f'mkdir -p "$out"; touch "$out/a.jar"; exit "$(cat {tmp_path}/code)"\n'
    )
    program.chmod(0o755)
    (tmp_path / "code").write_text("1")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def fetch() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [kafka.FETCH, "spark"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert fetch().returncode == 1
    assert list((tmp_path / "cache").rglob("*.jar")) == []
    (tmp_path / "code").write_text("0")
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert [each.name for each in Path(done.stdout.strip()).iterdir()] == ["a.jar"]
    assert fetch().stdout == done.stdout
    assert len((tmp_path / "calls").read_text().split()) == 2
    assert [each.name for each in Path(done.stdout.strip()).parent.iterdir()] == ["spark"]
