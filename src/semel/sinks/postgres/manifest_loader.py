"""Loads the files of manifests into a PostgreSQL table: the key and the rows are one transaction.

- The key of a manifest is inserted into `semel_loads` first. If it is there for the same manifest,
  nothing is done; otherwise the rows of every file are copied, and both are committed together. A
  key that belongs to another manifest is `Diverged`: nothing is skipped silently.
- A second load of the same manifest waits for the first at the key, and then does nothing.
- The options of the URL apply to the load; a commit that is acknowledged is on the server's disk.
- The URL's password is never shown.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from semel.errors import ConfigurationError, Diverged, MissingExtra, NotDelivered
from semel.ledger.store.libpq import DEFAULTS, FORM, read_url
from semel.sinks.validation import no_column
from semel.urls import redact, require_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg
    import pyarrow as pa

    from semel.sinks.files.manifests import Manifest
    from semel.sinks.postgres.errors import Phase
    from semel.sinks.postgres.tables import Table

LOADS = b"""create table if not exists semel_loads (
  manifest text primary key, location text not null, rows bigint not null,
  digest text not null, loaded timestamptz not null default now())"""
_STANDING = "select location, rows, digest from semel_loads where manifest = %s for update"


@dataclass(frozen=True, kw_only=True)
class PostgresLoad:
    """Loads manifests into a table, each once. For `Files(then=...)`; runs on the driver.

    Attributes:
        url: `postgresql://user:password@host:port/database`.
        table: where rows go, as SQL writes it; its columns are found by name.
        columns: which columns of the files; None is all of them.
        deadline_s: how long the load of one manifest may take.
    """

    url: str = field(repr=False)
    table: str
    columns: Sequence[str] | None = None
    deadline_s: float = 300.0

    def __post_init__(self) -> None:
        require_one_line(self.url, "PostgresLoad: the url", FORM)
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ConfigurationError(
                f"PostgresLoad: {redact(self.url)!r} is not the URL of a PostgreSQL database; the "
                "form is postgresql://user:password@host/database"
            )
        with suppress(ImportError):  # without psycopg the load checks it
            read_url(self.url, "PostgresLoad: the url")
        if not self.table or isinstance(self.columns, str):
            raise ConfigurationError(
                "PostgresLoad: table= must be the name of a table, and columns= a list of names"
            )

    @property
    def where(self) -> str:
        """The table, for people to read."""
        return f"{self.table} of {redact(self.url)}"

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a column that the files will not have."""
        for name in self.columns or ():
            if name not in schema.names:
                raise no_column("then: columns of PostgresLoad", name, schema.names)

    def known(self, manifest: Manifest) -> bool:
        """Return whether it was loaded. Raises `Diverged` where another one has its key."""
        with _Loading(self) as loading:
            return loading.known(manifest)

    def load(self, manifest: Manifest) -> None:
        """Insert the key and the rows of every file in one transaction; where it was loaded, change
        nothing. Raises `Diverged` where another one has its key.
        """
        with _Loading(self) as loading:
            loading.load(manifest)


class _Loading:
    """One connection, and how far its transaction came."""

    def __init__(self, described: PostgresLoad) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("psycopg is not installed: pip install 'semel[postgres]'") from None
        from semel.sinks.postgres.errors import Phase, refused

        self._described = described
        self._phase: Phase = Phase.ROW
        given = read_url(described.url, "PostgresLoad: the url")
        settings: dict[str, Any] = {**DEFAULTS, **given, "client_encoding": "UTF8"}
        try:
            self._connection = psycopg.connect(**settings, autocommit=True)
        except psycopg.Error as error:
            raise refused(error, settings, described.where) from None

    def __enter__(self) -> Self:
        from semel.sinks.postgres.session import SESSION

        try:
            milliseconds = str(max(1, int(self._described.deadline_s * 1000)))
            self._connection.execute(SESSION, {"ms": milliseconds, "lock": milliseconds})
            self._connection.autocommit = False
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import psycopg

        from semel.sinks.postgres.errors import classify

        self._connection.close()
        if isinstance(error, psycopg.Error):
            raise classify(error, self._phase, self._described.where) from error

    def known(self, manifest: Manifest) -> bool:
        """Return whether its key is there, also on standbys that a commit waits for, because the
        lock has to be committed. Without the table it is not.
        """
        with self._connection.cursor() as cursor:
            if not self._is_there(cursor):
                return False
            cursor.execute(_STANDING, [manifest.key])
            found = cursor.fetchone()
        if found is None:
            return False
        self._require_same(manifest, *found)
        self._commit()
        return True

    def _is_there(self, cursor: psycopg.Cursor[Any]) -> bool:
        found = cursor.execute("select to_regclass('semel_loads') is not null").fetchone()
        return found == (True,)

    def _require_same(self, manifest: Manifest, location: str, rows: int, digest: str) -> None:
        """Raise `Diverged` if the key belongs to another manifest: its rows are not loaded."""
        if (location, digest) != (manifest.location, manifest.digest):
            raise Diverged(
                f"{manifest.location} with {manifest.rows} rows was not loaded into "
                f"{self._described.where}: its key {manifest.key!r} is in semel_loads for "
                f"{'another ' if location == manifest.location else ''}{location} with {rows} "
                "rows. A pipeline of another ledger may load into this database: give the "
                "pipeline or the sink another name. If the old rows are gone, remove the old keys "
                "from semel_loads; if the folder was only moved, correct their location there"
            )

    def load(self, manifest: Manifest) -> None:
        """Do it, if the key is new."""
        from semel.sinks.postgres.errors import Phase
        from semel.sinks.postgres.tables import described

        with self._connection.cursor() as cursor:
            if not self._is_there(cursor):
                cursor.execute("select pg_advisory_xact_lock(hashtext('semel_loads'))")
                cursor.execute(LOADS)
                self._connection.commit()
            cursor.execute(
                "insert into semel_loads (manifest, location, rows, digest) "
                "values (%s, %s, %s, %s) on conflict do nothing",
                [manifest.key, manifest.location, manifest.rows, manifest.digest],
            )
            if not cursor.rowcount:
                if not self.known(manifest):
                    raise NotDelivered(f"{self._described.where}: the key was removed just now")
                return
            self._phase = Phase.EFFECT
            into = described(self._connection, self._described.table, self._described.where)
            for table in manifest.tables():
                for batch in table.combine_chunks().to_batches():
                    self._copy(cursor, batch, into)
        self._commit()

    def _commit(self) -> None:
        """Commit, and wait for standbys if there are any, but not forever."""
        from semel.sinks.postgres.errors import Phase
        from semel.sinks.postgres.session import commit

        self._phase = Phase.COMMIT
        where = self._described.where
        if commit(self._connection, self._described.deadline_s, where) != "COMMIT":
            raise NotDelivered(f"{where}: the server rolled the transaction back")

    def _copy(
        self,
        cursor: psycopg.Cursor[Any],
        batch: pa.RecordBatch,
        into: Table,
    ) -> None:
        from psycopg import sql

        from semel.sinks.postgres.copy import copy_text

        names = list(self._described.columns or batch.schema.names)
        for name in names:
            if name not in into.types or name not in batch.schema.names:
                raise ConfigurationError(
                    f"PostgresLoad: column {name!r} is not both in the files and in "
                    f"{self._described.where}: list the columns that are, columns=[...], or add it"
                )
        types = [into.types[name] for name in names]
        text = copy_text([batch.column(name) for name in names], names, types)
        columns = sql.SQL(", ").join([sql.Identifier(name) for name in names])
        statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(into.name, columns)
        with cursor.copy(statement) as copy:
            for piece in text:
                copy.write(memoryview(piece))
