"""The contract of stores, for SQLite, PostgreSQL, and a store with planted faults."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger import payloads
from semel.ledger.keys import make_key
from semel.ledger.store.commit import (
    Absent,
    Conflict,
    Delete,
    Equals,
    Key,
    Payload,
    Put,
    Requirement,
    Store,
    Sweep,
    Update,
)
from semel.ledger.store.opening import arrange, beyond, open_store
from semel.urls import redact
from semel.verify.store_contract import StoreContract

A, B, C = make_key("t", "a"), make_key("t", "b"), make_key("t", "c")
ONE, TWO = payloads.dump_payload({"n": 1}), payloads.dump_payload({"n": 2})


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


def rows(store: Store, table: str = "t", start: str = "") -> dict[str, Payload]:
    return {found.key: payload for found, payload in store.scan(table, start)}


def number(store: Store, at: Key) -> tuple[int, Payload | None]:
    payload = store.read([at]).get(at)
    return (payloads.load_payload(payload)["n"] if payload else 0), payload


# --- what every store promises --------------------------------------------------------------------


@pytest.mark.rows("S12")
class TestTheContract(StoreContract):
    """Every case of the public suite, each in a new ledger."""

    @pytest.fixture(autouse=True)
    def _place(self, url: str) -> None:
        self.url = url


def test_looking_where_there_is_no_ledger_finds_nothing_and_creates_nothing(
    url: str, tmp_path: Path
) -> None:
    store = open_store(url)
    assert store.read([A]) == {}
    assert rows(store) == {}
    store.close()
    if url.startswith("sqlite"):
        assert list(tmp_path.iterdir()) == []
    else:
        import psycopg

        with psycopg.connect(url) as connection:
            made = "select count(*) from pg_class where relname like 'semel%'"
            assert connection.execute(made).fetchall() == [(0,)]
            made = "select count(*) from pg_proc where proname like 'semel%'"
            assert connection.execute(made).fetchall() == [(0,)]
    store.commit([Absent(A)], [Put(A, ONE)])
    assert store.read([A]) == {A: ONE}
    store.close()


@pytest.mark.rows("S12")
def test_a_large_commit_is_done_as_a_whole_or_not_at_all(store: Store) -> None:
    """Stores do large commits in another way: a statement for many rows."""
    many = [make_key("t", n) for n in range(300)]
    puts = [Put(key, ONE) for key in many[:200]]
    store.commit([Absent(key) for key in many[50:150]], puts)
    assert rows(store) == {key.key: ONE for key in many[:200]}
    changes = [Put(key, TWO) for key in many[100:300]]
    held = [Equals(many[100], ONE), Equals(many[199], ONE)]
    added = [Absent(key) for key in many[200:]]
    for wrong in (Equals(many[150], TWO), Absent(many[120]), Equals(many[299], ONE)):
        with pytest.raises(Conflict) as conflict:
            store.commit([*held, *added, wrong], changes)
        assert conflict.value.key == wrong.key
        assert rows(store) == {key.key: ONE for key in many[:200]}
    store.commit([*held, *added], changes)
    assert rows(store) == {key.key: ONE if n < 100 else TWO for n, key in enumerate(many)}
    with pytest.raises(Conflict):
        store.commit([*held, *added], changes)
    store.commit([Equals(many[0], ONE)], [*changes, Delete(many[1]), Sweep("t", many[2].key)])
    assert len(rows(store)) == 298


@pytest.mark.rows("S12")
def test_large_commits_of_many_threads_pass_one_after_the_other(store: Store) -> None:
    head = make_key("t", "head")
    store.commit([], [Put(head, payloads.dump_payload({"n": 0}))])

    def raise_it(turn: int) -> int:
        tries = 0
        while True:
            count, text = number(store, head)
            assert text is not None
            tries += 1
            added = [Put(make_key("new", count, n), ONE) for n in range(100)]
            changed = [Put(make_key("t", (turn * 7 + n) % 150), text) for n in range(100)]
            with contextlib.suppress(Conflict):
                store.commit(
                    [Equals(head, text), *(Absent(each.key) for each in added)],
                    [Put(head, payloads.dump_payload({"n": count + 1})), *added, *changed],
                )
                return tries

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(raise_it, range(24)))
    assert number(store, head)[0] == 24
    assert len(rows(store, "new")) == 2400


# --- URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["", "ledger.db", "sqlite://", "sqlite:///", "sqlite://ledger.db", "sqlite:///:memory:",
     "mysql://u:secret@h/d", "postgresql:", "postgres:secret", "redis://:secret@h",
     "postgres://u:secret@h/d", "postgresql://host:abc", "postgresql://u:secret@h:0/d",
     "postgresql://u:secret@h:1,g:x/d", "postgresql://[::1]:port/d"],
)  # fmt: skip
def test_a_url_that_means_no_store_is_told_which_would(bad: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sqlite:///relative.*postgresql://") as error:
        open_store(bad)
    if "@" in bad:
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u:se/cr@et@h/d", "postgresql://***"),
        ("postgresql://u:se?cr#et@h/d", "postgresql://***"),
        ("postgresql://u@h/d?password=secret&x=1", "postgresql://u@h/d?***"),
        (
            "postgresql://u@h/d?sslmode=require&p%61ssword=secret",
            "postgresql://u@h/d?sslmode=require&***",
        ),
        ("postgresql://h/d?sslpassword=secret", "postgresql://h/d?***"),
        ("postgresql://h/d?application_name=pay", "postgresql://h/d?application_name=pay"),
        ("https://token@h/x", "https://***@h/x"),
        ("host=h password=secret", "***"),
        ("user:secret@postgresql://h/d", "***"),
        ("postgresql://:secret@h", "postgresql://:***@h"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("sqlite:////a/b:c", "sqlite:////a/b:c"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_relative_and_absolute_paths_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///here.db", f"sqlite:///{tmp_path}/there.db"):
        store = open_store(url)
        monkeypatch.chdir("/")
        store.commit([], [Put(A, ONE)])
        store.close()
        monkeypatch.chdir(tmp_path)
    assert {each.name for each in tmp_path.glob("*.db")} == {"here.db", "there.db"}


def test_nothing_sorts_between_a_prefix_and_what_is_beyond_it() -> None:
    assert beyond("") is None
    assert beyond("a/") == "a0"
    assert beyond("\U0010ffff") is None
    assert beyond("a\U0010ffff") == "b"


def test_an_arranged_commit_writes_each_key_once() -> None:
    arranged = arrange([Equals(A, ONE)], [Put(A, ONE), Sweep("t", "a"), Put(B, ONE), Delete(B)])
    assert arranged.writes == {B: None}
    assert arranged.sweeps_over(A)
    assert not arranged.sweeps_over(B)


# --- a store made worse on purpose ----------------------------------------------------------------


class WorseStore:
    """A store that loses replies, is away at times, is slow, and where others come first."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.lost = 0
        self._random = random.Random(seed)

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self._be_away()
        return self.store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        self._be_away()
        return self.store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        self._be_away()
        if requirements and self._random.random() < 0.1:
            raise Conflict(requirements[0].key)  # another writer, who then put it back
        if self._random.random() < 0.2:
            time.sleep(self._random.random() * 0.003)
        self.store.commit(requirements, updates)
        if self._random.random() < 0.25:
            self.lost += 1
            raise LedgerUnavailable("the reply was lost")

    def close(self) -> None:
        self.store.close()

    def _be_away(self) -> None:
        if self._random.random() < 0.1:
            raise LedgerUnavailable("away")


def insist(act: Callable[[], bool]) -> None:
    """Repeat, as the ledger's verbs do, until it has happened."""
    while True:
        try:
            if act():
                return
        except (LedgerUnavailable, Conflict):
            continue


def test_on_a_worse_store_a_verb_that_knows_its_own_success_happens_once(store: Store) -> None:
    worse = [WorseStore(store, seed) for seed in range(8)]

    def append(who: int) -> None:
        for turn in range(10):
            mine = make_key("log", who, turn)

            def add(mine: Key = mine) -> bool:
                if mine in worse[who].read([mine]):  # an earlier try of this one, its reply lost
                    return True
                n, before = number(worse[who], A)
                required = Equals(A, before) if before else Absent(A)
                after = payloads.dump_payload({"n": n + 1})
                worse[who].commit([required, Absent(mine)], [Put(A, after), Put(mine, after)])
                return True

            insist(add)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(8)))
    assert sum(each.lost for each in worse) > 0
    log = sorted(payloads.load_payload(payload)["n"] for payload in rows(store, "log").values())
    assert log == list(range(1, 81))
    assert number(store, A)[0] == 80


def test_on_a_worse_store_a_commit_still_happens_as_a_whole_or_not_at_all(store: Store) -> None:
    worse = WorseStore(store, 42)
    for turn in range(100):
        pair = [make_key("t", turn, each) for each in "ab"]
        try:
            worse.commit([Absent(each) for each in pair], [Put(each, ONE) for each in pair])
        except (LedgerUnavailable, Conflict) as error:
            known = None if isinstance(error, LedgerUnavailable) else 0
        else:
            known = 2
        found = len(store.read(pair))
        assert found in {0, 2}
        assert known in {None, found}
