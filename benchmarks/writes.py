"""Counts the commits that change a ledger, as PostgreSQL itself sees them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from semel.ledger import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WATCH = """
create table watched (transaction xid8, tbl text);
create function watch() returns trigger language plpgsql as $$
begin
  insert into watched values (pg_current_xact_id(), coalesce(new.tbl, old.tbl));
  return null;
end $$;
create trigger watch after insert or update or delete on semel_ledger
  for each row execute function watch();
"""
_COUNT = """
select count(distinct transaction) filter (where tbl not in ('owners', 'pipelines')),
       count(distinct transaction) filter (where tbl = 'open') / 2
from watched
"""


@contextmanager
def counted_writes(url: str) -> Iterator[Callable[[], tuple[int, int]]]:
    """Watch the ledger at `url`; give a function that counts the commits to it, registration and
    beats aside, and how many minibatches were opened and completed.
    """
    import psycopg

    store = open_store(url)
    store.commit([], [])  # the first commit creates the table
    store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_WATCH)

        def count() -> tuple[int, int]:
            row = connection.execute(_COUNT).fetchone()
            if row is None:
                raise AssertionError("a count is one row")
            return int(row[0]), int(row[1])

        yield count
