"""What every store promises, asked of SQLite, PostgreSQL, and a store made worse on purpose."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from semel.errors import ConfigurationError, LedgerUnavailable
from semel.ledger import payloads
from semel.ledger.keys import key, prefix
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
from semel.ledger.store.opening import PAGE_ROWS, arrange, beyond, open_store
from semel.urls import redact

A, B, C = key("t", "a"), key("t", "b"), key("t", "c")
ONE, TWO = payloads.dump({"n": 1}), payloads.dump({"n": 2})


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
    return (payloads.load(payload)["n"] if payload else 0), payload


def outcome(act: Callable[[], None]) -> bool:
    """Tell whether a commit passed; a conflict is an answer, anything else is an error."""
    try:
        act()
    except Conflict:
        return False
    return True


def together(*acts: Callable[[], None]) -> list[bool]:
    """Do all acts at once, each in its thread, and tell which of them passed."""
    start = threading.Barrier(len(acts))

    def one(act: Callable[[], None]) -> bool:
        start.wait()
        return outcome(act)

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(one, acts))


# --- one commit -----------------------------------------------------------------------------------


@pytest.mark.rows("S12")
def test_what_a_store_is_told_another_opening_of_it_finds(store: Store, url: str) -> None:
    store.commit([Absent(A)], [Put(A, ONE)])
    other = open_store(url)
    assert other.read([A, B]) == {A: ONE}
    other.commit([Equals(A, ONE)], [Put(A, TWO), Put(B, ONE)])
    assert store.read([A, B]) == {A: TWO, B: ONE}
    other.close()


def test_a_commit_with_a_false_requirement_writes_nothing(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    for requirement in (Equals(A, TWO), Equals(B, ONE)):
        with pytest.raises(Conflict) as conflict:
            store.commit([Equals(A, ONE), requirement], [Put(A, TWO), Put(C, ONE), Sweep("t", "")])
        assert conflict.value.key == requirement.key
    assert rows(store) == {"a": ONE}


def test_a_row_that_must_be_absent_and_is_there_stops_the_whole_commit(store: Store) -> None:
    store.commit([], [Put(B, ONE)])
    with pytest.raises(Conflict) as conflict:
        store.commit([Absent(A), Absent(B)], [Put(A, ONE), Put(B, TWO), Put(C, ONE)])
    assert conflict.value.key == B
    assert rows(store) == {"b": ONE}


def test_requirements_may_ask_without_writing(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    store.commit([Equals(A, ONE)], [])
    with pytest.raises(Conflict):
        store.commit([Equals(A, TWO)], [])
    store.commit([], [])


def test_contradictory_requirements_never_hold(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    contradictions: list[list[Requirement]] = [
        [Equals(A, ONE), Equals(A, TWO)],
        [Equals(A, ONE), Absent(A)],
    ]
    for requirements in contradictions:
        with pytest.raises(Conflict):
            store.commit(requirements, [Put(A, TWO)])
    with pytest.raises(Conflict):
        store.commit([Equals(B, ONE), Absent(B)], [Put(B, TWO)])
    assert rows(store) == {"a": ONE}


def test_absence_can_only_be_required_of_a_row_that_is_put(store: Store) -> None:
    without: list[list[Update]] = [[], [Delete(A)], [Put(B, ONE)], [Put(A, ONE), Sweep("t", "")]]
    for updates in without:
        with pytest.raises(ValueError, match="does not put it"):
            store.commit([Absent(A)], updates)
    assert rows(store) == {}


def test_updates_apply_in_their_order(store: Store) -> None:
    store.commit([], [Put(A, ONE), Put(B, ONE)])
    store.commit([], [Put(A, TWO), Delete(A), Put(C, ONE), Put(C, TWO), Delete(B), Put(B, TWO)])
    assert rows(store) == {"b": TWO, "c": TWO}
    store.commit([], [Put(A, ONE), Sweep("t", ""), Put(C, ONE)])
    assert rows(store) == {"c": ONE}


def test_requirements_are_asked_of_what_was_there_before_the_updates(store: Store) -> None:
    store.commit([], [Put(A, ONE)])
    store.commit([Equals(A, ONE), Absent(B)], [Sweep("t", ""), Put(B, ONE)])
    assert rows(store) == {"b": ONE}
    with pytest.raises(Conflict):
        store.commit([Absent(B)], [Sweep("t", ""), Put(B, TWO)])
    assert rows(store) == {"b": ONE}
    store.commit([Equals(B, ONE)], [Sweep("t", "")])
    assert rows(store) == {}


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.commit([], [Delete(A), Sweep("t", "x")])
    assert rows(store) == {}


def test_tables_are_apart(store: Store) -> None:
    store.commit([], [Put(key("t", "a"), ONE), Put(key("t2", "a"), TWO)])
    store.commit([], [Sweep("t", "")])
    assert rows(store, "t2") == {"a": TWO}


# --- order, prefixes, pages, sweeps ---------------------------------------------------------------


def test_rows_come_in_the_order_of_their_bytes(store: Store) -> None:
    texts = ["b", "B", "a", "ä", "z", "Z", "_", "~", "é", "€", "\U0001f600", "\ufffd", "1", " "]
    numbers = [-100, -10, -9, -1, 0, 1, 9, 10, 11, 99, 100, 10**30]
    updates = [Put(key("t", text), ONE) for text in texts]
    updates += [Put(key("n", each), ONE) for each in random.Random(1).sample(numbers, len(numbers))]
    store.commit([], updates)
    assert list(rows(store)) == sorted((key("t", text).key for text in texts), key=str.encode)
    assert list(rows(store, "n")) == [key("n", each).key for each in numbers]


def test_a_prefix_gives_its_own_rows_only(store: Store) -> None:
    keys = [key("t", "pay", 1), key("t", "pay", 2), key("t", "payroll", 1), key("t", "pay")]
    store.commit([], [Put(each, ONE) for each in keys])
    assert list(rows(store, start=prefix("pay"))) == ["pay/a1", "pay/a2"]
    assert list(rows(store, start="pay")) == ["pay", "pay/a1", "pay/a2", "payroll/a1"]
    assert list(rows(store, start=prefix("p"))) == []


def test_wildcards_of_sql_are_letters_like_others(store: Store) -> None:
    keys = ["a_b/1", "axb/1", "a%b/1", "a\\b/1", "a'b/1"]
    store.commit([], [Put(Key("t", each), ONE) for each in keys])
    for each in keys:
        assert list(rows(store, start=each[:3])) == [each]
    store.commit([], [Sweep("t", "a_b")])
    assert set(rows(store)) == set(keys[1:])


@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff", "\ufffd", "/", "~"])
def test_a_prefix_may_end_in_any_character(store: Store, last: str) -> None:
    inside = [f"a{last}", f"a{last}{last}", f"a{last}b"]
    store.commit([], [Put(Key("t", each), ONE) for each in [*inside, "a", "b"]])
    assert list(rows(store, start=f"a{last}")) == sorted(inside)
    store.commit([], [Sweep("t", f"a{last}")])
    assert list(rows(store)) == ["a", "b"]


def test_what_is_after_and_how_many_can_be_said(store: Store) -> None:
    keys = [key("t", "p", each) for each in range(20)]
    store.commit([], [Put(each, ONE) for each in keys])
    found: list[Key] = []
    while page := list(store.scan("t", prefix("p"), after=found[-1].key if found else "", limit=7)):
        assert len(page) <= 7
        found += [each for each, _ in page]
    assert found == keys
    assert list(store.scan("t", prefix("p"), limit=0)) == []
    assert list(store.scan("t", prefix("p"), after=keys[-1].key)) == []
    assert [k for k, _ in store.scan("t", prefix("p"), after="a")] == keys


def test_a_scan_is_complete_over_many_pages_while_others_write(store: Store) -> None:
    keys = [key("t", each) for each in range(2 * PAGE_ROWS)]
    store.commit([], [Put(each, ONE) for each in keys])
    found = []
    for each, _ in store.scan("t", ""):
        found.append(each)
        if len(found) % 100 == 0:
            store.commit([], [Put(key("other", len(found)), ONE)])
    assert found == keys
    assert len(list(store.scan("t", "", limit=PAGE_ROWS + 1))) == PAGE_ROWS + 1


def test_a_sweep_takes_all_of_its_prefix_and_nothing_else(store: Store) -> None:
    store.commit([], [Put(key("t", "p", each), ONE) for each in range(1500)])
    store.commit([], [Put(key("t", "q", 1), ONE), Put(key("u", "p", 1), ONE)])
    store.commit([], [Sweep("t", prefix("p"))])
    assert list(rows(store)) == ["q/a1"]
    assert list(rows(store, "u")) == ["p/a1"]


def test_many_rows_can_be_read_at_once(store: Store) -> None:
    keys = [key("t", each) for each in range(3000)]
    store.commit([], [Put(each, ONE) for each in keys[::2]])
    assert store.read(keys) == dict.fromkeys(keys[::2], ONE)
    assert store.read([]) == {}
    assert store.read([A, A]) == {}


# --- what a payload can hold ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["a\x00b", "\ud800", "grüße €\U0001f600", "'; drop table semel; --", "{}", '"\\', "\\x00", ""],
)
def test_every_text_survives_in_payloads_and_keys(store: Store, value: str) -> None:
    at, payload = key("t", value, value), payloads.dump({value: [value]})
    store.commit([Absent(at)], [Put(at, payload)])
    store.commit([Equals(at, payload)], [Put(B, payload)])
    assert store.read([at]) == {at: payload}
    assert payloads.load(store.read([at])[at]) == {value: [value]}
    assert next(store.scan("t", prefix(value))) == (at, payload)
    with pytest.raises(Conflict) as conflict:
        store.commit([Absent(at)], [Put(at, ONE)])
    assert conflict.value.key == at


def test_a_megabyte_is_a_payload(store: Store) -> None:
    raw = '{"noise":"' + "".join(random.Random(7).choices("abcé€\U0001f600", k=1_000_000)) + '"}'
    dumped = payloads.dump({"noise": raw})
    store.commit([Absent(A)], [Put(A, raw), Put(B, dumped)])
    assert store.read([A, B]) == {A: raw, B: dumped}
    store.commit([Equals(A, raw), Equals(B, dumped)], [Put(A, ONE)])


def test_what_no_store_can_hold_is_refused_by_all(store: Store) -> None:
    for update in (Put(Key("t", "a\x00"), ONE), Put(A, "\x00"), Put(Key("t", "é" * 2000), ONE)):
        with pytest.raises(ValueError):
            store.commit([], [update])
    for update in (Put(Key("t", "\ud800"), ONE), Put(A, "\ud800")):
        with pytest.raises(UnicodeEncodeError):
            store.commit([], [update])
    store.commit([], [Put(Key("t", "é" * 1300), ONE)])
    assert len(rows(store)) == 1


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.rows("S12")
def test_two_commits_that_require_what_the_other_writes_never_both_pass(store: Store) -> None:
    for turn in range(60):
        a, b = key("t", turn, "a"), key("t", turn, "b")
        store.commit([], [Put(a, ONE), Put(b, ONE)])
        passed = together(
            partial(store.commit, [Equals(a, ONE)], [Put(b, TWO)]),
            partial(store.commit, [Equals(b, ONE)], [Put(a, TWO)]),
        )
        assert passed.count(True) == 1
        assert list(store.read([a, b]).values()).count(TWO) == 1


def test_a_ring_of_commits_that_require_what_their_neighbour_writes(store: Store) -> None:
    size = 8
    for turn in range(15):
        ring = [key("t", turn, each) for each in range(size)]
        store.commit([], [Put(each, ONE) for each in ring])
        passed = together(*(
            partial(store.commit, [Equals(mine, ONE)], [Put(ring[(i + 1) % size], TWO)])
            for i, mine in enumerate(ring)
        ))  # fmt: skip
        now = [store.read([each])[each] for each in ring]
        assert now == [TWO if passed[i - 1] else ONE for i in range(size)]
        # In some order each found its own row unwritten, so whose row stayed ONE cannot be all.
        assert 0 < passed.count(True) < size


@pytest.mark.parametrize(("required", "swept"), [("a", "b"), ("b", "a")])
def test_of_two_where_one_sweeps_what_the_other_requires_one_passes(
    store: Store, required: str, swept: str
) -> None:
    for turn in range(40):
        mine, its = key("t", turn, required), key("t", turn, swept)
        store.commit([], [Put(mine, ONE), Put(its, ONE)])
        passed = together(
            partial(store.commit, [Equals(mine, ONE)], [Sweep("t", its.key)]),
            partial(store.commit, [Equals(its, ONE)], [Put(mine, TWO)]),
        )
        assert passed.count(True) == 1


def test_one_of_many_gets_the_row_that_must_be_absent(store: Store) -> None:
    for turn in range(20):
        at = key("t", turn)
        own = [payloads.dump({"who": who}) for who in range(8)]
        passed = together(*(partial(store.commit, [Absent(at)], [Put(at, each)]) for each in own))
        assert passed.count(True) == 1
        assert store.read([at])[at] == own[passed.index(True)]


def test_sixteen_threads_lose_no_update(store: Store) -> None:
    turns = 25

    def count_up(seed: int) -> None:
        mine = random.Random(seed)
        for _ in range(turns):
            ats = [A, B] if mine.random() < 0.5 else [B, A]
            while True:
                found = [number(store, at) for at in ats]
                requirements: list[Requirement] = [
                    Equals(at, payload) if payload else Absent(at)
                    for at, (_, payload) in zip(ats, found, strict=True)
                ]
                updates = [
                    Put(at, payloads.dump({"n": n + 1}))
                    for at, (n, _) in zip(ats, found, strict=True)
                ]
                if outcome(partial(store.commit, requirements, updates)):
                    break

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(count_up, range(16)))
    assert number(store, A)[0] == number(store, B)[0] == 16 * turns


def test_sixteen_threads_that_touch_the_same_rows_in_any_order_do_not_deadlock(
    store: Store,
) -> None:
    shared = [key("t", each) for each in range(6)]
    store.commit([], [Put(each, ONE) for each in shared])

    def write(seed: int) -> float:
        mine = random.Random(seed)
        slowest = 0.0
        for turn in range(30):
            some = mine.sample(shared, 4)
            new = [key("t", "new", turn, each) for each in mine.sample(range(3), 3)]
            began = time.monotonic()
            requirements = [Equals(each, ONE) for each in some[:2]]
            updates: list[Update] = [Put(each, ONE) for each in [*some[2:], *new]]
            updates.append(Delete(new[0]))
            outcome(partial(store.commit, requirements, updates))
            slowest = max(slowest, time.monotonic() - began)
        return slowest

    with ThreadPoolExecutor(16) as threads:
        assert max(threads.map(write, range(16))) < 10


def test_a_look_at_several_rows_never_sees_half_a_commit(store: Store) -> None:
    keys = [key("t", each) for each in range(10)]
    store.commit([], [Put(each, payloads.dump({"n": 0})) for each in keys])
    done = threading.Event()

    def write() -> None:
        for n in range(1, 150):
            store.commit([], [Put(each, payloads.dump({"n": n})) for each in keys])
        done.set()

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(write)
        while not done.is_set() and not writing.done():
            assert len(set(store.read(keys).values())) == 1
        writing.result()


def test_two_who_open_an_empty_ledger_at_once_both_can(url: str) -> None:
    stores = [open_store(url) for _ in range(8)]
    passed = together(
        *(partial(each.commit, [], [Put(key("t", i), ONE)]) for i, each in enumerate(stores))
    )
    assert all(passed)
    assert len(rows(stores[0])) == 8
    for store in stores:
        store.close()


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


def test_a_closed_store_opens_itself_again(store: Store) -> None:
    store.close()
    store.commit([], [Put(A, ONE)])
    store.close()
    store.close()
    assert rows(store) == {"a": ONE}


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
            mine = key("log", who, turn)

            def add(mine: Key = mine) -> bool:
                if mine in worse[who].read([mine]):  # an earlier try of this one, its reply lost
                    return True
                n, before = number(worse[who], A)
                required = Equals(A, before) if before else Absent(A)
                after = payloads.dump({"n": n + 1})
                worse[who].commit([required, Absent(mine)], [Put(A, after), Put(mine, after)])
                return True

            insist(add)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(8)))
    assert sum(each.lost for each in worse) > 0
    log = sorted(payloads.load(payload)["n"] for payload in rows(store, "log").values())
    assert log == list(range(1, 81))
    assert number(store, A)[0] == 80


def test_on_a_worse_store_a_commit_still_happens_as_a_whole_or_not_at_all(store: Store) -> None:
    worse = WorseStore(store, 42)
    for turn in range(100):
        pair = [key("t", turn, each) for each in "ab"]
        try:
            worse.commit([Absent(each) for each in pair], [Put(each, ONE) for each in pair])
        except (LedgerUnavailable, Conflict) as error:
            known = None if isinstance(error, LedgerUnavailable) else 0
        else:
            known = 2
        found = len(store.read(pair))
        assert found in {0, 2}
        assert known in {None, found}
