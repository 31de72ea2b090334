"""Postgres earns TRANSACTIONAL: crashed at every step, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from semel.sinks import Sink
from semel.sinks.postgres import Postgres
from semel.verify.contract.plugin import SinkContract
from semel.verify.servers.postgres import PostgresServer

pytestmark = pytest.mark.rows("N10")

TABLE = """
create table arrived (
    n bigint generated always as identity, customer text, payment_id bigint, amount bigint,
    note text check (note <> 'refuse this')
)
"""

EACH = """
insert into arrived (customer, payment_id, note) values (%(customer)s, %(payment_id)s, %(note)s)
"""


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.create()
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        connection.execute(TABLE)
    yield postgres.url(name)
    postgres.drop(name)


class InATable(SinkContract):
    url = ""

    def arrived(self) -> list[tuple[str, int]]:
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute("select customer, payment_id from arrived order by n")
            return cursor.fetchall()


class TestPostgres(InATable):
    @pytest.fixture
    def sink(self, database: str) -> Sink:
        self.url = database
        return Postgres(name="arrived", url=database, table="arrived")


class TestPostgresByEvent(InATable):
    cases = ("clean", "mid-call", "reply-lost", "connection-cut", "refused", "odd-texts")

    @pytest.fixture
    def sink(self, database: str) -> Sink:
        self.url = database
        return Postgres(name="arrived", url=database, each=EACH)
