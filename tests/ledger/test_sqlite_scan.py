"""A scan of a SQLite ledger reads the rows that it returns, and not those before or after them."""

from __future__ import annotations

import pytest

from semel.ledger.store.commit import Key, Put
from semel.ledger.store.sqlite import SqliteStore

ROWS = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    made = SqliteStore(tmp_path_factory.mktemp("scan") / "ledger.db")
    rows = [Put(Key("parked", f"charges/bank/c{at:07}"), "{}") for at in range(ROWS)]
    made.commit([], [*rows, Put(Key("parked", "job/bank/a"), "{}")])
    return made


@pytest.mark.parametrize(
    ("prefix", "after", "found"),
    [
        ("job/", "", "job/bank/a"),
        ("job/", "charges/bank/c0000005", "job/bank/a"),
        ("charges/bank/c0019", "", "charges/bank/c0019000"),
        ("charges/", "charges/bank/c0019998", "charges/bank/c0019999"),
        ("charges/bank/c0019", "charges/bank/c0000001", "charges/bank/c0019000"),
        ("", "charges/bank/c0019999", "job/bank/a"),
        ("charges/", "job/", None),
        ("zzz/", "", None),
    ],
)
def test_a_scan_begins_where_its_first_row_is(
    store: SqliteStore, prefix: str, after: str, found: str | None
) -> None:
    list(store.scan("parked", "none/"))  # opens the connection
    connection = store._reader._connection
    assert connection is not None
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(count, 100)
    rows = [at.key for at, _ in store.scan("parked", prefix, after=after, limit=1)]
    connection.set_progress_handler(None, 100)
    assert rows == ([] if found is None else [found])
    assert steps < 10, f"{100 * steps} steps of SQLite for one row"
