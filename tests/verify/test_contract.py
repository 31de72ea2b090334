"""Honest sinks of every capability earn it, each case a test of its own, through the plugin."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from semel.protocol import Capability, OnDoubt
from semel.sinks import Sink
from semel.verify.contract.plugin import SinkContract
from semel.verify.contract.rows import NUMBERS
from support.contract_sinks.honest import Asking, Box, arrived, function
from support.contract_sinks.mistakes import KeepsRefused

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.rows("N10")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("box")
    yield str(folder / "box.db")
    shutil.rmtree(folder)


class InAFile(SinkContract):
    can: Capability = Capability.OPAQUE
    settings: dict[str, object] = {}  # noqa: RUF012 - a subclass has its own

    @pytest.fixture
    def sink(self, path: str) -> Sink:
        self.path = path
        if self.can is Capability.OPAQUE:
            return function(path, **self.settings)
        return Box(name="box", path=path, can=self.can, **self.settings)  # type: ignore[arg-type]

    def arrived(self) -> list[tuple[str, str]]:
        return arrived(self.path)


class TestTransactional(InAFile):
    can = Capability.TRANSACTIONAL


class TestTransactionalByEvent(InAFile):
    """A transaction that leaves a refused event out, and says so in its row."""

    cases = ("clean", "refused", "poison", "resend")
    can = Capability.TRANSACTIONAL
    settings = {"session": KeepsRefused}  # noqa: RUF012 - a subclass has its own


class TestSequenced(InAFile):
    can = Capability.SEQUENCED


class TestRepeatable(InAFile):
    can = Capability.REPEATABLE


class TestRepeatableByChunk(InAFile):
    can = Capability.REPEATABLE
    settings = {"keyed_by_event": False}  # noqa: RUF012 - a subclass has its own


class TestProbing(InAFile):
    can = Capability.PROBING


class TestWhole(InAFile):
    can = Capability.REPEATABLE
    settings = {"whole": True}  # noqa: RUF012 - a subclass has its own


class TestFunction(InAFile):
    can = Capability.OPAQUE


class TestFunctionInWindows(InAFile):
    cases = ("after-effect", "take-over", "twice", "zombie", "two-alive", "lost-checkpoint")
    can = Capability.OPAQUE
    settings = {"window": 3}  # noqa: RUF012 - a subclass has its own


class TestProbedFunction(SinkContract):
    """A function that can say whether an event arrived leaves nothing in doubt."""

    @pytest.fixture
    def sink(self, path: str) -> Sink:
        self.path = path
        return function(path, window=3, on_doubt=OnDoubt.PROBE, probe=Asking(path))

    def arrived(self) -> list[tuple[str, str]]:
        return arrived(self.path)


class TestOwnSink(SinkContract):
    """The example of the documents: it keeps sums, whose digits tell what they are made of."""

    @pytest.fixture
    def sink(self, path: str, monkeypatch: pytest.MonkeyPatch) -> Sink:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self.path = f"{path}-bank"
        made: Sink = import_module("own_sink").Balances(name="balances", path=self.path)
        return made

    def arrived(self) -> Iterator[tuple[str, int]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as connection:
            balances = connection.execute("select customer, balance from balances").fetchall()
        for customer, balance in balances:
            if balance in NUMBERS:
                yield customer, 1
                continue
            for number, times in enumerate(reversed(str(balance)), 1):
                for _ in range(int(times)):
                    yield customer, number


def test_the_plugin_imports_nothing_heavy() -> None:
    script = (
        "import sys, semel.verify.contract.plugin;"
        "print(sorted({'numpy', 'pyarrow', 'pyspark', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


ASKS_THE_KERNEL = """
import socket, struct
from semel.verify.contract.faults import Cutter, SinkFault, What, Where

kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
kernel.bind((0, 0))
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
cutter = Cutter(SinkFault(What.DEAF, Where.CALL))
addresses, request_of_all = 22, 0x301
kernel.settimeout(5)
kernel.send(struct.pack("=IHHIIB3x", 20, addresses, request_of_all, 1, 0, 0))
print(bool(kernel.recv(65536)), cutter.end())
"""


def test_names_are_still_looked_up_while_no_connection_hears_an_answer() -> None:
    script = [sys.executable, "-c", ASKS_THE_KERNEL]
    done = subprocess.run(script, capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["True", "1"]


SUBCLASS = """
import sqlite3
from semel.sinks import sink
from semel.verify.contract.plugin import SinkContract

PATH = {path!r}

def connect():
    connection = sqlite3.connect(PATH, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")
    connection.execute("create table if not exists sent (n integer primary key, c text, id int)")
    return connection

@sink
def send(event):
    connect().execute("insert into sent (c, id) values (?, ?)", (event.entity, event.id))

@sink
def lose(event):
    if event.id != 2:
        connect().execute("insert into sent (c, id) values (?, ?)", (event.entity, event.id))

class Mine(SinkContract):
    def arrived(self):
        return connect().execute("select c, id from sent order by n").fetchall()

class TestSend(Mine):
    sink = send

class TestLose(Mine):
    sink = lose
"""


FROM_A_FIXTURE = """
import pytest

class TestFixture(Mine):
    cases = ("connection-cut", "late-call", "clean")

    @pytest.fixture(name="sink")
    def made(self):
        return send
"""


def test_what_does_not_apply_is_told_and_nothing_is_skipped(tmp_path: Path) -> None:
    text = SUBCLASS.format(path=str(tmp_path / "sent.db")) + FROM_A_FIXTURE
    (tmp_path / "test_mine.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    fixture = subprocess.run(
        [*command, "-k", "TestFixture", str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
    )
    assert "3 passed" in fixture.stdout, fixture.stdout + fixture.stderr
    assert "skipped" not in fixture.stdout
    told = "TestFixture: connection-cut does not apply: the sink has no connection"
    assert told in fixture.stdout
    assert "late-call does not apply: with OPAQUE no call is repeated" in fixture.stdout
    named = subprocess.run(
        [*command, "--collect-only", "-k", "TestSend", str(tmp_path)],
        capture_output=True,
        check=True,
        text=True,
        cwd=tmp_path,
    )
    assert "[clean]" in named.stdout
    assert "late-call" not in named.stdout


def test_a_subclass_is_collected_and_a_lie_fails_with_its_story(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SUBCLASS.format(path=str(tmp_path / "sent.db")))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "clean"]
    loaded = subprocess.run(
        [*command, str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in loaded.stdout, loaded.stdout + loaded.stderr
    assert "lost: event 2 of" in loaded.stdout
    assert "TestLose" in loaded.stdout
    assert "process 1: no fault; it finished" in loaded.stdout
