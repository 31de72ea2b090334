"""Redis earns TRANSACTIONAL: crashed at every step, on a real server."""

from __future__ import annotations

import pytest

from semel.sinks import Sink
from semel.sinks.redis import Redis
from semel.verify.contract.plugin import SinkContract
from semel.verify.servers.redis import RedisServer

pytestmark = pytest.mark.rows("N10")


class TestRedis(SinkContract):
    @pytest.fixture
    def sink(self, redis_of_the_run: RedisServer) -> Sink:
        self.server = redis_of_the_run
        return Redis(
            name="arrived",
            url=redis_of_the_run.url(),
            command="RPUSH",
            key="arrived",
            arguments=("{payment_id}|{customer}",),
        )

    def arrived(self) -> list[tuple[str, str]]:
        found: list[bytes] = self.server.execute("LRANGE", "arrived", 0, -1)
        pairs = [each.decode().partition("|") for each in found]
        return [(customer, number) for number, _, customer in pairs]


class TestRedisThatRefuses(SinkContract):
    """A body that refuses some events: their entities go on, or wait with `on_reject="block"`."""

    cases = ("clean", "refused", "poison", "resend")

    @pytest.fixture
    def sink(self, redis_of_the_run: RedisServer) -> Sink:
        self.server = redis_of_the_run
        return Redis(
            name="chosen",
            url=redis_of_the_run.url(),
            script="""
                if ARGV[2] == 'refuse this' then return redis.error_reply('refused') end
                redis.call('RPUSH', KEYS[1], ARGV[1])
            """,
            key="chosen",
            arguments=("{payment_id}|{customer}", "{note}"),
        )

    def arrived(self) -> list[tuple[str, str]]:
        found: list[bytes] = self.server.execute("LRANGE", "chosen", 0, -1)
        pairs = [each.decode().partition("|") for each in found]
        return [(customer, number) for number, _, customer in pairs]
