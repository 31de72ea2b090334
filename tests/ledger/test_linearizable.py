"""Commits and reads of every store are linearizable while its clients and connections are killed.

Porcupine judges the recorded histories (model/linearizability). SEMEL_HISTORIES=N records N times
as much; SEMEL_SEED=N repeats a run's decisions.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semel.ledger.store.commit import Conflict, Equals, Key, Payload, Requirement, Update
from semel.ledger.store.opening import open_store
from semel.ledger.store.sqlite import SqliteStore
from semel.verify.servers.proxy import TcpProxy
from support.ledger import history
from support.ledger.history import Workload

if TYPE_CHECKING:
    from semel.verify.servers.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
TIMES = int(os.environ.get("SEMEL_HISTORIES", "1"))
CHECKED_WITHIN_S = 120 * TIMES


@pytest.fixture(scope="session")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that judges a history."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed: run .ci/go")
    built = tmp_path_factory.mktemp("checker") / "linearizability"
    source = ROOT / "model" / "linearizability"
    subprocess.run(["go", "build", "-o", str(built), "."], cwd=source, check=True)
    return built


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("SEMEL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    sys.stdout.write(f"SEMEL_SEED={chosen}\n")
    return chosen


def judged(checker: Path, file: Path) -> tuple[int, str, Counter[str]]:
    """Judge what a file recorded: the exit status of the checker, its line, and the outcomes."""
    operations = list(history.operations(file))
    lines = "".join(json.dumps(each) + "\n" for each in operations)
    done = subprocess.run(
        [checker, "-within", f"{CHECKED_WITHIN_S}s"],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    sys.stdout.write(done.stdout + done.stderr)
    outcomes = Counter(each["outcome"] for each in operations if each["kind"] == "commit")
    return done.returncode, done.stdout, outcomes


class Processes:
    """Clients of one store in processes of their own."""

    def __init__(self, urls: Sequence[str], file: Path, seed: int) -> None:
        self._urls, self._file, self._seed = urls, file, seed
        self.started = 0
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, **more: int) -> None:
        """Start one more process. No other client has the numbers of its clients."""
        workload = Workload(self._seed, first=10 * self.started, **more)
        url = self._urls[self.started % len(self._urls)]
        script = Path(history.__file__)
        command = [sys.executable, str(script), url, history.workload_text(workload)]
        self.running.append(subprocess.Popen([*command, str(self._file)]))
        self.started += 1

    def wait(self) -> None:
        """Wait until all have done their operations."""
        for each in self.running:
            assert each.wait(300) in (0, -9)


@pytest.mark.rows("A10")
def test_sqlite_is_linearizable_while_its_clients_are_killed(
    checker: Path, tmp_path: Path, seed: int
) -> None:
    file, chance = tmp_path / "history", random.Random(seed)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(open_store(url)) as store:
        store.commit([], [])
    processes = Processes([url], file, seed)
    for _ in range(3):
        processes.start(rounds=8 * TIMES, operations=15)
    for _ in range(6 * TIMES):
        size = file.stat().st_size if file.exists() else 0
        while not file.exists() or file.stat().st_size < size + chance.randint(5_000, 20_000):
            assert any(each.poll() is None for each in processes.running), "all ended too early"
            time.sleep(0.001)
        chance.choice([each for each in processes.running if each.poll() is None]).kill()
        processes.start(rounds=8 * TIMES, operations=15)
    processes.wait()
    status, line, outcomes = judged(checker, file)
    assert status == 0, line
    assert outcomes["ok"] > 100
    assert outcomes["conflict"] > 20
    assert outcomes["unknown"] >= 1


def test_postgresql_is_linearizable_while_its_connections_are_killed(
    checker: Path, postgres: PostgresServer, tmp_path: Path, seed: int
) -> None:
    file, chance, database = tmp_path / "history", random.Random(seed), postgres.create()
    with closing(open_store(postgres.url(database))) as store:
        store.commit([], [])
    ended = threading.Event()

    def kill_backends() -> None:
        while not ended.wait(chance.uniform(0.05, 0.3)):
            postgres.execute(
                "select pg_terminate_backend(pid) from (select pid from pg_stat_activity where "
                f"datname = '{database}' and pid <> pg_backend_pid() order by random() limit 1) x",
                database,
            )

    cuts: Counter[str] = Counter()

    def cut_some(_: bytes) -> str:
        """Cut a few connections: before a request arrives, or after it and before its reply."""
        what = chance.choices(["pass", "cut", "lose"], [96, 2, 2])[0]
        cuts[what] += 1
        return what

    with closing(TcpProxy(postgres.port)) as proxy:
        proxy.rule = cut_some
        urls = [postgres.url(database, port=proxy.port), postgres.url(database)]
        processes = Processes(urls, file, seed)
        for _ in range(3):
            processes.start(rounds=12 * TIMES, operations=12, clients=2)
        killer = threading.Thread(target=kill_backends)
        killer.start()
        try:
            processes.wait()
        finally:
            ended.set()
            killer.join()
    postgres.drop(database)
    status, line, outcomes = judged(checker, file)
    assert status == 0, line
    assert cuts["cut"] + cuts["lose"] > 3
    assert cuts["cut"] > 1
    assert cuts["lose"] > 1
    assert outcomes["ok"] > 100
    assert outcomes["conflict"] > 20
    assert outcomes["unknown"] > 3


# -- planted


def require(store: SqliteStore, requirements: Sequence[Requirement]) -> None:
    """Check requirements in a transaction of their own. Raises `Conflict`."""
    rows = store.read([each.key for each in requirements])
    for each in requirements:
        if rows.get(each.key) != (each.payload if isinstance(each, Equals) else None):
            raise Conflict(each.key)


class ReportsAConflictAlthoughItCommitted(SqliteStore):
    """Now and then a commit that passed is reported as a conflict."""

    commits = 0

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        super().commit(requirements, updates)
        self.commits += 1
        if updates and self.commits % 7 == 0:
            raise Conflict(Key(history.TABLE, "any"))


class ReadsWhatWas(SqliteStore):
    """Now and then a read returns what it returned before."""

    reads = 0
    before: Mapping[Key, Payload] | None = None

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self.reads += 1
        found = super().read(keys)
        if self.reads % 5 == 0 and self.before is not None:
            return {each: self.before[each] for each in keys if each in self.before}
        self.before = {**(self.before or {}), **found} if self.reads % 2 else self.before
        return found


class ForgetsACommit(SqliteStore):
    """Now and then a commit is reported as passed and does nothing."""

    commits = 0

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        self.commits += 1
        if self.commits % 7:
            super().commit(requirements, updates)
        else:
            require(self, requirements)


class ChecksBeforeItWrites(SqliteStore):
    """The requirements are checked in one transaction, and the updates are done in another."""

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        require(self, requirements)
        time.sleep(0.001)
        super().commit([], updates)


PLANTED = (
    ReportsAConflictAlthoughItCommitted,
    ReadsWhatWas,
    ForgetsACommit,
    ChecksBeforeItWrites,
)


@pytest.fixture(params=PLANTED, ids=lambda each: each.__name__)
def worse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    store = request.param(tmp_path / "ledger.db")
    yield store
    store.close()


def test_a_store_that_breaks_a_promise_is_found(
    checker: Path, worse: SqliteStore, tmp_path: Path, seed: int
) -> None:
    history.record(worse, Workload(seed, rounds=8), tmp_path / "history")
    status, line, _ = judged(checker, tmp_path / "history")
    assert status == 1, line
    assert line.startswith("not linearizable")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no JSON",
        '{"kind": "commit", "call": 2, "return": 1, "outcome": "ok"}',
        '{"kind": "commit", "call": 1, "outcome": "ok"}',
        '{"kind": "commit", "call": 1, "return": 2, "outcome": "perhaps"}',
    ],
)
def test_a_history_that_cannot_be_read_is_not_linearizable(checker: Path, text: str) -> None:
    done = subprocess.run([checker], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "linearizable" not in done.stdout
