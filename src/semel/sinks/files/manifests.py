"""A manifest names the files of one complete minibatch, and readers use manifests only.

The second stage of `Files` gets each manifest once its minibatch is complete.

Always true:
- a manifest is written atomically, after every file that it names, and only when the ledger has the
  minibatch complete;
- a manifest never changes;
- a manifest is checked when it is read: each part is a file of the manifest's own folder;
- the second stage gets a manifest only after it was written;
- a `Loader` stores the manifest's key in the transaction of its load, so it may be called again;
- any other second stage is a sink whose events are manifests: its intent is in the ledger before
  the request, its completion after it, and between them its capability or its policy decides.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import pyarrow as pa

from semel.errors import (
    ConfigurationError,
    DeliveryError,
    Diverged,
    NotDelivered,
    OutcomeUnknown,
    plain_text,
)
from semel.events import Attempt, Minibatch, key_part
from semel.events.encoding import readable_json
from semel.protocol import Capability
from semel.sinks.callables import left_to_run, runs_nothing
from semel.sinks.files import readers
from semel.sinks.files.writers import FORMATS
from semel.sinks.function import Function
from semel.sinks.sink import DELIVERED, Receipt, Session, Sink, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.events import Chunk, Event
    from semel.sinks.files.storage import Folder


MANIFESTS = "_manifests"
VERSION = 1
_NAME = re.compile(r"(\d+)-(\d+)\.json")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9@+._~-]*")


def stem(minibatch: Minibatch) -> str:
    """Name a minibatch in a path, so that names sort as minibatches do."""
    return f"{minibatch.generation:04d}-{minibatch.batch:010d}"


def manifest_name(minibatch: Minibatch) -> str:
    """Name the manifest of a minibatch."""
    return f"{MANIFESTS}/{stem(minibatch)}.json"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a manifest: its name, what it holds, and the attempt that put it there.

    Attributes:
        bytes: its size.
        digest: the SHA-256 of its bytes.
        schema: the types of its columns, as `reading` keeps them; nothing of Parquet, which knows.
    """

    name: str
    partition: str
    rows: int
    bytes: int
    digest: str
    attempt: Attempt
    schema: str = ""

    def __post_init__(self) -> None:
        """Raises `ValueError` if this cannot be a file of a manifest; the name has no path."""
        texts = (self.name, self.partition, self.digest, self.schema)
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("name, partition, digest and schema of a part must be strings")
        if not _PART.fullmatch(self.name):
            raise ValueError(f"{plain_text(self.name, 80)!r} is not the name of a part file")
        if not all(type(each) is int and each >= 0 for each in (self.rows, self.bytes)):
            raise ValueError(f"part {self.name}: rows and bytes must be numbers")

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "name": self.name,
            "partition": self.partition,
            "rows": self.rows,
            "bytes": self.bytes,
            "digest": self.digest,
            "attempt": [self.attempt.run, self.attempt.task],
            **({"schema": self.schema} if self.schema else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Part:
        """Read it back."""
        return cls(**{**value, "attempt": Attempt(*value["attempt"])})


@dataclass(frozen=True)
class Manifest:
    """The files of one complete minibatch.

    Attributes:
        folder: where they are; None for a description only.
    """

    pipeline: str
    sink: str
    minibatch: Minibatch
    format: str
    parts: tuple[Part, ...]
    folder: Folder | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The same for every attempt to load it, and different for every other manifest."""
        return f"{key_part(self.pipeline)}/{key_part(self.sink)}/{self.minibatch}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest's file."""
        return hashlib.sha256(self.dump()).hexdigest()

    @property
    def rows(self) -> int:
        """How many events it names."""
        return sum(part.rows for part in self.parts)

    @property
    def location(self) -> str:
        """The URL of the manifest, without secrets."""
        return f"{self._folder.where}/{manifest_name(self.minibatch)}"

    @property
    def urls(self) -> list[str]:
        """Where its files are, for Spark, pandas and others; without a secret."""
        return [f"{self._folder.where}/{part.name}" for part in self.parts]

    @property
    def _folder(self) -> Folder:
        if self.folder is None:
            raise AssertionError("it was read from a folder")
        return self.folder

    def dump(self) -> bytes:
        """Return the content of the manifest's file."""
        made = {
            "version": VERSION,
            "pipeline": self.pipeline,
            "sink": self.sink,
            "minibatch": [self.minibatch.generation, self.minibatch.batch],
            "format": self.format,
            "rows": self.rows,
            "parts": [part.to_json() for part in self.parts],
        }
        return (readable_json(made, 1, sort_keys=True) + "\n").encode()

    @classmethod
    def load(cls, content: bytes, folder: Folder, minibatch: Minibatch) -> Manifest:
        """Read back the one of a minibatch. Raises `ConfigurationError` for one of another version,
        `Diverged` for one that is damaged.
        """
        try:
            value = json.loads(content)
            if isinstance(value, dict) and value.get("version", VERSION) != VERSION:
                version = plain_text(value["version"], 40)
                raise ConfigurationError(
                    f"{folder.where}: the manifest has version {version!r}, but this semel reads "
                    f"version {VERSION}: read it with the version of semel that wrote it"
                )
            return cls._read(value, folder, minibatch)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {plain_text(error, 200)}"
            raise _damaged(folder, minibatch, why) from None

    @classmethod
    def _read(cls, value: dict[str, Any], folder: Folder, minibatch: Minibatch) -> Manifest:
        found = cls(
            value["pipeline"],
            value["sink"],
            Minibatch(*value["minibatch"]),
            value["format"],
            tuple(Part.from_json(part) for part in value["parts"]),
            folder,
        )
        if not (isinstance(found.pipeline, str) and isinstance(found.sink, str)):
            raise TypeError("pipeline and sink must be strings")
        if found.minibatch != minibatch:
            raise ValueError("it is the manifest of another minibatch")
        if found.format not in FORMATS:
            raise ValueError(f"unknown format {plain_text(found.format, 40)!r}")
        return found

    def tables(self) -> Iterator[pa.Table]:
        """Return the rows of each file, compared with what the manifest states.

        Raises `NotDelivered` for a file that is missing or is not the one that was delivered.
        """
        for part in self.parts:
            content = self.content(part)
            try:
                table = readers.table(content, self.format, part.schema)
            except (ValueError, TypeError, LookupError, OSError) as error:
                why = (
                    f"part {part.name} cannot be read with the types that the manifest states: "
                    f"{plain_text(error, 200)}"
                )
                raise _damaged(self._folder, self.minibatch, why) from error
            if table.num_rows != part.rows:
                raise NotDelivered(
                    f"{self._folder.where}/{part.name} was delivered with {part.rows} rows but "
                    f"{table.num_rows} rows were read: read it with the version of semel that "
                    "wrote it"
                )
            yield table

    def content(self, part: Part) -> bytes:
        """Return the bytes of a file, compared with what the manifest states."""
        try:
            content = self._folder.read(part.name)
        except FileNotFoundError:
            content = b""
        if len(content) != part.bytes or hashlib.sha256(content).hexdigest() != part.digest:
            raise NotDelivered(
                f"{self._folder.where}/{part.name} is missing, or is not the file that manifest "
                f"{stem(self.minibatch)} names: it was removed or changed after it was delivered. "
                "Restore it"
            )
        return content


def _damaged(folder: Folder, minibatch: Minibatch, why: str) -> Diverged:
    return Diverged(
        f"{folder.where}/{manifest_name(minibatch)} is damaged ({why}): it is not as semel "
        "wrote it. No file was read, moved or removed because of it. Restore it"
    )


def manifests(folder: Folder, after: Minibatch | None = None) -> Iterator[Manifest]:
    """Return the manifests of a folder in the order of their minibatches, optionally after one."""
    found = [_NAME.fullmatch(name) for name in folder.names(MANIFESTS)]
    named = sorted(Minibatch(int(each[1]), int(each[2])) for each in found if each is not None)
    for minibatch in named:
        if after is None or minibatch > after:
            yield Manifest.load(folder.read(manifest_name(minibatch)), folder, minibatch)


SCHEMA = pa.schema(
    [
        ("manifest", pa.string()),
        ("pipeline", pa.string()),
        ("sink", pa.string()),
        ("minibatch", pa.string()),
        ("location", pa.string()),
        ("format", pa.string()),
        ("rows", pa.int64()),
        ("files", pa.list_(pa.string())),
    ]
)
"""The columns of a manifest as an event of the second stage."""


@runtime_checkable
class Loader(Protocol):
    """Loads manifests. Runs on the driver, after the ledger has the minibatch complete."""

    def known(self, manifest: Manifest) -> bool:
        """Return whether this manifest was loaded, by its `key`."""

    def load(self, manifest: Manifest) -> None:
        """Load it, with its key in the same transaction; do nothing if the key is there already.

        Raises `NotDelivered` or `OutcomeUnknown` if a retry may help, `Rejected` if it cannot.
        """


@runtime_checkable
class Selective(Protocol):
    """A loader of certain columns, which can report on the driver that one is missing."""

    def refuse(self, schema: pa.Schema) -> None:
        """Raise `ConfigurationError` for a column that the files will not have."""


def as_event(manifest: Manifest) -> pa.RecordBatch:
    """Return a manifest as the one row that a second stage gets."""
    row = {
        "manifest": manifest.key,
        "pipeline": manifest.pipeline,
        "sink": manifest.sink,
        "minibatch": str(manifest.minibatch),
        "location": manifest.location,
        "format": manifest.format,
        "rows": manifest.rows,
        "files": manifest.urls,
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def minibatch_in(event: Event) -> Minibatch:
    """Read which minibatch the manifest of an event is of."""
    generation, _, batch = str(event.value["minibatch"]).partition(".")
    return Minibatch(int(generation), int(batch))


@dataclass(frozen=True, kw_only=True)
class ManifestFunction(Sink):
    """A function as the second stage: it is called with each `Manifest` (OPAQUE).

    Attributes:
        standing: returns the manifest of a minibatch of a pipeline.
    """

    function: Callable[[Manifest], object]
    standing: Callable[[str, Minibatch], Manifest]

    @property
    def capability(self) -> Capability:
        """OPAQUE: semel knows nothing of what the function does."""
        return Capability.OPAQUE

    def open(self, target: Target) -> Session:
        """Nothing to connect to: the function brings its own connections."""
        return _Calls(self, target.pipeline)


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls the function with the manifest of each event."""

    sink: ManifestFunction
    pipeline: str

    def deliver(self, chunk: Chunk) -> Receipt:
        for event in chunk.events():
            try:
                manifest = self.sink.standing(self.pipeline, minibatch_in(event))
            except Exception as error:
                raise NotDelivered(f"the manifest cannot be read ({plain_text(error)})") from error
            try:
                left = left_to_run(self.sink.function(manifest))
            except DeliveryError:
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {plain_text(error)}"
                raise OutcomeUnknown(text) from error
            if left is not None:
                raise OutcomeUnknown(f"the function that loads {manifest.key!r} returned {left}")
        return DELIVERED

    def close(self) -> None:
        return


def refuse_stage(name: str, then: object) -> None:
    """Raise `ConfigurationError` for what cannot be a second stage of the sink `name`."""
    sequenced = isinstance(then, Sink) and then.capability is Capability.SEQUENCED
    if isinstance(then, Sink) and (sequenced or then.whole or then.name == name):
        raise ConfigurationError(
            f"sink {name!r}: then={then.name!r} cannot be the second stage of Files: a second "
            "stage has a name of its own and takes one manifest at a time (an Http or Postgres "
            "sink, or a function), so it cannot be a sequenced topic or files"
        )
    if isinstance(then, Sink):
        then.refuse(SCHEMA)
    if isinstance(then, Function) and then.batches:
        raise ConfigurationError(
            f"sink {name!r}: then={then.name!r} has batches=True, but the second stage is called "
            "with one Manifest at a time"
        )
    if then is not None and not isinstance(then, Sink | Loader) and not callable(then):
        raise ConfigurationError(
            f"sink {name!r}: then must be a loader, a sink or a function, got {type(then).__name__}"
        )
    calls = (then, *(getattr(then, each, None) for each in ("known", "load")))
    if any(map(runs_nothing, calls)):
        raise ConfigurationError(
            f"sink {name!r}: then is `async def` or has a `yield`, so a call would load nothing. "
            "Make it an ordinary function that returns when the load is done"
        )


def stage_of(
    name: str, then: object, standing: Callable[[str, Minibatch], Manifest]
) -> Sink | None:
    """Return the second stage of the sink `name` as a sink of manifests; None if there is none, or
    if it is a loader, which keeps its own key.
    """
    if then is None or (isinstance(then, Loader) and not isinstance(then, Sink)):
        return None
    if isinstance(then, Sink) and not isinstance(then, Function):
        return then
    if not isinstance(then, Function):
        function = cast("Callable[[Manifest], object]", then)
        return ManifestFunction(name=f"{name}.then", function=function, standing=standing)
    settings: dict[str, Any] = {
        each: getattr(then, each)
        for each in ("name", "on_doubt", "on_reject", "lease_s", "deadline_s", "retry")
    }
    probe = cast("Callable[[Any], bool | None] | None", then.probe)
    if probe is not None:
        settings["probe"] = lambda event: probe(
            standing(event.value["pipeline"], minibatch_in(event))
        )
    return ManifestFunction(
        **settings, park_limit=then.park_limit, function=then.function, standing=standing
    )
