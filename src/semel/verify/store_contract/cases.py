"""The cases of the store contract: one promise of every store each.

Always true:
- a case passes, or raises: `PromiseBroken` with what was found and what was expected;
- a case needs nothing of a store but the URL: faults of one kind of store (a full disk, a
  failover) have tests of their own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from semel.ledger import dump_payload, load_payload, make_prefix
from semel.ledger.store import PAGE_ROWS, Absent, Delete, Equals, Put, Sweep
from semel.runtime import SystemClock
from semel.verify.store_contract.area import (
    ONE,
    TWO,
    PromiseBroken,
    at_once,
    commit_at_once,
    counter,
    passes,
    puts,
    require,
    require_conflict,
    require_equal,
    require_refused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.ledger.store import Key, Requirement, Store, Update
    from semel.verify.store_contract.area import Area

SLOWEST_S = 10.0
"""How long one commit may take while sixteen threads write the same rows."""


@dataclass(frozen=True, slots=True)
class StoreCase:
    """One promise of a store, and the function that tries it."""

    name: str
    says: str
    check: Callable[[Area], None]


CASES: list[StoreCase] = []
"""Every case, in the order in which they run."""


def _case(says: str) -> Callable[[Callable[[Area], None]], Callable[[Area], None]]:
    """Add a function to `CASES`, under its name."""

    def add(check: Callable[[Area], None]) -> Callable[[Area], None]:
        CASES.append(StoreCase(check.__name__.replace("_", "-"), says, check))
        return check

    return add


# -- one commit


@_case("another opening of the store finds what was committed")
def openings_share_rows(area: Area) -> None:
    """Write with one opening, read and write with another."""
    a, b = area.key("a"), area.key("b")
    other = area.another()
    area.store.commit([Absent(a)], [Put(a, ONE)])
    require_equal(other.read([a, b]), {a: ONE}, "rows read by another opening")
    other.commit([Equals(a, ONE)], [Put(a, TWO), Put(b, ONE)])
    require_equal(area.store.read([a, b]), {a: TWO, b: ONE}, "rows that the other opening wrote")


@_case("a commit whose Equals does not hold writes nothing and names the row")
def false_equals_writes_nothing(area: Area) -> None:
    """Require another payload, and a payload of a row that is not there."""
    a, b, c = area.key("a"), area.key("b"), area.key("c")
    area.store.commit([], [Put(a, ONE)])
    for required in (Equals(a, TWO), Equals(b, ONE)):
        updates: list[Update] = [Put(a, TWO), Put(c, ONE), Sweep(area.table(), "")]
        require_conflict(area.store, [Equals(a, ONE), required], updates, required.key)
    require_equal(area.rows(), {"a": ONE}, "rows after refused commits")


@_case("a commit whose Absent does not hold writes nothing and names the row")
def false_absent_writes_nothing(area: Area) -> None:
    """Insert three rows, of which one is there."""
    a, b, c = area.key("a"), area.key("b"), area.key("c")
    area.store.commit([], [Put(b, ONE)])
    updates: list[Update] = [Put(a, ONE), Put(b, TWO), Put(c, ONE)]
    require_conflict(area.store, [Absent(a), Absent(b)], updates, b)
    require_equal(area.rows(), {"b": ONE}, "rows after a refused commit")


@_case("requirements are checked in a commit that writes nothing")
def requirements_without_updates(area: Area) -> None:
    """Require with no update, and commit nothing at all."""
    a = area.key("a")
    area.store.commit([], [Put(a, ONE)])
    area.store.commit([Equals(a, ONE)], [])
    require_conflict(area.store, [Equals(a, TWO)], [], None)
    area.store.commit([], [])


@_case("contradictory requirements never hold")
def contradictory_requirements(area: Area) -> None:
    """Require two payloads of one row, and a row that is there and absent."""
    a, b = area.key("a"), area.key("b")
    area.store.commit([], [Put(a, ONE)])
    require_conflict(area.store, [Equals(a, ONE), Equals(a, TWO)], [Put(a, TWO)], None)
    require_conflict(area.store, [Equals(a, ONE), Absent(a)], [Put(a, TWO)], None)
    require_conflict(area.store, [Equals(b, ONE), Absent(b)], [Put(b, TWO)], None)
    require_equal(area.rows(), {"a": ONE}, "rows after refused commits")


@_case("Absent of a row that the commit does not put is a ValueError")
def absent_needs_a_put(area: Area) -> None:
    """Require absence beside no update, a delete, another put, and a put that a sweep removes."""
    a, b = area.key("a"), area.key("b")
    sweep = Sweep(area.table(), "")
    without: list[list[Update]] = [[], [Delete(a)], [Put(b, ONE)], [Put(a, ONE), sweep]]
    for updates in without:
        try:
            area.store.commit([Absent(a)], updates)
        except ValueError as error:
            require("does not put it" in str(error), f"an unexpected ValueError: {error}")
        else:
            raise PromiseBroken(f"Absent beside {updates!r} must raise ValueError")
    require_equal(area.rows(), {}, "rows after refused commits")


@_case("updates apply in their order, the last one to a key wins")
def updates_apply_in_order(area: Area) -> None:
    """Put, delete and sweep the same rows in one commit."""
    a, b, c = area.key("a"), area.key("b"), area.key("c")
    area.store.commit([], [Put(a, ONE), Put(b, ONE)])
    area.store.commit(
        [], [Put(a, TWO), Delete(a), Put(c, ONE), Put(c, TWO), Delete(b), Put(b, TWO)]
    )
    require_equal(area.rows(), {"b": TWO, "c": TWO}, "rows after puts and deletes")
    area.store.commit([], [Put(a, ONE), Sweep(area.table(), ""), Put(c, ONE)])
    require_equal(area.rows(), {"c": ONE}, "rows after a sweep between two puts")


@_case("requirements are checked against the rows before the updates")
def requirements_see_the_rows_before(area: Area) -> None:
    """Require rows that the same commit sweeps."""
    a, b = area.key("a"), area.key("b")
    sweep = Sweep(area.table(), "")
    area.store.commit([], [Put(a, ONE)])
    area.store.commit([Equals(a, ONE), Absent(b)], [sweep, Put(b, ONE)])
    require_equal(area.rows(), {"b": ONE}, "rows after a commit that sweeps what it requires")
    require_conflict(area.store, [Absent(b)], [sweep, Put(b, TWO)], None)
    require_equal(area.rows(), {"b": ONE}, "rows after a refused commit")
    area.store.commit([Equals(b, ONE)], [sweep])
    require_equal(area.rows(), {}, "rows after a sweep")


@_case("deleting a row that is not there is not an error")
def delete_of_a_missing_row(area: Area) -> None:
    """Delete and sweep what is not there."""
    area.store.commit([], [Delete(area.key("a")), Sweep(area.table(), "x")])
    require_equal(area.rows(), {}, "rows")


@_case("tables do not share rows")
def tables_are_separate(area: Area) -> None:
    """Sweep one of two tables whose names begin alike."""
    area.store.commit([], [Put(area.key("a"), ONE), Put(area.key("a", table="t2"), TWO)])
    area.store.commit([], [Sweep(area.table(), "")])
    require_equal(area.rows("t2"), {"a": TWO}, "rows of the other table")


# -- order, prefixes, pages, sweeps


@_case("a scan returns rows in the order of the UTF-8 bytes of their keys")
def rows_come_in_byte_order(area: Area) -> None:
    """Write letters of many scripts, and numbers, in random order."""
    texts = ["b", "B", "a", "ä", "z", "Z", "_", "~", "é", "€", "\U0001f600", "\ufffd", "1", " "]
    numbers = [-100, -10, -9, -1, 0, 1, 9, 10, 11, 99, 100, 10**30]
    updates = puts(area.key(text) for text in texts)
    shuffled = Random(1).sample(numbers, len(numbers))
    updates += puts(area.key(each, table="n") for each in shuffled)
    area.store.commit([], updates)
    ordered = sorted((area.key(text).key for text in texts), key=str.encode)
    require_equal(area.keys(), ordered, "keys in scan order")
    wanted = [area.key(each, table="n").key for each in numbers]
    require_equal(area.keys("n"), wanted, "numbers in scan order")


@_case("a scan returns the rows of its prefix only")
def scan_keeps_to_its_prefix(area: Area) -> None:
    """Scan below keys that begin alike."""
    keys = [area.key("pay", 1), area.key("pay", 2), area.key("payroll", 1), area.key("pay")]
    area.store.commit([], puts(keys))
    require_equal(area.keys(start=make_prefix("pay")), ["pay/a1", "pay/a2"], "keys below pay/")
    all_four = ["pay", "pay/a1", "pay/a2", "payroll/a1"]
    require_equal(area.keys(start="pay"), all_four, "keys that begin with pay")
    require_equal(area.keys(start=make_prefix("p")), [], "keys below p/")


@_case("wildcards and quotes of SQL are ordinary characters")
def wildcards_are_characters(area: Area) -> None:
    """Scan and sweep prefixes with %, _, a backslash and a quote."""
    keys = ["a_b/1", "axb/1", "a%b/1", "a\\b/1", "a'b/1"]
    area.store.commit([], puts(map(area.raw, keys)))
    for each in keys:
        require_equal(area.keys(start=each[:3]), [each], f"keys that begin with {each[:3]!r}")
    area.store.commit([], [Sweep(area.table(), "a_b")])
    require_equal(set(area.keys()), set(keys[1:]), "keys after the sweep of 'a_b'")


@_case("a prefix may end in any character")
def prefixes_end_in_any_character(area: Area) -> None:
    """Scan and sweep prefixes that end in the last characters of Unicode's ranges."""
    for last in ("\ud7ff", "\U0010ffff", "\ufffd", "/", "~"):
        inside = [f"a{last}", f"a{last}{last}", f"a{last}b"]
        area.store.commit([], puts(map(area.raw, [*inside, "a", "b"])))
        found = area.keys(start=f"a{last}")
        require_equal(found, sorted(inside), f"keys that begin with {f'a{last}'!r}")
        area.store.commit([], [Sweep(area.table(), f"a{last}")])
        require_equal(area.keys(), ["a", "b"], f"keys after the sweep of {f'a{last}'!r}")


@_case("`after` and `limit` cut a scan into pages that miss and repeat nothing")
def scans_by_page(area: Area) -> None:
    """Scan 20 rows by seven."""
    store, table, start = area.store, area.table(), make_prefix("p")
    keys = [area.key("p", each) for each in range(20)]
    store.commit([], puts(keys))
    found: list[Key] = []
    while page := list(store.scan(table, start, after=found[-1].key if found else "", limit=7)):
        require(len(page) <= 7, f"a scan with limit=7 returned {len(page)} rows")
        found += [each for each, _ in page]
        require(len(found) <= len(keys), "a scan with `after` repeats rows")
    require_equal(found, keys, "keys by pages of 7")
    require_equal(list(store.scan(table, start, limit=0)), [], "rows with limit=0")
    end = list(store.scan(table, start, after=keys[-1].key))
    require_equal(end, [], "rows after the last one")
    found = [each for each, _ in store.scan(table, start, after="a")]
    require_equal(found, keys, "keys after one that sorts before the prefix")


@_case("a scan over many pages is complete while other tables are written")
def scan_while_others_write(area: Area) -> None:
    """Write beside a scan of more rows than a page holds."""
    keys = [area.key(each) for each in range(2 * PAGE_ROWS)]
    area.store.commit([], puts(keys))
    found = []
    for each, _ in area.store.scan(area.table(), ""):
        found.append(each)
        if len(found) % 100 == 0:
            area.store.commit([], [Put(area.key(len(found), table="other"), ONE)])
    require_equal(found, keys, "keys of the scan")
    some = len(list(area.store.scan(area.table(), "", limit=PAGE_ROWS + 1)))
    require_equal(some, PAGE_ROWS + 1, "rows of a scan with a limit above one page")


@_case("a sweep removes all rows of its prefix and no other")
def sweeps_keep_to_their_prefix(area: Area) -> None:
    """Sweep 1,500 rows beside a neighbour and another table."""
    area.store.commit([], puts(area.key("p", each) for each in range(1500)))
    area.store.commit([], [Put(area.key("q", 1), ONE), Put(area.key("p", 1, table="u"), ONE)])
    area.store.commit([], [Sweep(area.table(), make_prefix("p"))])
    require_equal(area.keys(), ["q/a1"], "keys that the sweep left")
    require_equal(area.keys("u"), ["p/a1"], "keys of the other table")


@_case("many rows can be read at once; missing ones are left out")
def reads_many_rows(area: Area) -> None:
    """Read 3,000 keys of which every second is there, none, and one twice."""
    keys = [area.key(each) for each in range(3000)]
    area.store.commit([], puts(keys[::2]))
    require_equal(dict(area.store.read(keys)), dict.fromkeys(keys[::2], ONE), "rows of one read")
    require_equal(area.store.read([]), {}, "rows of an empty read")
    require_equal(area.store.read([area.key("a"), area.key("a")]), {}, "rows of a missing key")


# -- what rows can hold


@_case("every text comes back unchanged, in payloads and in keys")
def every_text_survives(area: Area) -> None:
    """Write NUL, lone surrogates, quotes, SQL and JSON as `keys` and `payloads` encode them."""
    texts = ("a\x00b", "\ud800", "grüße €\U0001f600", "'; drop table semel; --", "{}", '"\\',
             "\\x00", "")  # fmt: skip
    store, b = area.store, area.key("b")
    for value in texts:
        at, payload = area.key(value, value), dump_payload({value: [value]})
        store.commit([Absent(at)], [Put(at, payload)])
        store.commit([Equals(at, payload)], [Put(b, payload)])
        require_equal(store.read([at]), {at: payload}, f"the row of {value!r}")
        require_equal(load_payload(store.read([at])[at]), {value: [value]}, "its value")
        first = next(store.scan(area.table(), make_prefix(value)), None)
        require_equal(first, (at, payload), f"the first row below {value!r}")
        require_conflict(store, [Absent(at)], [Put(at, ONE)], at)


@_case("a payload may have a megabyte")
def a_megabyte_is_a_payload(area: Area) -> None:
    """Write, read and require large payloads, raw and compressed."""
    a, b = area.key("a"), area.key("b")
    raw = '{"noise":"' + "".join(Random(7).choices("abcé€\U0001f600", k=1_000_000)) + '"}'
    dumped = dump_payload({"noise": raw})
    area.store.commit([Absent(a)], [Put(a, raw), Put(b, dumped)])
    require_equal(area.store.read([a, b]), {a: raw, b: dumped}, "large rows")
    area.store.commit([Equals(a, raw), Equals(b, dumped)], [Put(a, ONE)])


@_case("rows that some store cannot hold are refused by every store")
def unstorable_rows_are_refused(area: Area) -> None:
    """Write a NUL, a lone surrogate and a key that is too long for an index."""
    a, long = area.key("a"), area.raw("é" * 2000)
    for update in (Put(area.raw("a\x00"), ONE), Put(a, "\x00"), Put(long, ONE)):
        require_refused(area.store, update, ValueError)
    for update in (Put(area.raw("\ud800"), ONE), Put(a, "\ud800")):
        require_refused(area.store, update, UnicodeEncodeError)
    area.store.commit([], [Put(area.raw("é" * 1300), ONE)])
    require_equal(len(area.rows()), 1, "the number of rows")


# -- many at once


@_case("of two commits that require what the other writes, exactly one passes")
def crossed_commits(area: Area) -> None:
    """Cross two commits 60 times."""
    for turn in range(60):
        a, b = area.key(turn, "a"), area.key(turn, "b")
        area.store.commit([], [Put(a, ONE), Put(b, ONE)])
        passed = commit_at_once([
            partial(area.store.commit, [Equals(a, ONE)], [Put(b, TWO)]),
            partial(area.store.commit, [Equals(b, ONE)], [Put(a, TWO)]),
        ])  # fmt: skip
        require_equal(passed.count(True), 1, "the number of commits that passed")
        written = list(area.store.read([a, b]).values()).count(TWO)
        require_equal(written, 1, "the number of rows written")


@_case("of eight commits in a ring, each requiring what its neighbour writes, not all pass")
def a_ring_of_commits(area: Area) -> None:
    """Let each row's commit write the next row."""
    size = 8
    for turn in range(15):
        ring = [area.key(turn, each) for each in range(size)]
        area.store.commit([], puts(ring))
        passed = commit_at_once(
            partial(area.store.commit, [Equals(mine, ONE)], [Put(ring[(i + 1) % size], TWO)])
            for i, mine in enumerate(ring)
        )
        now = [area.store.read([each])[each] for each in ring]
        wanted = [TWO if passed[i - 1] else ONE for i in range(size)]
        require_equal(now, wanted, "rows, by which commits passed")
        # In some order each found its own row unwritten, so the rows that stayed cannot be all.
        require(0 < passed.count(True) < size, f"{passed.count(True)} of {size} commits passed")


@_case("of two commits of which one sweeps what the other requires, exactly one passes")
def a_sweep_crosses_a_requirement(area: Area) -> None:
    """Cross a sweep and a put, in both orders of their keys."""
    for required, swept in (("a", "b"), ("b", "a")):
        for turn in range(40):
            mine, its = area.key(required, turn, required), area.key(required, turn, swept)
            area.store.commit([], [Put(mine, ONE), Put(its, ONE)])
            passed = commit_at_once([
                partial(area.store.commit, [Equals(mine, ONE)], [Sweep(its.table, its.key)]),
                partial(area.store.commit, [Equals(its, ONE)], [Put(mine, TWO)]),
            ])  # fmt: skip
            require_equal(passed.count(True), 1, "the number of commits that passed")


@_case("of eight commits that require one row to be absent, exactly one passes")
def one_of_many_inserts(area: Area) -> None:
    """Insert one row eight times at once."""
    for turn in range(20):
        at = area.key(turn)
        own = [dump_payload({"who": who}) for who in range(8)]
        passed = commit_at_once(
            partial(area.store.commit, [Absent(at)], [Put(at, each)]) for each in own
        )
        require_equal(passed.count(True), 1, "the number of commits that passed")
        require_equal(area.store.read([at])[at], own[passed.index(True)], "the row")


@_case("sixteen threads that count up two rows lose no update")
def threads_lose_no_update(area: Area) -> None:
    """Count up 400 times with one opening."""
    _count_up(area, [area.store] * 16, turns=25)


@_case("four openings that count up two rows lose no update")
def openings_lose_no_update(area: Area) -> None:
    """Count up 100 times, each thread with an opening of its own."""
    _count_up(area, [area.another() for _ in range(4)], turns=25)


def _count_up(area: Area, stores: list[Store], turns: int) -> None:
    """Count two rows up together, in a thread for each of the openings."""
    a, b = area.key("a"), area.key("b")

    def count(store: Store, seed: int) -> None:
        chance = Random(seed)
        for _ in range(turns):
            ats = [a, b] if chance.random() < 0.5 else [b, a]
            while True:
                found = [(at, *counter(store, at)) for at in ats]
                requirements: list[Requirement] = [
                    Equals(at, payload) if payload else Absent(at) for at, _, payload in found
                ]
                updates = [Put(at, dump_payload({"n": n + 1})) for at, n, _ in found]
                if passes(partial(store.commit, requirements, updates)):
                    break

    at_once([partial(count, store, seed) for seed, store in enumerate(stores)])
    counted = counter(area.store, a)[0], counter(area.store, b)[0]
    total = len(stores) * turns
    require_equal(counted, (total, total), "the two counters")


@_case("sixteen threads that write the same rows in any order do not block each other")
def threads_do_not_deadlock(area: Area) -> None:
    """Write some of six rows and insert others, in random order."""
    clock = SystemClock()
    shared = [area.key(each) for each in range(6)]
    area.store.commit([], puts(shared))

    def write(seed: int) -> float:
        chance = Random(seed)
        slowest = 0.0
        for turn in range(30):
            some = chance.sample(shared, 4)
            new = [area.key("new", turn, each) for each in chance.sample(range(3), 3)]
            began = clock.monotonic()
            updates: list[Update] = [*puts([*some[2:], *new]), Delete(new[0])]
            requirements = [Equals(each, ONE) for each in some[:2]]
            passes(partial(area.store.commit, requirements, updates))
            slowest = max(slowest, clock.monotonic() - began)
        return slowest

    slowest = max(at_once([partial(write, seed) for seed in range(16)]))
    require(slowest < SLOWEST_S, f"a commit took {slowest:.1f} s")


@_case("a read of several rows never sees half a commit")
def reads_are_consistent(area: Area) -> None:
    """Read ten rows while another thread writes all of them in each commit."""
    keys = [area.key(each) for each in range(10)]
    area.store.commit([], puts(keys, dump_payload({"n": 0})))
    done = threading.Event()

    def write() -> None:
        try:
            for n in range(1, 150):
                area.store.commit([], puts(keys, dump_payload({"n": n})))
        finally:
            done.set()

    def read() -> None:
        while not done.is_set():
            found = sorted(set(area.store.read(keys).values()))
            require(len(found) == 1, f"one read returned rows of {len(found)} commits: {found}")

    at_once([write, read])


@_case("several openings can write to a new ledger at once")
def openings_start_at_once(area: Area) -> None:
    """Commit with eight openings at the same moment; each finds all rows afterwards."""
    stores = [area.another() for _ in range(8)]
    passed = commit_at_once(
        partial(each.commit, [], [Put(area.key(i), ONE)]) for i, each in enumerate(stores)
    )
    require_equal(passed, [True] * 8, "which commits passed")
    found = len(list(stores[0].scan(area.table(), "")))
    require_equal(found, 8, "the number of rows")


@_case("a closed store opens itself again at the next call")
def a_closed_store_opens_again(area: Area) -> None:
    """Close it once, and twice."""
    area.store.close()
    area.store.commit([], [Put(area.key("a"), ONE)])
    area.store.close()
    area.store.close()
    require_equal(area.rows(), {"a": ONE}, "rows after it was closed")
