"""Servers that the contract of sinks is proved against."""

from __future__ import annotations

from kafka_fixture import kafka
from redis_fixture import redis, redis_of_the_run

__all__ = ["kafka", "redis", "redis_of_the_run"]
