"""What only the SQLite store can suffer: other processes, forks, full disks, odd files."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger import payloads
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Absent, Conflict, Equals, Put, Requirement
from semel.ledger.store.sqlite import SqliteStore

A, B = make_key("t", "a"), make_key("t", "b")
ONE, TWO = payloads.dump_payload({"n": 1}), payloads.dump_payload({"n": 2})

forked = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path)
    yield opened
    opened.close()


def count_up(path: Path, turns: int) -> None:
    store = SqliteStore(path)
    for _ in range(turns):
        while True:
            before = store.read([A]).get(A)
            n = payloads.load_payload(before)["n"] if before else 0
            required: Requirement = Equals(A, before) if before else Absent(A)
            try:
                store.commit([required], [Put(A, payloads.dump_payload({"n": n + 1}))])
                break
            except Conflict:
                continue
    store.close()


def skew(path: Path, mine: str, other: str, turns: int) -> None:
    """In each turn require my row and write the other's; note that it passed."""
    store = SqliteStore(path)
    for turn in range(turns):
        at, its = make_key("t", turn, mine), make_key("t", turn, other)
        while at not in store.read([at]):
            time.sleep(0)
        try:
            store.commit(
                [Equals(at, ONE)], [Put(its, TWO), Put(make_key("passed", turn, mine), ONE)]
            )
        except Conflict:
            store.commit([], [Put(make_key("refused", turn, mine), ONE)])
    store.close()


def in_processes(*acts: tuple[Callable[..., None], tuple[object, ...]]) -> None:
    processes = [forked.Process(target=act, args=args, daemon=True) for act, args in acts]
    for each in processes:
        each.start()
    for each in processes:
        each.join(60)
        assert each.exitcode == 0


def in_a_fork(act: Callable[[], None]) -> None:
    """Do it in a forked child, and fail if it fails."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def as_nobody(act: Callable[[], None]) -> None:
    """Do it without root's rights, which no file mode stops."""
    if os.getuid() != 0:
        act()
        return

    def without_rights() -> None:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
        act()

    in_a_fork(without_rights)


def test_several_processes_lose_no_update(store: SqliteStore, path: Path) -> None:
    in_processes(*[(count_up, (path, 100))] * 4)
    assert store.read([A]) == {A: payloads.dump_payload({"n": 400})}


def test_processes_that_require_what_the_other_writes_never_both_pass(
    store: SqliteStore, path: Path
) -> None:
    turns = 100

    def lay_out() -> None:
        for turn in range(turns):
            store.commit([], [Put(make_key("t", turn, each), ONE) for each in "ab"])
            time.sleep(0.002)

    laying = threading.Timer(0.5, lay_out)
    laying.start()
    in_processes((skew, (path, "a", "b", turns)), (skew, (path, "b", "a", turns)))
    laying.join()
    passed = [found.key for found, _ in store.scan("passed", "")]
    assert len(passed) == turns
    assert len({each.rsplit("/", 1)[0] for each in passed}) == turns
    assert len(list(store.scan("refused", ""))) == turns


def test_who_is_killed_during_a_commit_leaves_the_ledger_usable(
    store: SqliteStore, path: Path
) -> None:
    store.commit([], [Put(A, payloads.dump_payload({"n": 0}))])
    for _ in range(3):
        victim = forked.Process(target=count_up, args=(path, 10**9), daemon=True)
        victim.start()
        before = store.read([A])
        while store.read([A]) == before:
            assert victim.is_alive()
            time.sleep(0.001)
        victim.kill()
        victim.join()
        store.commit([], [Put(B, ONE)])
    assert store.read([B]) == {B: ONE}


def test_a_child_opens_its_own_connection(store: SqliteStore) -> None:
    store.commit([], [Put(A, ONE)])
    parents = store._writer._connection

    def child() -> None:
        store.commit([Equals(A, ONE)], [Put(A, TWO)])
        assert store._writer._connection is not parents
        assert store.read([A]) == {A: TWO}
        store.close()

    in_a_fork(child)
    assert store.read([A]) == {A: TWO}
    store.commit([Equals(A, TWO)], [Put(A, ONE)])


def test_a_child_forked_while_another_thread_commits_does_not_hang(store: SqliteStore) -> None:
    store.commit([], [Put(A, ONE)])
    with store._writer.lock, store._reader.lock:
        forking = threading.Thread(
            target=in_a_fork, args=(lambda: store.commit([], [Put(B, ONE)]),), daemon=True
        )
        forking.start()
        forking.join(20)
        assert not forking.is_alive()
    assert store.read([B]) == {B: ONE}


def test_a_ledger_that_stays_locked_is_unavailable_after_the_patience(path: Path) -> None:
    store = SqliteStore(path, patience_s=0.3)
    store.commit([], [Put(A, ONE)])
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match="locked by another process"):
            store.commit([], [Put(A, TWO)])
        assert 0.3 <= time.monotonic() - began < 3
        assert store.read([A]) == {A: ONE}
        other.execute("ROLLBACK")
    other.close()
    store.commit([Equals(A, ONE)], [Put(A, TWO)])
    store.close()


def test_a_thread_waits_no_longer_than_the_patience_for_another(path: Path) -> None:
    store = SqliteStore(path, patience_s=0.2)
    store.commit([], [Put(A, ONE)])
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        errors: list[Exception] = []

        def wait() -> None:
            try:
                store.commit([], [Put(A, TWO)])
            except LedgerUnavailable as error:
                errors.append(error)

        began = time.monotonic()
        threads = [threading.Thread(target=wait) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(errors) == 4
        assert time.monotonic() - began < 2
    other.close()
    store.close()


def test_a_commit_is_on_the_disk_when_it_returns(store: SqliteStore) -> None:
    store.commit([], [Put(A, ONE)])
    connection = store._writer._connection
    assert connection is not None
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_table_has_three_columns_that_a_person_can_read(store: SqliteStore, path: Path) -> None:
    store.commit([], [Put(A, ONE)])
    with sqlite3.connect(path) as person:
        assert person.execute("SELECT * FROM semel ORDER BY tbl, key").fetchall() == [
            ("semel", "schema", '{"version":1}'),
            ("t", "a", '{"n":1}'),
        ]
    person.close()


def test_a_limit_on_its_size_makes_the_ledger_unavailable_and_keeps_it_whole(
    store: SqliteStore,
) -> None:
    store.commit([], [Put(A, ONE)])
    connection = store._writer._connection
    assert connection is not None
    connection.execute("PRAGMA max_page_count=3")
    with pytest.raises(LedgerUnavailable, match="full"):
        store.commit([Equals(A, ONE)], [Put(A, TWO), Put(B, "x" * 100_000)])
    assert store.read([A, B]) == {A: ONE}
    store.commit([Equals(A, ONE)], [Put(A, TWO)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=777", "tmpfs", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small disk here: only root may")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_and_room_is_enough_to_go_on(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "ledger.db")
    store.commit([], [Put(A, ONE)])

    def fill() -> None:
        for turn in range(1000):
            store.commit([], [Put(make_key("t", turn), "x" * 10_000)])

    with pytest.raises(LedgerUnavailable, match="full"):
        fill()
    whole = list(store.scan("t", ""))
    assert all(len(payload) in {len(ONE), 10_000} for _, payload in whole)
    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    store.commit([Equals(A, ONE)], [Put(A, TWO)])
    assert store.read([A]) == {A: TWO}
    store.close()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that others can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="semel-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_a_read_only_file_is_a_matter_of_configuration(open_directory: Path) -> None:
    path = open_directory / "ledger.db"
    store = SqliteStore(path)
    store.commit([], [Put(A, ONE)])
    store.close()
    path.chmod(0o444)

    def write() -> None:
        with pytest.raises(ConfigurationError, match="writable"):
            SqliteStore(path).commit([], [Put(A, TWO)])

    as_nobody(write)


@pytest.mark.parametrize("exists", [False, True])
def test_a_read_only_directory_is_a_matter_of_configuration(
    open_directory: Path, exists: bool
) -> None:
    path = open_directory / "ledger.db"
    if exists:
        store = SqliteStore(path)
        store.commit([], [Put(A, ONE)])
        store.close()
        path.chmod(0o666)
    open_directory.chmod(0o555)

    def write() -> None:
        with pytest.raises(ConfigurationError, match="writable"):
            SqliteStore(path).commit([], [Put(A, TWO)])

    as_nobody(write)
    open_directory.chmod(0o777)


# --- who may read it ------------------------------------------------------------------------------


def modes(path: Path) -> dict[str, str]:
    return {each.name: oct(each.stat().st_mode & 0o777) for each in path.parent.iterdir()}


def as_another(act: Callable[[], None]) -> None:
    """Do it in a child that is another user, of no group of ours, for good."""
    if os.getuid() != 0:
        pytest.skip("only root may become somebody else")

    def another() -> None:
        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)
        act()

    in_a_fork(another)


def test_a_ledger_is_created_for_its_owner_alone(open_directory: Path) -> None:
    path = open_directory / "ledger.db"
    before = os.umask(0o022)
    try:
        store = SqliteStore(path)
        store.commit([], [Put(A, ONE)])
        assert modes(path) == dict.fromkeys(
            ["ledger.db", "ledger.db-wal", "ledger.db-shm"], "0o600"
        )
        store.close()
    finally:
        os.umask(before)

    def look() -> None:
        with pytest.raises(ConfigurationError, match="this user may not read the ledger"):
            SqliteStore(path).read([A])

    as_another(look)


def test_a_file_that_is_there_keeps_its_mode(open_directory: Path) -> None:
    path = open_directory / "ledger.db"
    path.touch()
    path.chmod(0o640)
    store = SqliteStore(path)
    store.commit([], [Put(A, ONE)])
    assert set(modes(path).values()) == {"0o640"}
    store.close()


@pytest.mark.parametrize("directory", [0o755, 0o777])
def test_who_may_only_read_can_look_whether_it_is_open_or_closed(
    open_directory: Path, directory: int
) -> None:
    path = open_directory / "ledger.db"
    store = SqliteStore(path)
    store.commit([], [Put(A, ONE)])
    for each in open_directory.iterdir():
        each.chmod(0o644)
    open_directory.chmod(directory)

    def look() -> None:
        reader = SqliteStore(path)
        assert reader.read([A, B]) == {A: ONE}
        assert dict(reader.scan("t", "")) == {A: ONE}
        with pytest.raises(ConfigurationError, match="writable"):
            reader.commit([], [Put(A, TWO)])
        reader.close()

    as_another(look)  # while it is open
    store.close()
    as_another(look)  # when it is closed
    assert [each.name for each in open_directory.iterdir()] == ["ledger.db"], "nothing is left"
    store.commit([Equals(A, ONE)], [Put(A, TWO)])
    store.close()


def test_who_may_only_read_sees_what_is_written_meanwhile(open_directory: Path) -> None:
    path = open_directory / "ledger.db"
    store = SqliteStore(path)
    store.commit([], [Put(A, ONE)])
    store.close()
    path.chmod(0o644)
    open_directory.chmod(0o755)
    asks, answers = os.pipe(), os.pipe()

    def look() -> None:
        reader = SqliteStore(path)
        for expected in (ONE, TWO, ONE):
            assert os.read(asks[0], 1)
            assert reader.read([A]) == {A: expected}
            os.write(answers[1], b".")

    def write(payload: str, *, close: bool) -> None:
        store.commit([], [Put(A, payload)])
        if close:
            store.close()
        os.write(asks[1], b".")
        assert os.read(answers[0], 1)

    looking = threading.Thread(target=as_another, args=(look,))
    looking.start()
    os.write(asks[1], b".")
    assert os.read(answers[0], 1)
    write(TWO, close=False)
    write(ONE, close=True)
    looking.join()


def test_a_ledger_that_was_left_without_its_index_is_said_so_to_who_may_only_read(
    open_directory: Path,
) -> None:
    path = open_directory / "ledger.db"
    store = SqliteStore(path)
    store.commit([], [Put(A, ONE)])
    left = open_directory / "left"
    left.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):  # as a crash, and a copy, leave it
        shutil.copy(open_directory / name, left / name)
        (left / name).chmod(0o644)
    left.chmod(0o755)
    store.close()

    def look() -> None:
        with pytest.raises(ConfigurationError, match=r"no index .*let its owner"):
            SqliteStore(left / "ledger.db").read([A])

    as_another(look)
    assert SqliteStore(left / "ledger.db").read([A]) == {A: ONE}


def test_a_directory_that_one_may_not_enter_is_a_matter_of_configuration(
    open_directory: Path,
) -> None:
    open_directory.chmod(0o700)

    def look() -> None:
        with pytest.raises(ConfigurationError, match="grant access to its directory"):
            SqliteStore(open_directory / "ledger.db").read([A])

    as_another(look)


# --- odd places -----------------------------------------------------------------------------------


def test_a_missing_directory_is_a_matter_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist; create it"):
        SqliteStore(tmp_path / "no" / "ledger.db").read([A])


def test_a_directory_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        SqliteStore(tmp_path).read([A])


def test_a_file_of_another_kind_is_no_ledger(path: Path) -> None:
    path.write_text("it is a text, and a rather long one, so that it could be a database" * 100)
    with pytest.raises(ConfigurationError, match="not a SQLite database"):
        SqliteStore(path).read([A])
    assert path.read_text().startswith("it is a text")


def test_a_database_with_another_table_of_that_name_is_no_ledger(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE semel (x)")
    other.close()
    with pytest.raises(ConfigurationError, match="not a ledger of this semel"):
        SqliteStore(path).read([A])


def test_a_newer_ledger_asks_for_a_newer_semel(store: SqliteStore, path: Path) -> None:
    newer = payloads.dump_payload({"version": 2})
    store.commit([], [Put(make_key("semel", "schema"), newer)])
    with pytest.raises(ConfigurationError, match="upgrade semel"):
        SqliteStore(path).read([A])


def test_a_ledger_that_is_removed_or_replaced_while_in_use_is_noticed(
    store: SqliteStore, path: Path
) -> None:
    store.commit([], [Put(A, ONE)])
    path.rename(path.with_suffix(".old"))
    for _ in ("removed", "replaced"):
        with pytest.raises(ConfigurationError, match="removed or replaced"):
            store.commit([], [Put(A, TWO)])
        path.touch()
    path.unlink()
    path.with_suffix(".old").rename(path)
    store.commit([Equals(A, ONE)], [Put(A, TWO)])


def test_an_error_that_nobody_classified_means_that_it_may_have_happened(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([], [Put(A, ONE)])

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: object) -> sqlite3.Cursor:
            done = super().execute(*arguments)  # type: ignore[arg-type]
            if arguments[0] == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return done

    store.close()
    real = sqlite3.connect
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", lambda *a, **k: real(*a, factory=Failing, **k))
        with pytest.raises(LedgerUnavailable, match="may have happened"):
            store.commit([Equals(A, ONE)], [Put(A, TWO)])
    assert store.read([A]) == {A: TWO}
    store.commit([Equals(A, TWO)], [Put(A, ONE)])
