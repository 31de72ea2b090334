"""Part files: one per partition and minibatch, and a manifest per minibatch (REPEATABLE).

Always true:
- a part file has one name, whoever writes it, and is written anew from its first event on; on
  HDFS, where a rename replaces nothing, each attempt has one of its own, and none is removed;
- an attempt first puts its claim, then removes what earlier ones hold aside; it moves its own file
  only while no later claim stands. So an earlier one finds a later claim, or nothing to move;
- readers go by manifests (`committed`, `read`): what is not named there does not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.errors import ConfigurationError, Diverged, Fenced, NotDelivered
from semel.events.ids import Attempt, Minibatch
from semel.protocol import Capability
from semel.sinks.files import formats, manifests
from semel.sinks.files.folders import (
    Folder,
    escaped,
    refuse_url,
    replaces_nothing,
    where_of,
    without_secrets,
)
from semel.sinks.files.formats import FORMATS
from semel.sinks.files.loads import Handed, Loader
from semel.sinks.files.manifests import Manifest, Part, manifest_name, stem
from semel.sinks.files.reading import schema_text
from semel.sinks.sink import Sink
from semel.sinks.unrun import runs_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from semel.events import Chunk
    from semel.sinks.endings import Ended
    from semel.sinks.files.folders import Writing
    from semel.sinks.files.formats import Writer
    from semel.sinks.sink import Target

ASIDE = "_aside"
_CLAIM = re.compile(r"(\d+)\.(-?\d+)\.claim")
_HELD = re.compile(r"(\d+)\.(-?\d+)\.part")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,60}")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, kw_only=True)
class Files(Sink):
    """Writes part files to a folder: local, S3-compatible, HDFS, or a file system of pyarrow.

    Attributes:
        url: a path, or `file:///...`, `s3://bucket/...`, `hdfs://...`; files stand below it in
            a folder for the pipeline and one for the sink.
        format: "parquet", "json" (lines) or "csv".
        prefix: what the names of part files begin with.
        compression: of Parquet.
        row_group_rows: rows of a Parquet row group.
        filesystem: a file system of pyarrow, where no URL can say it; `url` is then a path in it.
        then: what is asked to load each manifest, once it is in place: a `Loader`, or a function.
    """

    name: str = "files"
    url: str | os.PathLike[str] = field(repr=False)
    format: str = "parquet"
    prefix: str = "part"
    compression: str = "snappy"
    row_group_rows: int = 131_072
    filesystem: Any = field(default=None, repr=False)
    then: Loader | Callable[[Manifest], None] | None = None
    chunk_rows: int = 65_536
    whole: bool = True

    def __post_init__(self) -> None:
        url = os.fspath(self.url)
        if not url:
            raise ConfigurationError(f"sink {self.name!r}: url= names no folder")
        if self.filesystem is None and "://" not in url:
            url = str(Path(url).absolute())  # executors have another working directory
        object.__setattr__(self, "url", url)
        if self.format not in FORMATS:
            raise ConfigurationError(
                f"sink {self.name!r}: format={self.format!r}; there are {', '.join(FORMATS)}"
            )
        if self.compression not in _COMPRESSIONS:
            raise ConfigurationError(
                f"sink {self.name!r}: compression={self.compression!r}; there are "
                f"{', '.join(_COMPRESSIONS)}"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"sink {self.name!r}: prefix={self.prefix!r}; it begins with a letter or digit, "
                "and has only letters, digits, dots and hyphens, at most 61"
            )
        if self.row_group_rows < 1 or not self.whole:
            raise ConfigurationError(
                f"sink {self.name!r}: row_group_rows is at least 1, and whole is always true"
            )
        if self.then is not None and not isinstance(self.then, Loader) and not callable(self.then):
            raise ConfigurationError(
                f"sink {self.name!r}: then={self.then!r} is neither a loader nor a function"
            )
        calls = (self.then, *(getattr(self.then, name, None) for name in ("known", "load")))
        if any(map(runs_nothing, calls)):
            raise ConfigurationError(
                f"sink {self.name!r}: then={self.then!r} is `async def` or has a `yield`, so a "
                "call would load nothing. Make it an ordinary function that waits for its end"
            )
        if self.filesystem is None:
            refuse_url(url)

    @property
    def _url(self) -> str:
        return os.fspath(self.url)

    @property
    def where(self) -> str:
        """The folder, without a secret."""
        return without_secrets(self._url)

    @property
    def capability(self) -> Capability:
        """REPEATABLE: a replay goes to the same place, and a replaced attempt cannot."""
        return Capability.REPEATABLE

    def notes(self) -> tuple[str, ...]:
        """Say what readers see, and when."""
        return (
            (
                "Visible with the manifest of each minibatch; a file that no manifest names does "
                "not count. Places are remembered for ever, so nothing is ever in doubt."
            ),
        )

    def describe(self) -> dict[str, object]:
        """Say what may not change under a pipeline."""
        return {**super().describe(), "format": self.format, "prefix": self.prefix}

    def folder(self, pipeline: str) -> Folder:
        """Give the folder in which this sink works for a pipeline."""
        return Folder.at(self._url, self.filesystem, (pipeline, self.name))

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for columns that the format cannot hold."""
        try:
            formats.refuse(schema, self.format)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink {self.name!r}: {error}") from None

    def part_name(self, target: Target) -> str:
        """Name the file of a partition: the same for every attempt, but on HDFS."""
        ending, _ = FORMATS[self.format]
        own = f"-{target.attempt}" if replaces_nothing(self._url, self.filesystem) else ""
        named = f"{stem(target.minibatch)}-{escaped(target.partition)}{own}"
        return f"{self.prefix}-{named}{ending}"

    def locate(self, target: Target) -> str:
        """Name the place of this partition, without a secret."""
        folder = where_of(self._url, (target.pipeline, self.name))
        return f"{folder}/{self.part_name(target)}"

    def open(self, target: Target) -> PartSession:
        """Claim the place, on the executor. Raises `Fenced` when a later attempt has claimed it."""
        session = PartSession(self, target)
        session.claim()
        return session

    def committed(self, pipeline: str, after: Minibatch | None = None) -> Iterator[Manifest]:
        """Give the manifests of a pipeline in the order of its minibatches."""
        return manifests.manifests(self.folder(pipeline), after)

    # -- the end of a minibatch, on the driver

    def conclude(self, ended: Ended) -> None:
        """Put the manifest in its place, then have it loaded; what is done already is left so.

        Raises `Diverged` when another manifest stands there, `NotDelivered` when a file that it
        would name does not.
        """
        folder = self.folder(ended.pipeline)
        manifest = self._manifest(ended, folder)
        if self.then is not None:
            loader = self.then if isinstance(self.then, Loader) else Handed(self.then)
            if not loader.known(manifest):
                loader.load(manifest)
        with contextlib.suppress(Exception):  # nobody looks there any more; nothing rests on it
            folder.remove_folder(f"{ASIDE}/{stem(ended.minibatch)}")

    def _manifest(self, ended: Ended, folder: Folder) -> Manifest:
        """Give the manifest that stands, or put it there."""
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
                    f"{folder.where}/{part.name} was delivered with {part.bytes} bytes, and "
                    f"{'is gone' if size is None else f'has {size}'}: somebody removed or changed "
                    "it before it was named by a manifest. Restore it"
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
    """Give the manifest that stands. Raises `Diverged` where it names other files."""
    standing = Manifest.load(folder.read(manifest_name(ended.minibatch)), folder)
    if not set(parts) <= set(standing.parts):
        raise Diverged(
            f"pipeline {ended.pipeline!r}, minibatch {ended.minibatch}: {standing.location} stands "
            "there and names other files than were delivered. Do pipelines of another ledger write "
            "to this folder? Give each a folder or a name of its own"
        )
    return standing


class PartSession:
    """One attempt at one part file."""

    def __init__(self, sink: Files, target: Target) -> None:
        self._sink = sink
        self._target = target
        self._folder = sink.folder(target.pipeline)
        self._aside = f"{ASIDE}/{stem(target.minibatch)}/{escaped(target.partition)}"
        self._place = sink.part_name(target)
        self._file: Writing | None = None
        self._writer: Writer | None = None
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
                f"{self._told()}: the minibatch is complete and has its manifest. If this ledger "
                "is new, the folder holds what another one delivered under this name: give the "
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

    def finish(self) -> dict[str, Any] | None:
        """Move the file to its place; where nothing was written, see that nothing stands there."""
        self._require_open()
        if self._writer is None or self._file is None:
            self._check(self._folder.names(self._aside))
            self._folder.remove(self._place)
            return None
        self._writer.close()
        self._file.keep()
        self._check(self._folder.names(self._aside))
        try:
            self._folder.move(self._held, self._place)
        except Exception as error:
            if not self._folder.stands(self._held):
                raise Fenced(
                    f"{self._told()}: what it held aside was removed by a later attempt, or with "
                    "the folder"
                ) from error
            raise NotDelivered(
                f"{self._told()}: the file could not be moved to its place ({error}). It does not "
                "count and is written anew; see that the folder can be written"
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
        """Give up what was not finished."""
        self._closed = True
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(Exception):  # what is left aside is removed by the next
                file.close()
            with contextlib.suppress(Exception):
                self._folder.remove(self._held)

    def _require_open(self) -> None:
        """What was given up, or is in its place, is neither written on nor emptied."""
        if self._closed:
            raise NotDelivered(f"{self._told()}: the session is closed; a new one writes it anew")

    def _check(self, names: list[str]) -> None:
        """Raise `Fenced` where a later claim stands, or one's own does not stand any more."""
        claims = {_attempt(found) for found in map(_CLAIM.fullmatch, names) if found is not None}
        later = max(claims, default=self._target.attempt)
        if later > self._target.attempt:
            raise Fenced(f"{self._told()}: attempt {later} has claimed it")
        if self._target.attempt not in claims:
            raise Fenced(f"{self._told()}: its claim is gone: the minibatch was concluded")

    def _told(self) -> str:
        return (
            f"pipeline {self._target.pipeline!r}, {self._folder.where}/{self._place}, attempt "
            f"{self._target.attempt}"
        )


def _attempt(found: re.Match[str]) -> Attempt:
    return Attempt(int(found[1]), int(found[2]))


def committed(
    url: str | os.PathLike[str], *, after: Minibatch | None = None, filesystem: Any = None
) -> Iterator[Manifest]:
    """Give the manifests of the folder of one pipeline and sink, in the order of minibatches."""
    return manifests.manifests(Folder.at(os.fspath(url), filesystem), after)


def read(url: str | os.PathLike[str], *, filesystem: Any = None) -> Iterator[pa.Table]:
    """Give the rows of every file that a manifest names, compared with what it says of them."""
    for manifest in committed(url, filesystem=filesystem):
        yield from manifest.tables()
