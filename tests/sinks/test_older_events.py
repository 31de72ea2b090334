"""A dead letter that came before a column was added, at a real database: it is sent without the
column or refused alone, and the newer events go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semel.protocol import OnReject
from semel.sinks import Sink
from semel.sinks.redis import Redis
from semel.verify.servers.redis import RedisServer
from support.pipeline import GIVEN, World, events
from support.sinks.postgres_pipeline import PostgresDesk

WHOLE = {"table": "payments"}
WITHOUT = {
    "the whole table": WHOLE,
    "some columns": {"table": "payments", "columns": ["c", "id", "v"]},
    "each": {"each": "insert into payments (c, id, v) values (%(c)s, %(id)s, %(v)s)"},
    "apply": {"apply": "insert into payments (c, id, v) select c, id, v from semel_batch"},
}
NEEDING = {
    "some columns": {"table": "payments", "columns": ["c", "id", "v", "tip"]},
    "each": {"each": "insert into payments (c, id, v, tip) values (%(c)s, %(id)s, %(v)s, %(tip)s)"},
    "apply": {
        "apply": "insert into payments (c, id, v, tip) select c, id, v, tip from semel_batch"
    },
}


def started(sink: Sink) -> World:
    world = World(GIVEN)
    world.sinks.append(sink)
    world.start()
    return world


def with_tip(world: World, batch: int, text: str) -> None:
    """Deliver a minibatch of the query that has one more column now, and the released events."""
    world.start()
    rows = events(text)
    opening = world.open(batch)
    tips = pa.array([7] * len(rows), pa.int64())
    world.driver.end(opening, world.task(opening, [rows.append_column("tip", tips)]))
    world.driver.drain()


@pytest.fixture
def desk(postgres_url: str, tmp_path: Path) -> PostgresDesk:
    made = PostgresDesk(postgres_url, tmp_path)
    made.execute(
        'create table payments (topic text, partition int, "offset" bigint, c text, id bigint,'
        " v bigint constraint small check (v < 9), tip bigint)"
    )
    return made


def released(desk: PostgresDesk, settings: dict[str, Any], before: dict[str, Any]) -> World:
    """Event 1 of a was refused and 3 waits behind it; then its cause is gone and it is released."""
    sink = desk.sink(**before, on_reject=OnReject.BLOCK)
    world = started(sink)
    world.minibatch(0, "a1=9 b2 a3")
    assert world.parked() == ["a1 rejected", "a3 waiting"]
    desk.execute("alter table payments drop constraint small")
    world.resolve("a1", "resend")
    world.sinks[0] = desk.sink(**settings, on_reject=OnReject.BLOCK)
    return world


def paid(desk: PostgresDesk) -> list[tuple[int, int | None]]:
    return [(each, tip) for each, tip in desk.execute("select id, tip from payments order by id")]


@pytest.mark.parametrize("settings", WITHOUT.values(), ids=WITHOUT)
def test_postgres_takes_older_events_without_the_column(
    settings: dict[str, Any], desk: PostgresDesk
) -> None:
    world = released(desk, settings, settings)
    with_tip(world, 1, "a4 c5")
    with_tip(world, 2, "a6")
    tip = 7 if settings is WHOLE else None
    assert paid(desk) == [(1, None), (2, None), (3, None), (4, tip), (5, tip), (6, tip)]
    assert not world.heads()


@pytest.mark.parametrize(
    ("before", "after"), [(WITHOUT[n], NEEDING[n]) for n in NEEDING], ids=NEEDING
)
def test_postgres_refuses_older_events_alone_if_it_needs_the_column(
    before: dict[str, Any], after: dict[str, Any], desk: PostgresDesk
) -> None:
    world = released(desk, after, before)
    with_tip(world, 1, "b4 c5")
    with_tip(world, 2, "b6")
    assert paid(desk) == [(2, None), (4, 7), (5, 7), (6, 7)]
    assert world.parked() == ["a1 rejected", "a3 waiting"]
    [(_, row), _] = world.parked_rows()
    assert "tip" in row.why
    world.resolve("a1", "discarded")
    with_tip(world, 3, "c7")
    assert "a3 rejected" in world.parked(), "its turn came, and it is refused alone too"
    assert paid(desk)[-1] == (7, 7)


def test_redis_refuses_older_events_alone_if_its_template_needs_the_column(
    redis: RedisServer,
) -> None:
    settings: dict[str, Any] = {"name": "out", "url": redis.url(), "on_reject": OnReject.BLOCK}
    redis.execute("SET", "l:a", "not a list")
    world = started(Redis(**settings, command="RPUSH", key="l:{c}", arguments=("{id}",)))
    world.minibatch(0, "a1 b2 a3")
    assert world.parked() == ["a1 rejected", "a3 waiting"]
    redis.execute("DEL", "l:a")
    world.resolve("a1", "resend")
    world.sinks[0] = Redis(**settings, command="RPUSH", key="l:{c}", arguments=("{id}:{tip}",))
    with_tip(world, 1, "b4 c5")
    with_tip(world, 2, "b6")
    assert world.parked() == ["a1 rejected", "a3 waiting"]
    [(_, row), _] = world.parked_rows()
    assert "tip" in row.why
    assert redis.execute("LRANGE", "l:b", 0, -1) == [b"2", b"4:7", b"6:7"]
    assert redis.execute("LRANGE", "l:c", 0, -1) == [b"5:7"]
    world.sinks[0] = Redis(**settings, command="RPUSH", key="l:{c}", arguments=("{id}",))
    world.resolve("a1", "resend")
    with_tip(world, 3, "c7")
    assert redis.execute("LRANGE", "l:a", 0, -1) == [b"1", b"3"]
    assert not world.heads()
