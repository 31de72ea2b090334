"""What the ledger is asked on the clean path, as the server's own log shows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from semel.verify.servers.postgres import PostgresServer
from support.spark.driver_scripts import Bed, assert_once

TOLD = re.compile(
    r"execute [^\n]*?: (?P<what>select [^\n]*)"
    r".*?DETAIL:  [Pp]arameters: (?P<values>[^\n]*)",
    re.DOTALL,
)


@pytest.fixture
def telling() -> Iterator[PostgresServer]:
    """A PostgreSQL that writes every statement with its values into its log."""
    server = PostgresServer(durable=False)
    try:
        server.execute("alter system set log_statement = 'all'")
        server.execute("select pg_reload_conf()")
        yield server
    finally:
        server.close()


@pytest.mark.rows("S7", "S8", "N2")
def test_a_new_partition_is_looked_up_once_and_no_event_ever(
    bed: Bed, telling: PostgresServer
) -> None:
    bed.payments(files=3, rows=20)
    words = {"partitions": 2}
    bed.run(bed.settings(sink="transactional", ledger=telling.url(), words=words))
    assert_once(bed.house.charges(), bed.expected)
    told = [(each["what"], each["values"]) for each in TOLD.finditer(telling.log())]
    reads = [values for what, values in told if "semel_commit" not in what]
    commits = [values for what, values in told if "semel_commit" in what]
    assert any("open" in values for values in reads), "the log tells what is read"
    assert [values for values in reads if re.search(r"\$1 = '\{?events", values)] == []
    claims = [values for values in commits if re.search(r"\$1 = '\{[^']*streams", values)]
    inserted = [values for values in claims if re.search(r"\$3 = '\{[^']*\bi\b", values)]
    assert len(inserted) == 6, "one for each of two partitions of three minibatches"
    looked = [values for values in reads if re.search(r"\$1 = '\{?[^']*streams", values)]
    by_tasks = [values for values in looked if "1of2" in values or "0of2" in values]
    assert by_tasks == [], "the claim itself is the look-up"
