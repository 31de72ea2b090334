"""What a Redis server reports of itself: whether it keeps the progress row, and how durable it is.

A setting that cannot be read is unknown, and unknown never counts as durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, SemelError

if TYPE_CHECKING:
    from semel.sinks.redis.connection import RedisConnection

OLDEST = (5, 0)
"""Since 5.0 Redis writes what a script did into log and replicas, all of it or nothing."""

_TOGETHER = (
    "The progress row and the effects are always lost together. Events whose minibatch is "
    "complete in semel's ledger are not sent again, so what Redis loses of them stays "
    "lost, and the pipeline stops at the next delivery to it"
)
_FSYNC = {
    "always": "what Redis acknowledged is on its disk, and survives a crash of the machine",
    "everysec": (
        "a crash can lose what Redis acknowledged in the last seconds; a clean restart "
        "loses nothing"
    ),
    "no": (
        "the operating system decides when to write: a crash of the machine can lose what "
        "Redis acknowledged in about the last half minute; a clean restart loses nothing"
    ),
}


def read_info(line: RedisConnection) -> dict[str, str]:
    """Ask the server for its own settings."""
    text = line.ask(b"INFO").decode(errors="replace")
    pairs = (each.partition(":") for each in text.splitlines() if not each.startswith("#"))
    return {name: value.strip() for name, colon, value in pairs if colon}


def require_lasting(reported: dict[str, str], shown: str) -> None:
    """Refuse a server that may drop the progress row while it runs, or splits what a script did."""
    version = reported.get("redis_version", "")
    numbers = version.split(".")[:2]
    if not all(each.isdecimal() for each in numbers) or tuple(map(int, numbers)) < OLDEST:
        raise ConfigurationError(
            f"{shown} is Redis {version or 'of unknown version'}; semel needs 5.0 or later, which "
            "keeps all writes of a script together"
        )
    limit, policy = reported.get("maxmemory"), reported.get("maxmemory_policy")
    if limit is None or policy is None:
        raise ConfigurationError(
            f"{shown} does not report what it evicts (INFO memory): allow the user INFO. If a "
            "progress row is evicted, events are delivered twice"
        )
    if limit != "0" and policy.startswith("allkeys"):
        raise ConfigurationError(
            f"{shown} has maxmemory-policy {policy}: it may evict semel's progress row, and events "
            "would be delivered twice. Set maxmemory-policy to noeviction or volatile-..., or use "
            "another Redis for this"
        )


def durability(line: RedisConnection) -> str:
    """Describe what the server keeps through a crash."""
    reported = read_info(line)
    parts = [_on_disk(line, reported), _TOGETHER]
    replicas = reported.get("connected_slaves", "0")
    if replicas not in ("", "0"):
        parts.append(
            f"{replicas} replicas follow asynchronously: one that takes over may lack the last "
            "events, unless the sink waits for `replicas`"
        )
    return ". ".join(parts)


def _on_disk(line: RedisConnection, reported: dict[str, str]) -> str:
    match reported.get("aof_enabled"):
        case "1":
            fsync = _setting(line, b"appendfsync")
            if fsync is None:
                return "appendonly yes, appendfsync unknown (CONFIG is not allowed)"
            return f"appendonly yes, appendfsync {fsync}: {_FSYNC.get(fsync, 'unknown')}"
        case "0":
            save = _setting(line, b"save")
            if save is None:
                return (
                    "appendonly no, snapshots unknown (CONFIG is not allowed): a restart can lose "
                    "what Redis acknowledged, possibly all of it"
                )
            if not save:
                return "appendonly no, no snapshots: a restart loses everything"
            return (
                f"appendonly no, snapshots ({save}): a crash loses what Redis acknowledged since "
                "the last snapshot"
            )
        case _:
            return "unknown: the server does not report whether it has an append-only file"


def _setting(line: RedisConnection, name: bytes) -> str | None:
    """Read one setting; None if that is not allowed."""
    try:
        found = line.ask(b"CONFIG", b"GET", name)
    except SemelError:
        return None
    return found[1].decode(errors="replace") if len(found) == 2 else None
