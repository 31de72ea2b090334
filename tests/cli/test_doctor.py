"""`semel doctor`: what is missing is named with what to install, and unknown is never ok."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from semel.operate import checks, doctor
from semel.operate.checks import (
    Check,
    Health,
    check_clock,
    check_disk,
    check_file_system,
    compare_clocks,
)
from semel.spark import session, versions
from semel.verify.servers.postgres import PostgresServer
from support.command_line import pipeline_at, read_json, refused, semel
from support.servers.transaction_pool import Pool

Out = pytest.CaptureFixture[str]


def looked(capsys: Out, *arguments: str) -> dict[str, dict[str, str]]:
    import json

    status, out, err = semel(capsys, "doctor", *arguments, "--json")
    found = {each["what"]: each for each in json.loads(out)}
    missing = [each for each in found.values() if each["state"] == "missing"]
    assert (status, err) == (1 if missing else 0, "")
    for each in found.values():
        assert each["state"] in ("ok", "missing", "warning", "unknown")
        assert bool(each["do"]) == (each["state"] != "ok")
    return found


def java(tmp_path: Path, script: str) -> Path:
    """A home of Java whose program runs the script."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return tmp_path / "jdk"


def test_everything_a_pipeline_needs_is_looked_at(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java(tmp_path, "echo 'openjdk version \"17.0.12\" 2024-07-16' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    pipeline_at(tmp_path / "ledger.db").minibatch(0, "a1")
    found = looked(capsys, "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    for what in (
        "Python",
        "Java",
        "PySpark",
        "pandas",
        "PyArrow",
        "psycopg",
        "redis",
        "ledger",
        "clock",
    ):
        assert found[what]["state"] == "ok", found[what]
    assert "wal" in found["ledger"]["found"]
    assert {"Spark Connect", "ledger's file system", "disk of the ledger"} <= found.keys()
    status, out, _ = semel(capsys, "doctor")
    assert status == 0
    assert out.split()[:2] == ["what", "found"]


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("echo 'openjdk version \"21\" 2023-09-19' >&2", "ok"),
        ("echo 'java version \"1.8.0_402\"' >&2", "missing"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "missing"),
        ("echo nothing of use", "unknown"),
    ],
)
def test_java_is_asked_for_its_version(
    script: str, state: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, script)))
    assert looked(capsys)["Java"]["state"] == state


def test_a_java_that_is_not_there_is_missing(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert looked(capsys)["Java"]["state"] == "missing"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = looked(capsys)["Java"]
    assert found["state"] == "missing"
    assert "install Java 17" in found["do"]


def test_packages_are_missing_too_old_or_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {"pandas": "1.5.3", "pyarrow": "18.0.0"}
    monkeypatch.setattr(doctor, "_version", installed.get)

    def states() -> list[str]:
        return [each.health.value for each in doctor.check_packages()]

    assert states() == ["missing", "missing", "ok"]
    installed.update({"pandas": "3.0.1", "pyspark": "3.4.9"})
    assert states() == ["missing", "warning", "ok"]
    installed.update({"pandas": "2.2.0", "pyspark": "3.5.0.dev1", "pyarrow": "17.0"})
    assert states() == ["ok", "ok", "missing"]
    extras = {each.what: each for each in doctor.check_extras("sqlite:///x.db")}
    assert {each.health for each in extras.values()} == {Health.WARNING}
    assert list(extras) == [
        "psycopg",
        "uvloop",
        "httptools",
        "redis",
        "confluent-kafka",
        "pydantic",
        "starlette",
        "uvicorn",
        "greenlet",
    ]
    assert "only if a sink is Http: pip install 'semel[http]'" in extras["uvloop"].do
    assert next(iter(doctor.check_extras("postgresql://x/y"))).health is Health.MISSING
    assert doctor.check_connect().health is Health.WARNING
    assert "semel[connect]" in doctor.check_connect().do


def test_what_a_version_of_pyspark_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}
    monkeypatch.setattr(doctor, "_version", installed.get)

    def spark(version: str) -> Check:
        installed["pyspark"] = version
        return next(iter(doctor.check_packages()))

    assert "Spark Connect, strings with a collation" in spark("3.5.9").found
    assert "Spark Connect" not in spark("4.0.5").found
    assert "columns of type TIME" in spark("4.0.5").found
    assert spark("4.3.0") == Check("PySpark", "4.3.0")
    newer = spark("4.10.0")
    assert newer.health is Health.WARNING
    assert "tested up to PySpark 4.3" in newer.do
    monkeypatch.setattr(versions, "find_spec", lambda _: None)
    assert spark("3.5.9").health is Health.MISSING
    assert "pip install setuptools" in spark("3.5.9").do
    assert spark("4.0.0").health is Health.OK


def test_assertions_that_are_left_out_are_a_warning() -> None:
    told = subprocess.run(
        [sys.executable, "-O", "-c", "from semel.operate.doctor import *; print(check_python())"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": "src"},
    )
    assert "warning" in told.stdout


# -- the ledger


def test_without_a_ledger_it_is_unknown(capsys: Out) -> None:
    assert looked(capsys)["ledger"]["state"] == "unknown"


def test_a_sqlite_ledger_is_looked_at_and_nothing_is_written(tmp_path: Path, capsys: Out) -> None:
    def ledger(name: str) -> dict[str, str]:
        return looked(capsys, "--ledger", f"sqlite:///{tmp_path}/{name}")["ledger"]

    assert ledger("new.db")["state"] == "warning"
    assert not (tmp_path / "new.db").exists()
    assert ledger("nowhere/new.db")["state"] == "missing"
    (tmp_path / "text.db").write_text("not a database, and quite long enough to be read as one")
    assert ledger("text.db")["state"] == "missing"
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = (tmp_path / "other.db").read_bytes()
    assert "no ledger" in ledger("other.db")["found"]
    assert (tmp_path / "other.db").read_bytes() == before
    assert looked(capsys, "--ledger", "mysql://x")["ledger"]["state"] == "missing"


def test_a_ledger_that_others_may_read_is_a_warning(tmp_path: Path, capsys: Out) -> None:
    pipeline_at(tmp_path / "ledger.db").store.memory.close()
    url = f"sqlite:///{tmp_path}/ledger.db"
    assert "ledger's mode" not in looked(capsys, "--ledger", url)
    (tmp_path / "ledger.db").chmod(0o644)
    assert looked(capsys, "--ledger", url)["ledger's mode"]["state"] == "warning"


def test_a_postgresql_ledger_is_asked_how_it_keeps_its_word(
    postgres: PostgresServer, postgres_url: str, capsys: Out
) -> None:
    found = looked(capsys, "--ledger", postgres_url)
    assert "no ledger in it yet" in found["ledger"]["found"]
    assert found["ledger's fsync"]["state"] == "missing"  # the server of these tests is not durable
    assert "set fsync = on" in found["ledger's fsync"]["do"]
    assert found["ledger's clock"]["state"] == "ok"
    world = pipeline_at(postgres_url)
    world.store.memory.close()
    found = looked(capsys, "--ledger", postgres_url)
    assert found["ledger"]["state"] == "ok"
    assert "ledger's synchronous_commit" in found


def test_a_pool_before_the_ledger_is_named(
    postgres: PostgresServer, postgres_url: str, capsys: Out
) -> None:
    assert "ledger's connections" not in looked(capsys, "--ledger", postgres_url)
    with closing(Pool(postgres_url)) as pool:
        pooled = postgres_url.replace(f":{postgres.port}/", f":{pool.port}/")
        found = looked(capsys, "--ledger", pooled)
    assert found["ledger's connections"]["found"].startswith("through a pool")
    assert found["ledger's connections"]["state"] == "ok"


def test_a_foreign_table_of_the_ledgers_name_is_not_called_a_ledger(
    postgres: PostgresServer, postgres_url: str, capsys: Out
) -> None:
    postgres.execute("create table semel_ledger (id bigint)", postgres_url.rpartition("/")[2])
    found = looked(capsys, "--ledger", postgres_url)["ledger"]
    assert found["state"] == "missing"
    assert "does not have the columns of a ledger" in found["found"]


def test_a_server_that_does_not_answer_is_missing_and_its_password_is_not_shown(
    capsys: Out,
) -> None:
    url = "postgresql://ann:geheim@127.0.0.1:1/ledger"
    status, out, err = semel(capsys, "doctor", "--ledger", url)
    assert status == 1
    assert "geheim" not in out + err
    assert looked(capsys, "--ledger", url)["ledger"]["state"] == "missing"
    wrong = "postgresql://ann:geheim@host:port:x/[ledger"
    assert "geheim" not in semel(capsys, "doctor", "--ledger", wrong)[1]


# -- clock and disk


class JumpingClock:
    """A clock whose wall time is set while it is checked."""

    def __init__(self, jump: float, wall: float = 1.8e9) -> None:
        self._jump, self._wall, self._monotonic = jump, wall, 0.0

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self._monotonic += seconds
        self._wall += seconds + self._jump


def test_a_clock_that_jumps_or_is_years_behind_is_a_warning() -> None:
    assert check_clock(JumpingClock(0)).health is Health.OK
    assert check_clock(JumpingClock(-3)).health is Health.WARNING
    assert check_clock(JumpingClock(0, wall=1_000.0)).health is Health.WARNING
    assert compare_clocks(100.0, 99.9, 100.1).health is Health.OK
    assert compare_clocks(100.0, 90.0, 110.0).health is Health.OK  # too slow to know
    assert compare_clocks(100.0, 109.9, 110.1).health is Health.WARNING


def test_a_full_disk_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_disk("x", tmp_path / "not" / "there").health is not Health.UNKNOWN
    monkeypatch.setattr(checks, "DISK_BYTES_GOOD", 2**80)
    assert check_disk("x", tmp_path).health is Health.WARNING
    monkeypatch.setattr(checks, "DISK_BYTES_LEAST", 2**80)
    assert check_disk("x", tmp_path).health is Health.MISSING


@pytest.mark.parametrize(
    ("kind", "health"),
    [
        ("ext4", Health.OK),
        ("nfs4", Health.WARNING),
        ("tmpfs", Health.WARNING),
        ("fuse.odd", Health.UNKNOWN),
    ],
)
def test_the_file_system_of_the_ledger_is_told_by_the_nearest_mount(
    kind: str, health: Any, tmp_path: Path
) -> None:
    mounts = tmp_path / "mounts"
    place = tmp_path / "a place"
    escaped = str(place).replace(" ", "\\040")
    mounts.write_text(f"/dev/a / xfs rw 0 0\nx {escaped} {kind} rw 0 0\ny /other nfs rw 0 0\n")
    assert check_file_system(place / "deep", mounts).health is health
    assert check_file_system(tmp_path, mounts).health is Health.OK
    assert check_file_system(place, tmp_path / "nowhere").health is Health.UNKNOWN


def test_it_is_read_by_machines_as_a_list(capsys: Out) -> None:
    assert isinstance(read_json(capsys, "doctor"), list)


def test_a_demo_without_spark_says_what_is_missing_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    told = refused(capsys, "demo")
    assert told == "semel: PySpark is not installed: pip install 'semel[spark]'\n"


def test_the_doctor_says_how_state_is_kept_and_what_to_set(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    changelog = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr(session, "_active_session", lambda: None)

    def state() -> tuple[str, str, str]:
        found = looked(capsys)["state of queries"]
        return found["state"], found["found"], found["do"]

    health, found, do = state()
    assert (health, "no spark-defaults.conf" in found) == ("warning", True)
    assert f"{provider}={rocksdb}" in do
    assert f"{changelog}=true" in do
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text(f"# {changelog} true\n{provider}  {rocksdb}\nspark.ui.enabled=false\n")
    health, found, do = state()
    assert (health, "full snapshots" in found) == ("warning", True)
    assert do.endswith(f"else set {changelog}=true")
    defaults.write_text(f"{provider}={rocksdb}\n{changelog}: true\n")
    health, found, do = state()
    assert (health, do) == ("ok", "")
    assert f"{defaults}: RocksDB with changelogs" in found
    defaults.write_text(f"{provider} org.example.MyProvider\n")
    assert "org.example.MyProvider" in state()[1]
    defaults.write_bytes(b"\xff\xfe")
    assert state()[0] == "unknown"
