"""The audit log: Parquet files by day, with what became of every event at every sink.

Below `url` each pipeline has a folder, in it each day: `charges/day=2026-11-19/NAME.parquet`.
Readers need no manifest: what Spark, Arrow and others take for data is complete, and each row is
there once.

Always true:
- a file is written aside, in a folder whose name begins with `_`, which readers pass over. It is
  moved to its day only after the ledger has named it, and never changes from then on;
- its name has the digest of its content, and the ledger names it: moving it again changes nothing,
  and a file that the ledger does not name is never moved.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ConfigurationError, NotDelivered, plain_text
from semel.events import key_part
from semel.sinks.files.storage import Folder, path_part, refuse_url, where_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.events import EventID
    from semel.sinks.files.storage import Writing

ASIDE = "_aside"
PRUNED = "_pruned"
RESOLVED = "resolved"
_DAY = re.compile(r"day=(\d{4}-\d{2}-\d{2})")
_UNSAFE = "[%/,\x00-\x1f\x7f-\x9f]"

AUDIT_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("sink", pa.string()),
        ("partition", pa.string()),
        ("entity", pa.string()),
        ("event", pa.string()),
        ("osn", pa.int64()),
        ("minibatch", pa.string()),
        ("attempt", pa.string()),
        ("time", pa.timestamp("us", "UTC")),
        ("outcome", pa.string()),
        ("why", pa.string()),
    ]
)


class AuditRecord(NamedTuple):
    """One row of the audit log; `time` is in seconds since 1970."""

    sink: str
    outcome: str
    minibatch: str
    attempt: str | None
    osn: int | None
    time: float
    why: str | None


@dataclass(frozen=True)
class AuditLog:
    """A folder of Parquet files: local, `s3://bucket/...`, `hdfs://...`."""

    url: str | os.PathLike[str]

    def __post_init__(self) -> None:
        url = os.fspath(self.url) if isinstance(self.url, str | os.PathLike) else ""
        if not url:
            raise ConfigurationError(f"audit must be a folder or its URL, got {self.url!r}")
        if "://" not in url:
            url = str(Path(url).absolute())  # executors have another working directory
        object.__setattr__(self, "url", url)
        try:
            refuse_url(url)
        except ConfigurationError as error:
            raise ConfigurationError(f"audit: {error}") from None

    @property
    def where(self) -> str:
        """The folder, without a secret."""
        return where_of(os.fspath(self.url))

    def folder(self, *below: str) -> Folder:
        """Return the folder, or one below it."""
        return Folder.at(os.fspath(self.url), None, below)

    # -- writing

    def write(self, table: pa.Table, time: float, at: str, run: int) -> dict[str, Any]:
        """Write a file aside; return what the ledger keeps of it, by its name. `at` is how its name
        begins, `run` the one that it is for. Raises `NotDelivered`.
        """
        aside = f"{_aside_of(run, at)}/{uuid4().hex}.parquet"
        written = self._write(table, aside)
        name = f"day={day_of(time)}/{at}-{written.digest()[:32]}.parquet"
        return {name: {"aside": aside, "bytes": written.bytes, "rows": table.num_rows}}

    def put(self, table: pa.Table, name: str, run: int) -> None:
        """Write a file under its name, of which the content depends on nothing else. Raises
        `NotDelivered`.
        """
        aside = f"{_aside_of(run, RESOLVED)}/{uuid4().hex}.parquet"
        written = self._write(table, aside)
        part = {"aside": aside, "bytes": written.bytes}
        pipeline = table["pipeline"][0].as_py()
        self._move(self.folder(pipeline), pipeline, name, part)

    def put_again(
        self, table: pa.Table, time: float, at: str, names: Sequence[str], run: int
    ) -> None:
        """Write a file into the day of a time, named by `at` and `names`; if an earlier run has
        written it, that is replaced, whatever its day. Raises `NotDelivered`.
        """
        pipeline = table["pipeline"][0].as_py()
        name = f"{at}-{','.join(map(path_part, names))}.parquet"
        try:
            folder = self.folder(pipeline)
            places = [f"day={day}/{name}" for day in self._days(folder)]
            found = [at for at, size in zip(places, folder.sizes(places), strict=True) if size]
        except Exception as error:
            raise self._unavailable(pipeline, error) from error
        self.put(table, found[0] if found else f"day={day_of(time)}/{name}", run)

    def missing(self, pipeline: str, names: Sequence[str]) -> list[str]:
        """Return which of these files are not there, without those of days that were removed."""
        if not names:
            return []
        try:
            folder = self.folder(pipeline)
            sizes = folder.sizes(names)
            absent = [name for name, size in zip(names, sizes, strict=True) if size is None]
            return [name for name in absent if not self._is_pruned(folder, name)]
        except Exception as error:
            raise self._unavailable(pipeline, error) from error

    def _write(self, table: pa.Table, aside: str) -> Writing:
        import pyarrow.parquet as pq

        pipeline = table["pipeline"][0].as_py()
        try:
            writing = self.folder(pipeline).write_aside(aside)
            try:
                pq.write_table(table, writing, compression="zstd")
                writing.keep()
            finally:
                writing.close()
        except Exception as error:
            raise self._unavailable(pipeline, error) from error
        return writing

    def show(self, pipeline: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Move files to their days; those that are there already stay. Raises `NotDelivered`."""
        if not parts:
            return
        try:
            folder = self.folder(pipeline)
            sizes = folder.sizes(list(parts))
        except Exception as error:
            raise self._unavailable(pipeline, error) from error
        for (name, part), size in zip(parts.items(), sizes, strict=True):
            if size != part["bytes"]:
                self._move(folder, pipeline, name, part)

    def _move(self, folder: Folder, pipeline: str, name: str, part: Mapping[str, Any]) -> None:
        try:
            folder.move(part["aside"], name)
        except Exception as error:
            if folder.stands(name) or self._is_pruned(folder, name):
                return  # another driver was faster, or its day was removed since
            raise NotDelivered(
                f"pipeline {pipeline!r}: {folder.where}/{name} of the audit log is missing, and "
                f"{part['aside']} could not be moved there ({plain_text(error)}). Everything is "
                "delivered. If audit= named another folder before, copy the folder of the pipeline "
                "from there, with _aside; otherwise restore the file. Then restart the query"
            ) from error

    def clean(self, pipeline: str, run: int, at: str) -> None:
        """Remove what attempts of a run that do not count have left of a minibatch. A run that was
        replaced does not remove what the later one has written.
        """
        with contextlib.suppress(Exception):  # only cleaning up
            self.folder(pipeline).remove_folder(_aside_of(run, at))

    def clean_before(self, pipeline: str, run: int) -> None:
        """Remove what earlier runs have left aside, after what the ledger names was moved."""
        with contextlib.suppress(Exception):  # only cleaning up
            folder = self.folder(pipeline)
            for name in folder.folders(ASIDE):
                if name < _aside_of(run).rpartition("/")[2]:
                    folder.remove_folder(f"{ASIDE}/{name}")

    def _unavailable(self, pipeline: str, error: Exception) -> NotDelivered:
        return NotDelivered(
            f"pipeline {pipeline!r}: the audit log at {self.where} could not be written "
            f"({plain_text(error)}). No event is in doubt because of it. Check that the folder is "
            "writable, then restart the query"
        )

    # -- reading

    def find(
        self, pipeline: str, entity: str, events: Sequence[EventID], *, by_partition: bool
    ) -> Iterator[AuditRecord]:
        """Yield the rows of one event, the newest first. `events` are the ids that may be meant;
        with `by_partition` the entity may also be the source partition.
        """
        import pyarrow.dataset as ds

        texts = pa.array(sorted({event_text(event) for event in events}))
        wanted = ds.field("entity") == entity
        if by_partition:
            wanted |= ds.field("partition") == entity
        wanted &= ds.field("event").isin(texts)
        folder = self.folder(pipeline)
        for day in sorted(self._days(folder), reverse=True):
            data = ds.dataset(folder.path(f"day={day}"), filesystem=folder.system, format="parquet")
            rows = data.to_table(filter=wanted).sort_by([("time", "descending")]).to_pylist()
            for row in rows:
                yield AuditRecord(
                    row["sink"],
                    row["outcome"],
                    row["minibatch"],
                    row["attempt"],
                    row["osn"],
                    row["time"].timestamp(),
                    row["why"],
                )

    def pipelines(self) -> list[str]:
        """Return the folders of pipelines, by their names in the file system."""
        return self.folder().folders()

    def has(self, pipeline: str) -> bool:
        """Whether there is anything of a pipeline."""
        return path_part(pipeline) in self.pipelines()

    # -- retention

    def prune(self, before: date) -> dict[str, list[str]]:
        """Remove the days before a day, of every pipeline; return them by pipeline."""
        removed: dict[str, list[str]] = {}
        for name in self.pipelines():
            folder = self.folder()
            folder = Folder(folder.system, folder.path(name), f"{folder.where}/{name}")
            old = sorted(day for day in self._days(folder) if day < before.isoformat())
            if not old:
                continue
            # The mark first: a driver that shows a file of such a day again does not miss it.
            folder.write_aside(f"{PRUNED}/{before.isoformat()}").close()
            for day in old:
                folder.remove_folder(f"day={day}")
            removed[name] = old
        return removed

    def _days(self, folder: Folder) -> list[str]:
        days = map(_DAY.fullmatch, folder.folders())
        return [day[1] for day in days if day is not None]

    def _is_pruned(self, folder: Folder, name: str) -> bool:
        found = _DAY.match(name)
        return found is not None and any(found[1] < mark for mark in folder.names(PRUNED))


def _aside_of(run: int, at: str = "") -> str:
    """Return the folder in which a run writes aside; they sort by the run."""
    return f"{ASIDE}/{run:010d}-{at}"


def day_of(time: float) -> str:
    """Return the day of a time, in UTC."""
    return datetime.fromtimestamp(time, UTC).date().isoformat()


def days_ago(time: float, days: int) -> date:
    """Return the day that was some days before a time, in UTC."""
    return datetime.fromtimestamp(time, UTC).date() - timedelta(days)


def event_text(event: EventID) -> str:
    """Return an id as the column `event` has it: one part as it is, several joined by commas."""
    if isinstance(event, tuple):
        return ",".join(str(each) if isinstance(each, int) else key_part(each) for each in event)
    return str(event)


def event_texts(ids: Sequence[pa.Array]) -> pa.Array:
    """Return the ids of many events as `event_text` does, without a loop over the rows."""
    texts = [part.cast(pa.string()) for part in ids]
    if len(texts) == 1:
        return texts[0]
    escaped = [
        text if pa.types.is_integer(part.type) else _key_parts(text)
        for part, text in zip(ids, texts, strict=True)
    ]
    return pc.binary_join_element_wise(*escaped, ",")


def _key_parts(texts: pa.Array) -> pa.Array:
    """Escape what would be taken for a separator, in the few distinct texts that have it."""
    odd = pc.match_substring_regex(texts, _UNSAFE)
    if not pc.any(odd).as_py():
        return texts
    encoded = texts.dictionary_encode()
    plain = pa.array([key_part(each) for each in encoded.dictionary.to_pylist()], pa.string())
    return plain.take(encoded.indices)
