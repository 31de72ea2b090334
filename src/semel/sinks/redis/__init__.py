"""Redis as a destination: one Lua script a chunk moves the progress row and acts."""

from semel.sinks.redis.sink import Redis

__all__ = ["Redis"]
