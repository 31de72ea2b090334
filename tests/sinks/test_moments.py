"""A date or a timestamp of any year arrives as the moment that it is, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semel.errors import Rejected
from semel.events.encoding.python_values import arrow_value
from semel.sinks.redis import Redis
from semel.verify.servers.redis import RedisServer
from sinks.test_files_reading import round_trip
from support.sinks.postgres_pipeline import PostgresDesk, batch, chunk_of
from support.sinks.redis_pipeline import chunk_of as redis_chunk
from support.sinks.redis_pipeline import progress_of, session

DAY_S = 86_400


def day(year: int) -> int:
    """The first of January, in days since 1970."""
    return int(np.datetime64(year - 1970, "Y").astype("datetime64[D]").astype(np.int64))


def moment(year: int, kind: pa.DataType) -> pa.Array:
    """Noon of the first of January, as one value of a column."""
    if pa.types.is_date(kind):
        return pa.array([day(year)], pa.int32()).cast(kind)
    return pa.array([(day(year) * DAY_S + DAY_S // 2)]).cast(pa.timestamp("s")).cast(kind)


KINDS = [
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.timestamp("us"),
    pa.timestamp("s", "UTC"),
    pa.date32(),
]
TYPES = {pa.date32(): "date", pa.timestamp("us"): "timestamp"}
WAYS: list[dict[str, Any]] = [
    {"table": "things", "columns": ["at"]},
    {"apply": "insert into things select at from semel_batch"},
    {"each": "insert into things values (%(at)s)"},
]


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> Iterator[PostgresDesk]:
    made = PostgresDesk(postgres_url, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS, ids=["append", "apply", "each"])
def test_postgresql_gets_the_moment_of_any_year_that_it_has(
    desk: PostgresDesk, way: dict[str, Any]
) -> None:
    for place, kind in enumerate(KINDS):
        into = TYPES.get(kind, "timestamptz")
        desk.execute(f"drop table if exists things; create table things (at {into})")
        session = desk.open(desk.sink(**way, name=str(place)))
        for number, year in enumerate([1, 9999, 10_000, 32_767, 32_768, 40_000, 294_000]):
            desk.execute("truncate things")
            desk.deliver(session, chunk_of(batch([1], at=moment(year, kind)), number))
            wanted = f"make_date({year}, 1, 1)"
            if into != "date":
                wanted = f"timestamp '{year:04d}-01-01 12:00:00'"
            if into == "timestamptz":
                wanted += " at time zone 'UTC'"
            found = desk.execute(f"select at = {wanted} from things")
            assert found == [(True,)], (kind, year)


@pytest.mark.parametrize("way", WAYS, ids=["append", "apply", "each"])
@pytest.mark.parametrize("into", ["timestamptz", "text"])
def test_postgresql_is_not_given_a_moment_before_the_year_1(
    desk: PostgresDesk, way: dict[str, Any], into: str
) -> None:
    desk.execute(f"create table things (at {into})")
    session = desk.open(desk.sink(**way))
    for year in (-290_000, -40_000, -32_768, -1, 0):
        chunk = chunk_of(batch([1], at=moment(year, pa.timestamp("us", "UTC"))))
        with pytest.raises(Rejected, match="before the year 1"):
            desk.deliver(session, chunk)


def test_one_event_of_a_far_year_is_parked_and_its_neighbours_arrive(desk: PostgresDesk) -> None:
    desk.execute("create table things (id bigint, at timestamptz)")
    kind = pa.timestamp("s", "UTC")
    at = pa.concat_arrays([moment(2026, kind), moment(500_000, kind), moment(2027, kind)])
    for way in (
        {"table": "things", "columns": ["id", "at"]},
        {"apply": "insert into things select id, at from semel_batch"},
        {"each": "insert into things values (%(id)s, %(at)s)"},
    ):
        desk.execute("truncate things")
        (desk.folder / "ledger.db").unlink(missing_ok=True)
        desk.execute("drop table if exists semel_progress, semel_progress_ids")
        desk.minibatch(desk.sink(**way), [batch([1, 2, 3], at=at)])
        assert desk.execute("select id from things order by id") == [(1,), (3,)]
        assert [row.event for row in desk.parked()] == [2]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("year", [-290_000, -32_768, -1, 0, 1, 9999, 32_767, 32_768, 40_000])
def test_redis_gets_the_moment_of_any_year(
    redis: RedisServer, kind: pa.DataType, year: int
) -> None:
    rows = pa.RecordBatch.from_pydict({"c": ["a"], "id": [1], "at": moment(year, kind)})
    sink = Redis(name="out", url=redis.url(), command="SET", key="k", arguments=("{at}",))
    chunk = redis_chunk(rows)
    session(sink).deliver_with(chunk, progress_of(chunk))
    found = redis.execute("GET", "k").decode()
    sign = "-" if year < 0 else ""
    assert found.startswith(f"{sign}{abs(year):04d}-01-01"), found
    if not pa.types.is_date(kind):
        assert " 12:00:00" in found or "+" in found, found


def test_redis_gets_a_moment_whose_zone_had_seconds_in_utc(redis: RedisServer) -> None:
    old = pa.array([-3_000_000_000]).cast(pa.timestamp("s", "Europe/Berlin"))
    rows = pa.RecordBatch.from_pydict({"c": ["a"], "id": [1], "at": old})
    sink = Redis(name="out", url=redis.url(), command="SET", key="k", arguments=("{at}",))
    chunk = redis_chunk(rows)
    session(sink).deliver_with(chunk, progress_of(chunk))
    assert redis.execute("GET", "k") == b"1874-12-07 18:40:00Z"


@pytest.mark.parametrize(
    ("form", "kind"),
    [(form, kind) for form in ("json", "csv") for kind in KINDS]
    + [("json", pa.list_(pa.timestamp("us", "UTC")))],
    ids=str,
)
@pytest.mark.parametrize("year", [-290_000, -32_768, -1, 1, 32_767, 32_768, 40_000, 290_000])
def test_files_hold_the_moment_of_any_year(
    tmp_path: Path, form: str, kind: pa.DataType, year: int
) -> None:
    if pa.types.is_list(kind):
        array = pa.ListArray.from_arrays(
            pa.array([0, 1], pa.int32()), moment(year, kind.value_type)
        )
    else:
        array = pa.concat_arrays([moment(year, kind), moment(2026, kind)])
    rows = pa.RecordBatch.from_arrays([array], names=["at"])
    assert round_trip(tmp_path, form, rows).column("at").combine_chunks().equals(array)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_parked_value_of_a_far_year_is_shown_as_the_moment_it_is(kind: pa.DataType) -> None:
    assert "40000-01-01" in arrow_value(moment(40_000, kind)).text


@pytest.mark.parametrize("into", ["jsonb", "timestamptz[]"])
def test_a_list_with_a_moment_that_python_cannot_hold_is_refused(
    desk: PostgresDesk, into: str
) -> None:
    desk.execute(f"create table things (at {into})")
    far = moment(40_000, pa.timestamp("us", "UTC"))
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), far)
    session = desk.open(desk.sink(table="things", columns=["at"]))
    with pytest.raises(Rejected, match="'at'"):
        desk.deliver(session, chunk_of(batch([1], at=lists)))
