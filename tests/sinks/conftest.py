"""Servers that the tests of sinks use."""

from __future__ import annotations

from kafka_fixture import kafka
from redis_fixture import cut, redis, redis_of_the_run

__all__ = ["cut", "kafka", "redis", "redis_of_the_run"]
