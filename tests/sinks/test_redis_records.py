"""Ten thousand bad and good records through Redis: each delivered or parked, and none lost."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from semel.ledger.verbs.parked import read_parked
from semel.verify.servers.redis import RedisServer
from support.sinks.redis_pipeline import lists, world_with

COUNT = 10_000
ENTITIES = 97


def record(number: int, random: Random) -> dict[str, object]:
    """A record: one of three is bad in one of many ways."""
    good: dict[str, object] = {
        "c": f"c{number % ENTITIES}",
        "id": number,
        "kind": "ok",
        "k": f"n:{number % ENTITIES}",
        "v": f"v{number}".encode(),
    }
    ways: list[dict[str, object]] = [
        {"v": None},
        {"k": None},
        {"k": "n:wrong-type"},
        {"k": "semel:pay/out/0"},
        {"v": b"x" * 150_000},
        {"v": "\u2603\U0001f600\u202e\x00\r\n".encode() * 20, "kind": "ok"},
        {"v": random.randbytes(50), "kind": "ok"},
        {"v": b"", "kind": "ok"},
        {"v": b"*3\r\n$3\r\nDEL\r\n", "kind": "ok"},
    ]
    if random.random() > 1 / 3:
        return good
    [chosen] = random.choices(ways, [1, 1, 1, 1, 0.1, 1, 1, 1, 1])
    return {**good, "kind": "bad", **chosen}


@pytest.mark.rows("S17")
def test_ten_thousand_malformed_records_are_each_delivered_or_parked_in_order(
    redis: RedisServer,
) -> None:
    random = Random(11)
    records = [record(number, random) for number in range(COUNT)]
    redis.execute("SET", "n:wrong-type", "a text")
    # The list of an entity's key holds its events' numbers, and their values follow.
    sink = lists(
        redis,
        key="{k}",
        arguments=("{id}", "{v}"),
        chunk_rows=500,
        chunk_bytes=100_000,
        park_limit=COUNT,
    )
    world = world_with(sink)
    schema = pa.schema(
        [("c", "string"), ("id", "int64"), ("kind", "string"), ("k", "string"), ("v", "binary")]
    )
    batches = pa.Table.from_pylist(records, schema=schema).to_batches(max_chunksize=700)
    opening = world.open(0)
    world.driver.end(opening, world.task(opening, batches))

    arrived: list[int] = []
    for number in range(ENTITIES):
        found = redis.execute("LRANGE", f"n:{number}", 0, -1)
        ids = [int(each) for each in found[::2]]
        assert ids == sorted(ids), "order per entity"
        assert [records[each]["v"] for each in ids] == found[1::2]
        arrived += ids
    parked = {row.event: row for _, row, _ in read_parked(world.client, "out")}
    good = [number for number, each in enumerate(records) if each["kind"] == "ok"]
    assert sorted(arrived) == good
    assert sorted([*arrived, *parked]) == list(range(COUNT))
    reasons = Counter(
        next(word for word in ("null", "WRONGTYPE", "'semel:'", "chunk_bytes") if word in row.why)
        for row in parked.values()
    )
    assert len(reasons) == 4
    assert redis.execute("GET", "n:wrong-type") == b"a text"
