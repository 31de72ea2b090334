"""Words of a Lua body that Redis' sink takes for Redis' own, shown against a real server."""

from __future__ import annotations

import pytest

from semel.bench.redis_server import RedisServer
from sinks.redis_world import chunk_of, listed, lists, progress_of, session

LOCKED = """
    if ARGV[1] == '2' then return redis.error_reply('BUSY the account is locked') end
    redis.call('RPUSH', KEYS[1], ARGV[1])
"""


@pytest.mark.parametrize("ids", ["a1 a2 b3", "a2 b3 c4"], ids=["in the middle", "first"])
def test_a_body_that_refuses_one_event_refuses_no_other(redis: RedisServer, ids: str) -> None:
    sink = lists(redis, command="", script=LOCKED)
    held = session(sink)
    held.take_over()
    chunk = chunk_of(ids)
    receipt = held.deliver_with(chunk, progress_of(chunk))
    assert list(receipt.failures) == [ids.split().index("a2")]
    assert "b:3" in listed(redis)
