"""A PostgreSQL destination: the progress row and the effect are one transaction (TRANSACTIONAL).

- One of three modes is chosen: `table` appends with COPY, `apply` runs one statement over a staged
  chunk, `each` runs one statement per event.
- The progress row is in the destination's own database; the ledger may be there or elsewhere.
- The URL's password is never shown.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger.store.libpq import FORM, read_url
from semel.protocol import Capability
from semel.sinks.sink import Sink
from semel.sinks.validation import no_column
from semel.urls import redact, require_one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from semel.sinks.postgres.session import PostgresSession
    from semel.sinks.sink import Target

_COMMENT = re.compile(r"\s+|--[^\n]*(?:\n|$)|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[a-z]+", re.IGNORECASE)
_ENDS = (
    "abort",
    "begin",
    "commit",
    "copy",
    "discard",
    "end",
    "prepare",
    "release",
    "reset",
    "rollback",
    "savepoint",
    "set",
    "start",
)
"""Statements that would end, cut or change semel's own transaction, or talk past it."""


@dataclass(frozen=True, kw_only=True)
class Postgres(Sink):
    """A PostgreSQL database, written with COPY, a set-based statement, or a statement per event.

    Attributes:
        url: `postgresql://user:password@host:port/database?options`.
        table: append every event to this table (`schema.table`, as SQL writes it).
        columns: the columns of the DataFrame that are appended; a mapping also renames them
            ({column of the DataFrame: column of the table}). None is all of them.
        apply: one statement, or several, over the temporary table `semel_batch`, which has the
            chunk: the columns of the DataFrame, `semel_entity`, `semel_event` and `semel_osn`.
        each: one statement per event, with its columns as `%(column)s`.
        schema: where `semel_progress` and `semel_progress_ids` are.
    """

    url: str = field(repr=False)
    table: str | None = None
    columns: Sequence[str] | Mapping[str, str] | None = None
    apply: str | Sequence[str] | None = None
    each: str | None = None
    schema: str = "public"
    chunk_rows: int = 10_000

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, before anything connects."""
        _require_url(self.url, self.name)
        ways = [way for way in ("table", "apply", "each") if getattr(self, way) is not None]
        if len(ways) != 1:
            raise ConfigurationError(
                f"sink {self.name!r}: pass exactly one of table=, apply= and each=; given: "
                f"{' and '.join(ways) or 'none'}"
            )
        if self.columns is not None and self.table is None:
            raise ConfigurationError(
                f"sink {self.name!r}: columns= goes with table=; a statement names its own columns"
            )
        if self.columns is not None and (isinstance(self.columns, str) or not self.columns):
            raise ConfigurationError(
                f"sink {self.name!r}: columns= must be a list of names, or a mapping {{column of "
                "the DataFrame: column of the table}"
            )
        if self.deadline_s <= 0 or self.chunk_rows < 1:
            raise ConfigurationError(
                f"sink {self.name!r}: deadline_s and chunk_rows must be greater than 0"
            )
        if not self.schema or "\0" in self.schema:
            raise ConfigurationError(
                f"sink {self.name!r}: schema={self.schema!r} is not a valid schema name"
            )
        for statement in self.statements:
            _require_statement(statement, self.name)

    @property
    def capability(self) -> Capability:
        """The database commits the progress row together with the effect."""
        return Capability.TRANSACTIONAL

    @property
    def mode(self) -> str:
        """Return which of the three modes it is: append, apply or each."""
        if self.table is not None:
            return "append"
        return "each" if self.apply is None else "apply"

    @property
    def statements(self) -> tuple[str, ...]:
        """The user's own statements, in order."""
        if self.each is not None:
            return (self.each,)
        if self.apply is None:
            return ()
        return (self.apply,) if isinstance(self.apply, str) else tuple(self.apply)

    @property
    def where(self) -> str:
        """The destination for people to read, without its password."""
        return redact(self.url)

    def open(self, target: Target) -> PostgresSession:
        """Connect, on the executor."""
        from semel.sinks.postgres.session import PostgresSession

        return PostgresSession(self, target)

    def notes(self) -> tuple[str, ...]:
        """State what the promise requires of this server."""
        return (
            (
                f"Visible at the commit of each chunk, {self.chunk_rows} events at most; progress "
                f"is one row per partition in {self.schema}.semel_progress, kept forever."
            ),
            (
                "This requires that the server keeps what it committed: fsync=off, or a restored "
                "backup, breaks it."
            ),
        )

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a setting that names a column which is not there."""
        from semel.sinks.postgres.parameters import OF_SEMEL, STAGED, named

        who = f"sink {self.name!r}"
        for name in self.columns or ():
            if name not in schema.names:
                raise no_column(f"{who}, columns", name, schema.names)
        for name in named(self.each or ""):
            if name not in schema.names and name not in OF_SEMEL:
                raise no_column(f"{who}, each", name, [*schema.names, *OF_SEMEL])
        taken = sorted({*schema.names} & {*STAGED}) if self.apply is not None else []
        if taken:
            raise ConfigurationError(
                f"{who}, apply: the DataFrame has columns with names that semel uses: "
                f"{', '.join(taken)}; rename them"
            )

    def describe(self) -> dict[str, object]:
        """Return where the progress is: statements and addresses may change under a pipeline."""
        return {**super().describe(), "progress": f"{self.schema}.semel_progress"}


def _require_url(url: str, name: str) -> None:
    if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
        shown = redact(url) if isinstance(url, str) and "://" in url else "the url"
        raise ConfigurationError(
            f"sink {name!r}: {shown} is not the URL of a PostgreSQL database; the form is "
            "postgresql://user:password@host:port/database"
        )
    require_one_line(url, f"sink {name!r}: the url", FORM)
    with suppress(ImportError):  # without psycopg the executors check it
        read_url(url, f"sink {name!r}: the url")


def _require_statement(statement: str, name: str) -> None:
    rest = statement
    while (found := _COMMENT.match(rest)) is not None:
        rest = rest[found.end() :]
    word = _WORD.match(rest)
    if word is None or "\0" in statement:
        raise ConfigurationError(f"sink {name!r}: {statement!r} is not a statement")
    if word[0].lower() in _ENDS:
        raise ConfigurationError(
            f"sink {name!r}: the statement begins with {word[0].upper()}, which only semel may "
            "run: the effect and the progress row are one transaction"
        )
