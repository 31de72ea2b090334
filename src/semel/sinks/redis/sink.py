"""Redis as a sink: counters, lists, streams, or a Lua body of your own (TRANSACTIONAL).

One Lua script per chunk moves semel's progress row and runs every event, so both happen or neither.

The settings of Redis determine how durable that is, and `Redis.durability` reads them. Row and
effects are always lost together, because they are one script: with `appendonly yes` and
`appendfsync always` nothing that was acknowledged is lost; with `everysec` a crash of the machine
may lose the last seconds; with snapshots only, everything since the last one. What was lost after
its minibatch was complete is not sent again: semel's ledger has it as delivered, and the next chunk
is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from semel.errors import ConfigurationError, MissingExtra, SemelError
from semel.protocol import Capability, OnReject
from semel.sinks.redis import durability
from semel.sinks.redis.connection import RedisConnection
from semel.sinks.redis.scripts import COMMAND, Script, applying
from semel.sinks.redis.session import RedisSession
from semel.sinks.redis.templates import OWN, TextTemplate, fill
from semel.sinks.redis.urls import settings_of
from semel.sinks.sink import Sink, Target
from semel.sinks.validation import no_column
from semel.urls import redact, require_authority, require_one_line

ARGUMENTS: dict[str, tuple[int, int]] = {
    "INCRBY": (1, 1),
    "DECRBY": (1, 1),
    "HINCRBY": (2, 2),
    "HINCRBYFLOAT": (2, 2),
    "HSET": (2, 200),
    "SET": (1, 8),
    "APPEND": (1, 1),
    "LPUSH": (1, 200),
    "RPUSH": (1, 200),
    "SADD": (1, 200),
    "ZADD": (2, 200),
    "ZINCRBY": (2, 2),
    "XADD": (3, 200),
    "DEL": (0, 0),
}
"""The commands, and how few and how many arguments each takes after its key.

INCRBYFLOAT is not among them: called from a script it corrupts the memory of a Redis before 7.0.8
that was built with libc's allocator (redis/redis#11652, seen on 6.2.14). HINCRBYFLOAT does not.
"""

CHUNK_ROWS_MAX = 10_000
"""A script has Redis to itself while it runs: so many events take it some ten milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Redis(Sink):
    """Runs a command, or a Lua body, for every event; semel's progress row moves with it.

    `key` and `arguments` are templates: `{customer}` is a column, `{{` a brace. With `script` the
    body has `KEYS` and `ARGV` of its event, and rejects it by `return redis.error_reply(...)`
    before it writes. With `on_reject="block"` a script takes one event, because Redis cannot undo
    what followers of a rejected event would have done.

    Attributes:
        url: redis://[user]:password@host:port/database, rediss:// for TLS, unix:// for a socket.
        command: one of `ARGUMENTS`; empty if there is a `script`.
        key: the key, or for a `script` several; none may begin with `semel:`.
        arguments: the arguments after the key in Redis' own command.
        script: a Lua body that is run for every event instead of a command.
        chunk_bytes: the most bytes of keys and arguments of one script; a single event that is
            larger is rejected.
        replicas: how many replicas must have a chunk before it counts as delivered.
        replicas_within_s: how long a chunk waits for them before they are asked again.
    """

    url: str = field(repr=False)
    key: str | tuple[str, ...]
    command: str = ""
    arguments: tuple[str, ...] = ()
    script: str = ""
    chunk_rows: int = 2_000
    chunk_bytes: int = 64 * 1024 * 1024
    replicas: int = 0
    replicas_within_s: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", self.command.upper())
        if isinstance(self.arguments, str):
            raise ConfigurationError(
                f'sink {self.name!r}: arguments must be a tuple: write ("{self.arguments}",)'
            )
        object.__setattr__(self, "arguments", tuple(self.arguments))
        if self.on_reject is OnReject.BLOCK:
            object.__setattr__(self, "chunk_rows", 1)
        self._require_settings()
        self._require_command()
        self._require_keys()

    def _require_settings(self) -> None:
        who = f"sink {self.name!r}"
        require_one_line(self.url, f"{who}: the url", "redis://[user]:password@host:port/0")
        if self.url.partition("://")[0] not in ("redis", "rediss", "unix") or "://" not in self.url:
            raise ConfigurationError(
                f"{who}: {redact(self.url)!r} is not the URL of a Redis: write "
                "redis://[user]:password@host:port/0 (rediss:// for TLS, unix:///path for a socket)"
            )
        require_authority(self.url, f"{who}: the url", "redis://[user]:password@host:port/0")
        try:
            settings_of(self.url, self.deadline_s)
        except MissingExtra:
            pass  # opening a session needs it, and raises if it is missing
        except ConfigurationError as error:
            raise ConfigurationError(f"{who}: {error}") from None
        if type(self.chunk_rows) is not int or not 1 <= self.chunk_rows <= CHUNK_ROWS_MAX:
            raise ConfigurationError(
                f"{who}: chunk_rows must be between 1 and {CHUNK_ROWS_MAX}, got "
                f"{self.chunk_rows!r}, because Redis does nothing else while a script runs"
            )
        if type(self.chunk_bytes) is not int or not 1 <= self.chunk_bytes <= 512 * 1024 * 1024:
            raise ConfigurationError(
                f"{who}: chunk_bytes must be between 1 and 512 MiB, got {self.chunk_bytes!r}"
            )
        if type(self.replicas) is not int or self.replicas < 0:
            raise ConfigurationError(f"{who}: replicas must be 0 or more, got {self.replicas!r}")
        if not 0 < self.replicas_within_s < self.deadline_s:
            raise ConfigurationError(
                f"{who}: replicas_within_s must be more than 0 and less than deadline_s "
                f"({self.deadline_s:g}), got {self.replicas_within_s!r}"
            )

    def _require_command(self) -> None:
        who = f"sink {self.name!r}"
        if bool(self.command) == bool(self.script):
            raise ConfigurationError(f"{who}: pass either a command or a script")
        if self.script:
            return
        if self.command not in ARGUMENTS:
            raise ConfigurationError(
                f"{who}: unknown command {self.command!r}; use {', '.join(ARGUMENTS)}, or write a "
                "script: redis.call('...', KEYS[1], ARGV[1])"
            )
        fewest, most = ARGUMENTS[self.command]
        if not fewest <= len(self.arguments) <= most:
            takes = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise ConfigurationError(
                f"{who}: {self.command} takes {takes} arguments after its key, but "
                f"{len(self.arguments)} are given"
            )

    def _require_keys(self) -> None:
        who = f"sink {self.name!r}"
        if not self.key or (not self.script and not isinstance(self.key, str)):
            raise ConfigurationError(f"{who}: pass one key; only a script has several")
        keys, _ = self.key_templates, self.argument_templates  # to read them is to check them
        for template in keys:
            first = template.parts[0] if template.parts else b""
            if isinstance(first, bytes) and first.startswith(OWN):
                raise ConfigurationError(
                    f"{who}: keys that begin with 'semel:' are reserved for semel; choose another"
                )
        if len({template.tag for template in keys}) > 1:
            raise ConfigurationError(
                f"{who}: its keys have different hash tags, so they may be on different nodes of "
                "a cluster; use the same tag in all of them, or none"
            )

    @property
    def capability(self) -> Capability:
        """TRANSACTIONAL: one script moves the progress row and has the effect."""
        return Capability.TRANSACTIONAL

    def notes(self) -> tuple[str, ...]:
        """Describe how durable this server is, as it reports itself."""
        return (
            (
                f"Visible with each chunk, {self.chunk_rows} events at most; the progress row is "
                "kept beside the keys and does not expire."
            ),
            f"Durability: {self.durability()}",
        )

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a template that names a column which is not there, or one
        that is not one value.
        """
        empty = pa.RecordBatch.from_pylist([], schema)
        for what, templates in (
            ("key", self.key_templates),
            ("arguments", self.argument_templates),
        ):
            for name in [name for each in templates for name in each.columns]:
                if name.partition(".")[0] not in schema.names and name not in schema.names:
                    raise no_column(f"sink {self.name!r}, {what}", name, schema.names)
            try:
                fill(empty, templates, ())
            except ConfigurationError as error:
                raise ConfigurationError(f"sink {self.name!r}, {what}: {error}") from None

    def describe(self) -> dict[str, object]:
        """Return where the progress rows are; what the sink does to its keys may change."""
        tag = None if self.tag is None else self.tag.decode()
        return {**super().describe(), "hash_tag": tag}

    def open(self, target: Target) -> RedisSession:
        """Connect, and see that this Redis can keep the promise."""
        line = RedisConnection(self.url, self.deadline_s)
        try:
            reported = durability.read_info(line)
            durability.require_lasting(reported, line.shown)
            if reported.get("cluster_enabled") == "1" and self.tag is None:
                raise ConfigurationError(
                    f"sink {self.name!r}: {line.shown} is a cluster, where one script reaches the "
                    "keys of one hash slot. Begin every key with one constant hash tag, such as "
                    "'{{balances}}:{customer}' (a doubled brace stands for itself)"
                )
        except BaseException:
            line.close()
            raise
        return RedisSession(self, line, target)

    def durability(self) -> str:
        """Ask the server what it keeps through a crash, and describe it; 'unknown' if it does not
        report it.
        """
        try:
            line = RedisConnection(self.url, self.deadline_s)
            try:
                return durability.durability(line)
            finally:
                line.close()
        except SemelError as error:
            return f"unknown: {error}"

    # -- what the settings come to

    @cached_property
    def key_templates(self) -> tuple[TextTemplate, ...]:
        """The keys of an event."""
        keys = (self.key,) if isinstance(self.key, str) else self.key
        return tuple(TextTemplate.of(each, f"sink {self.name!r}: the key") for each in keys)

    @cached_property
    def argument_templates(self) -> tuple[TextTemplate, ...]:
        """The arguments of an event."""
        what = f"sink {self.name!r}: the argument"
        return tuple(TextTemplate.of(each, what) for each in self.arguments)

    @property
    def tag(self) -> bytes | None:
        """The hash tag that all keys share, None if there is none."""
        return self.key_templates[0].tag

    @cached_property
    def lua(self) -> Script:
        """The script of a chunk."""
        return applying(self.script) if self.script else COMMAND
