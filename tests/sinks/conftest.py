"""Servers that the tests of sinks use."""

from __future__ import annotations

from kafka_fixture import kafka

__all__ = ["kafka"]
