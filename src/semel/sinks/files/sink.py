"""Part files: one per partition and minibatch, and a manifest per minibatch (REPEATABLE).

Always true:
- the name of a part file has its minibatch, its partition and the range of its records, so the same
  records have the same name in every attempt; on HDFS, where a rename cannot replace a file, it has
  the attempt too;
- an attempt that moves its file writes down the name first. When an older generation is closed,
  every name of its partitions is emptied; of a complete minibatch the driver removes files that no
  manifest names. No other attempt removes a file, because a later one may have written the same
  name meanwhile;
- an attempt first writes its claim, then removes the temporary files of earlier attempts; it moves
  its own file only while there is no later claim. So an earlier attempt finds a later claim, or no
  file to move;
- readers use manifests (`committed`, `read`): a file that no manifest names does not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa

from semel.errors import ConfigurationError, Diverged, Fenced, NotDelivered, plain_text
from semel.events import Attempt, Minibatch
from semel.protocol import Capability
from semel.sinks.files import manifests, writers
from semel.sinks.files.manifests import (
    Loader,
    Manifest,
    Part,
    Selective,
    as_event,
    manifest_name,
    refuse_stage,
    stage_of,
    stem,
)
from semel.sinks.files.readers import schema_text
from semel.sinks.files.storage import (
    Folder,
    path_part,
    refuse_url,
    replaces_nothing,
    where_of,
)
from semel.sinks.files.writers import FORMATS
from semel.sinks.sink import Ended, Sink, Target
from semel.urls import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.events import Chunk
    from semel.sinks.files.storage import Writing
    from semel.sinks.files.writers import RowWriter

ASIDE = "_aside"
_CLAIM = re.compile(r"(\d+)\.(-?\d+)\.claim")
_HELD = re.compile(r"(\d+)\.(-?\d+)\.part")
_MOVED = re.compile(r"(\d+)\.(-?\d+)\.moved-(-?\d+--?\d+)")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,60}")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, kw_only=True)
class Files(Sink):
    """Writes part files to a folder: local, S3-compatible, HDFS, or a file system of pyarrow.

    Attributes:
        url: a path, or `file:///...`, `s3://bucket/...`, `hdfs://...`; files are below it in a
            folder for the pipeline and one for the sink.
        format: "parquet", "json" (lines) or "csv".
        prefix: how the names of part files begin.
        compression: of Parquet.
        row_group_rows: rows of a Parquet row group.
        filesystem: a file system of pyarrow that no URL can express; `url` is then a path in it.
        then: the second stage, after a manifest is written: a `Loader`, which loads it with its key
            in one transaction; another sink, whose events are manifests; or a function.
    """

    name: str = "files"
    url: str | os.PathLike[str] = field(repr=False)
    format: str = "parquet"
    prefix: str = "part"
    compression: str = "snappy"
    row_group_rows: int = 131_072
    filesystem: Any = field(default=None, repr=False)
    then: Loader | Sink | Callable[[Manifest], object] | None = field(default=None, repr=False)
    chunk_rows: int = 65_536

    def __post_init__(self) -> None:
        url = os.fspath(self.url)
        if not url:
            raise ConfigurationError(f"sink {self.name!r}: url must not be empty")
        if self.filesystem is None and "://" not in url:
            url = str(Path(url).absolute())  # executors have another working directory
        object.__setattr__(self, "url", url)
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"sink {self.name!r}: unknown format {self.format!r}; use {', '.join(FORMATS)}"
            )
        if self.compression not in _COMPRESSIONS:
            raise ConfigurationError(
                f"sink {self.name!r}: unknown compression {self.compression!r}; use "
                f"{', '.join(_COMPRESSIONS)}"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"sink {self.name!r}: prefix={self.prefix!r} must begin with a letter or digit and "
                "have only letters, digits, dots and hyphens, at most 61 characters"
            )
        if self.row_group_rows < 1:
            raise ConfigurationError(
                f"sink {self.name!r}: row_group_rows must be at least 1, got {self.row_group_rows}"
            )
        refuse_stage(self.name, self.then)
        if self.filesystem is None:
            refuse_url(url)

    @property
    def _url(self) -> str:
        return os.fspath(self.url)

    @property
    def where(self) -> str:
        """The folder, without a secret."""
        return place(self._url)

    @property
    def capability(self) -> Capability:
        """REPEATABLE: a replay writes the same place, and a replaced attempt cannot write it."""
        return Capability.REPEATABLE

    @property
    def whole(self) -> bool:
        """Yes: each partition of a minibatch is a file of its own."""
        return True

    def notes(self) -> tuple[str, ...]:
        """State what readers see, and when."""
        return (
            (
                "Visible with the manifest of each minibatch; a file that no manifest names does "
                "not count. Places are remembered forever, so nothing is ever in doubt."
            ),
            *self._notes_of_stage(),
        )

    def _notes_of_stage(self) -> tuple[str, ...]:
        if (stage := self.stage) is None:
            return ()
        sent = f"Then each manifest is sent to {stage.name!r} ({stage.capability.value})"
        if stage.capability is not Capability.OPAQUE:
            return (f"{sent}, in order and once.",)
        return (f"{sent}, in order; if one may have arrived: on_doubt={stage.on_doubt.value!r}.",)

    def describe(self) -> dict[str, object]:
        """Return what may not change under a pipeline."""
        return {**super().describe(), "format": self.format, "prefix": self.prefix}

    def folder(self, pipeline: str) -> Folder:
        """Return the folder of this sink for a pipeline."""
        return Folder.at(self._url, self.filesystem, (pipeline, self.name))

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for columns that the format cannot hold, or that `then` names
        and that are not there.
        """
        try:
            writers.refuse(schema, self.format)
            if isinstance(self.then, Selective) and not isinstance(self.then, Sink):
                self.then.refuse(schema)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink {self.name!r}: {error}") from None

    def part_name(self, target: Target, records: str = "") -> str:
        """Name the file of a partition: the same for every attempt, but on HDFS. `records` is the
        range of its records; without it, it is the name that 0.1 gave.
        """
        ending, _ = FORMATS[self.format]
        own = f"-{target.attempt}" if replaces_nothing(self._url, self.filesystem) else ""
        named = f"{stem(target.minibatch)}-{path_part(target.partition)}"
        return f"{self.prefix}-{named}{f'-{records}' if records else ''}{own}{ending}"

    def locate(self, target: Target) -> str:
        """Return the place of this partition, without secrets; `*` is the range of records, which
        is known at the end of the partition.
        """
        folder = where_of(self._url, (target.pipeline, self.name))
        return f"{folder}/{self.part_name(target, '*')}"

    def open(self, target: Target) -> PartSession:
        """Claim the place, on the executor. Raises `Fenced` when a later attempt has claimed it."""
        session = PartSession(self, target)
        session.claim()
        return session

    def committed(self, pipeline: str, after: Minibatch | None = None) -> Iterator[Manifest]:
        """Return the manifests of a pipeline in the order of its minibatches."""
        return manifests.manifests(self.folder(pipeline), after)

    # -- the end of a minibatch, on the driver

    def conclude(self, ended: Ended) -> None:
        """Write the manifest, then let a loader load it; finished steps are skipped. A second stage
        that is a sink or a function is delivered from the ledger (`stage`).

        Raises `Diverged` if another manifest is there, `NotDelivered` if a file that it would name
        is missing.
        """
        folder = self.folder(ended.pipeline)
        manifest = self._manifest(ended, folder)
        loads = isinstance(self.then, Loader) and not isinstance(self.then, Sink)
        if loads and not cast("Loader", self.then).known(manifest):
            cast("Loader", self.then).load(manifest)
        with contextlib.suppress(Exception):  # only cleaning up
            self._remove_unnamed(ended, folder, {part.name for part in manifest.parts})
            folder.remove_folder(f"{ASIDE}/{stem(ended.minibatch)}")

    def _remove_unnamed(self, ended: Ended, folder: Folder, named: set[str]) -> None:
        """Remove what attempts that do not count have moved to a place of another name."""
        aside = folder.names_below(f"{ASIDE}/{stem(ended.minibatch)}")
        for each in ended.parts:
            at = (ended.minibatch, each.partition, each.attempt)
            target = Target(ended.pipeline, self.name, *at)
            names = aside.get(path_part(each.partition), [])
            if len(list(filter(_CLAIM.fullmatch, names))) > 1:
                for place in sorted(moved(self, target, names) - named):
                    folder.remove(place)

    @property
    def stage(self) -> Sink | None:
        """The second stage as a sink of manifests; None if there is none, or it is a loader."""
        return stage_of(self.name, self.then, self.standing)

    def announce(self, ended: Ended) -> pa.RecordBatch:
        """Return the manifest of a concluded minibatch as an event of the second stage."""
        return as_event(self.standing(ended.pipeline, ended.minibatch))

    def standing(self, pipeline: str, minibatch: Minibatch) -> Manifest:
        """Return the manifest of a minibatch."""
        folder = self.folder(pipeline)
        return Manifest.load(folder.read(manifest_name(minibatch)), folder, minibatch)

    def _manifest(self, ended: Ended, folder: Folder) -> Manifest:
        """Return the existing manifest, or write it."""
        parts = tuple(
            Part(partition=each.partition, attempt=each.attempt, **each.placed)
            for each in ended.parts
        )
        name = manifest_name(ended.minibatch)
        if folder.stands(name):
            return _standing(ended, folder, parts)
        for part, size in zip(parts, folder.sizes([part.name for part in parts]), strict=True):
            if size != part.bytes:
                raise NotDelivered(
                    f"{folder.where}/{part.name} was delivered with {part.bytes} bytes, but "
                    f"{'it is missing' if size is None else f'has {size} now'}: it was removed or "
                    "changed before a manifest named it. Restore it"
                )
        made = Manifest(
            ended.pipeline, ended.sink, ended.minibatch, self.format, parts, folder=folder
        )
        aside = f"{ASIDE}/{stem(ended.minibatch)}/manifest-{uuid4().hex}"
        writing = folder.write_aside(aside)
        try:
            writing.write(made.dump())
            writing.keep()
        finally:
            writing.close()
        try:
            folder.move(aside, name)
        except OSError:
            if not folder.stands(name):
                raise
            return _standing(ended, folder, parts)  # another driver was faster
        return made


def _standing(ended: Ended, folder: Folder, parts: tuple[Part, ...]) -> Manifest:
    """Return the existing manifest. Raises `Diverged` if it names other files."""
    name = manifest_name(ended.minibatch)
    standing = Manifest.load(folder.read(name), folder, ended.minibatch)
    if not set(parts) <= set(standing.parts):
        raise Diverged(
            f"pipeline {ended.pipeline!r}, minibatch {ended.minibatch}: {standing.location} exists "
            "and names other files than were delivered. A pipeline of another ledger may write to "
            "this folder: give each pipeline a folder or a name of its own"
        )
    return standing


class PartSession:
    """One attempt at one part file."""

    def __init__(self, sink: Files, target: Target) -> None:
        self._sink = sink
        self._target = target
        self._folder = sink.folder(target.pipeline)
        self._aside = f"{ASIDE}/{stem(target.minibatch)}/{path_part(target.partition)}"
        self._place = sink.part_name(target, "*")
        self._records: tuple[int, int] | None = None
        self._file: Writing | None = None
        self._writer: RowWriter | None = None
        self._schema = ""
        self._rows = 0
        self._closed = False

    @property
    def _held(self) -> str:
        return f"{self._aside}/{self._target.attempt}.part"

    def claim(self) -> None:
        """Put the claim first, then look at others', then remove what earlier attempts hold."""
        if self._folder.stands(manifest_name(self._target.minibatch)):
            raise Fenced(
                f"{self._who()}: the minibatch is complete and has its manifest. If this ledger "
                "is new, the folder has the files of another ledger under this name: give the "
                "pipeline another name, or another folder"
            )
        self._folder.write_aside(f"{self._aside}/{self._target.attempt}.claim").close()
        names = self._folder.names(self._aside)
        self._check(names)
        for found in filter(None, map(_HELD.fullmatch, names)):
            if _attempt(found) <= self._target.attempt:
                self._folder.remove(f"{self._aside}/{found[0]}")

    def write(self, chunk: Chunk) -> None:
        """Write the next events aside."""
        self._require_open()
        batch = chunk.rows.batch
        if self._writer is None:
            self._sink.refuse(batch.schema)
            _, make = FORMATS[self._sink.format]
            self._file = self._folder.write_aside(self._held)
            settings = (self._sink.row_group_rows, self._sink.compression)
            self._writer = make(self._file, batch.schema, *settings)
            if self._sink.format != "parquet":
                self._schema = schema_text(batch.schema)
        self._writer.write(batch)
        self._rows += batch.num_rows
        first, last = _range(chunk, self._target.partition)
        self._records = (first if self._records is None else self._records[0], last)

    def finish(self) -> dict[str, Any] | None:
        """Move the file to its place; if nothing was written, make sure that the place is empty."""
        self._require_open()
        if self._writer is None or self._file is None or self._records is None:
            names = self._folder.names(self._aside)
            self._check(names)
            for place in sorted(moved(self._sink, self._target, names)):
                self._folder.remove(place)
            return None
        try:
            self._writer.close()
            self._file.keep()
        except Exception:  # on HDFS a file that a later attempt has removed cannot be closed
            self._check(self._folder.names(self._aside))
            raise
        records = f"{self._records[0]}-{self._records[1]}"
        self._place = self._sink.part_name(self._target, records)
        self._folder.write_aside(f"{self._aside}/{self._target.attempt}.moved-{records}").close()
        names = self._folder.names(self._aside)
        self._check(names)
        try:
            self._folder.move(self._held, self._place)
        except Exception as error:
            if not self._folder.stands(self._held):
                raise Fenced(
                    f"{self._who()}: its temporary file was removed, by a later attempt or with "
                    "the folder"
                ) from error
            raise NotDelivered(
                f"{self._who()}: the file could not be moved to its place ({plain_text(error)}). "
                "It does not count and will be written again; check that the folder is writable"
            ) from error
        placed = {
            "name": self._place,
            "rows": self._rows,
            "bytes": self._file.bytes,
            "digest": self._file.digest(),
            **({"schema": self._schema} if self._schema else {}),
        }
        self._file, self._closed = None, True
        return placed

    def close(self) -> None:
        """Discard what was not finished."""
        self._closed = True
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(Exception):  # what is left aside is removed by the next
                file.close()
            with contextlib.suppress(Exception):
                self._folder.remove(self._held)

    def _require_open(self) -> None:
        """A discarded or finished file is neither written nor emptied."""
        if self._closed:
            raise NotDelivered(
                f"{self._who()}: the session is closed; a new session writes the file again"
            )

    def _check(self, names: list[str]) -> None:
        """Raise `Fenced` if there is a later claim, or if the own claim is missing."""
        claims = {_attempt(found) for found in map(_CLAIM.fullmatch, names) if found is not None}
        later = max(claims, default=self._target.attempt)
        if later > self._target.attempt:
            raise Fenced(f"{self._who()}: attempt {later} has claimed it")
        if self._target.attempt not in claims:
            raise Fenced(
                f"{self._who()}: its claim was removed because the minibatch was concluded"
            )

    def _who(self) -> str:
        return (
            f"pipeline {self._target.pipeline!r}, {self._folder.where}/{self._place}, attempt "
            f"{self._target.attempt}"
        )


def moved(sink: Files, target: Target, names: list[str]) -> set[str]:
    """Return the places to which attempts at a partition may have moved their files, from the
    `names` of their temporary files. Version 0.1 did not write them down: its attempts have only a
    claim.
    """

    def place_of(found: re.Match[str], records: str = "") -> str:
        return sink.part_name(replace(target, attempt=_attempt(found)), records)

    old = {place_of(found) for found in map(_CLAIM.fullmatch, names) if found is not None}
    return old | {
        place_of(found, found[3]) for found in map(_MOVED.fullmatch, names) if found is not None
    }


def _range(chunk: Chunk, partition: str) -> tuple[int, int]:
    """Return the first and the last record of a chunk: offsets if the partition is one of the
    source's, otherwise output sequence numbers. Both are the same on every replay.
    """
    rows = chunk.rows
    if rows.scope(0) == partition and pa.types.is_integer(rows.ids[0].type):
        return rows.ids[0][0].as_py(), rows.ids[0][-1].as_py()
    numbers = chunk.osns()
    return int(numbers[0]), int(numbers[-1])


def _attempt(found: re.Match[str]) -> Attempt:
    return Attempt(int(found[1]), int(found[2]))


def committed(
    url: str | os.PathLike[str], *, after: Minibatch | None = None, filesystem: Any = None
) -> Iterator[Manifest]:
    """Return the manifests of the folder of one pipeline and sink, in the order of minibatches."""
    return manifests.manifests(Folder.at(os.fspath(url), filesystem), after)


def read(url: str | os.PathLike[str], *, filesystem: Any = None) -> Iterator[pa.Table]:
    """Return the rows of every file that a manifest names, compared with what it states."""
    for manifest in committed(url, filesystem=filesystem):
        yield from manifest.tables()
