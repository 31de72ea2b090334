"""A COMMIT that no timeout of the server ends, shown against a real one."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

from semel.bench.servers import PostgresServer
from semel.errors import SemelError
from sinks.postgres_desk import Desk, batch, chunk_of, progress_of


def test_a_commit_that_waits_for_a_standby_that_is_away_has_an_end(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    desk = Desk(postgres_url, tmp_path)
    desk.execute("create table payments (customer text, id bigint primary key, amount bigint)")
    session = desk.open(desk.sink(table="payments", deadline_s=1.0))
    session.take_over()
    chunk = chunk_of(batch(range(3)))

    def deliver() -> None:
        with suppress(SemelError):
            session.deliver_with(chunk, progress_of(chunk))

    delivering = threading.Thread(target=deliver)
    postgres.execute("alter system set synchronous_standby_names = 'a_standby_that_is_away'")
    postgres.execute("select pg_reload_conf()")
    time.sleep(1.0)
    try:
        delivering.start()
        delivering.join(8.0)  # deadline_s is 1
        ended = not delivering.is_alive()
    finally:
        postgres.execute("alter system reset synchronous_standby_names")
        postgres.execute("select pg_reload_conf()")
        delivering.join(10.0)
        desk.close()
    assert ended
