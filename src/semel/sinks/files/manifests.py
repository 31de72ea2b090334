"""A manifest names the files of one complete minibatch; readers go by manifests alone.

Always true:
- a manifest is put in its place as a whole, after every file that it names, and only when the
  ledger has the minibatch complete;
- one that stands never changes;
- what is read back is checked before it is believed: a part is a file of the manifest's own folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, Diverged, NotDelivered, plain_text
from semel.events.chunks import escaped
from semel.events.ids import Attempt, Minibatch
from semel.sinks.files import reading
from semel.sinks.files.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from semel.sinks.files.folders import Folder

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
        """Raises `ValueError` for what is no file of a manifest; a name leads to no other place."""
        texts = (self.name, self.partition, self.digest, self.schema)
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("a part has texts where there are none")
        if not _PART.fullmatch(self.name):
            raise ValueError(f"{plain_text(self.name, 80)!r} is not the name of a part file")
        if not all(type(each) is int and each >= 0 for each in (self.rows, self.bytes)):
            raise ValueError(f"part {self.name}: rows and bytes are numbers")

    def to_json(self) -> dict[str, Any]:
        """Give it as a JSON object."""
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
        folder: where they are; None while it is only described.
    """

    pipeline: str
    sink: str
    minibatch: Minibatch
    format: str
    parts: tuple[Part, ...]
    folder: Folder | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> str:
        """The same for every attempt to load it, and never another one's."""
        return f"{escaped(self.pipeline)}/{escaped(self.sink)}/{self.minibatch}"

    @property
    def digest(self) -> str:
        """The SHA-256 of it as it stands in its file."""
        return hashlib.sha256(self.dump()).hexdigest()

    @property
    def rows(self) -> int:
        """How many events it names."""
        return sum(part.rows for part in self.parts)

    @property
    def location(self) -> str:
        """Where it stands, without a secret."""
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
        """Give it as it stands in its file."""
        made = {
            "version": VERSION,
            "pipeline": self.pipeline,
            "sink": self.sink,
            "minibatch": [self.minibatch.generation, self.minibatch.batch],
            "format": self.format,
            "rows": self.rows,
            "parts": [part.to_json() for part in self.parts],
        }
        return (json.dumps(made, indent=1, sort_keys=True) + "\n").encode()

    @classmethod
    def load(cls, content: bytes, folder: Folder, minibatch: Minibatch) -> Manifest:
        """Read back the one of a minibatch. Raises `ConfigurationError` for one of another version,
        `Diverged` for one that is damaged.
        """
        try:
            value = json.loads(content)
            if isinstance(value, dict) and value.get("version", VERSION) != VERSION:
                told = plain_text(value["version"], 40)
                raise ConfigurationError(
                    f"{folder.where}: a manifest of version {told!r}, and this is for version "
                    f"{VERSION}: read it with the semel that wrote it"
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
            raise TypeError("pipeline and sink are texts")
        if found.minibatch != minibatch:
            raise ValueError("it is the manifest of another minibatch")
        if found.format not in FORMATS:
            raise ValueError(f"there is no format {plain_text(found.format, 40)!r}")
        return found

    def tables(self) -> Iterator[pa.Table]:
        """Give the rows of each file, compared with what the manifest says of it.

        Raises `NotDelivered` for a file that is missing or not the one that was delivered.
        """
        for part in self.parts:
            content = self.content(part)
            try:
                table = reading.table(content, self.format, part.schema)
            except (ValueError, TypeError, LookupError, OSError) as error:
                why = f"part {part.name} cannot be read as it says: {plain_text(error, 200)}"
                raise _damaged(self._folder, self.minibatch, why) from error
            if table.num_rows != part.rows:
                raise NotDelivered(
                    f"{self._folder.where}/{part.name} was delivered with {part.rows} rows and is "
                    f"read with {table.num_rows}: read it with the semel that wrote it"
                )
            yield table

    def content(self, part: Part) -> bytes:
        """Give the bytes of a file, compared with what the manifest says of it."""
        try:
            content = self._folder.read(part.name)
        except FileNotFoundError:
            content = b""
        if len(content) != part.bytes or hashlib.sha256(content).hexdigest() != part.digest:
            raise NotDelivered(
                f"{self._folder.where}/{part.name} is missing, or is not the file that manifest "
                f"{stem(self.minibatch)} names: somebody removed or changed it after it was "
                "delivered. Restore it"
            )
        return content


def _damaged(folder: Folder, minibatch: Minibatch, why: str) -> Diverged:
    return Diverged(
        f"{folder.where}/{manifest_name(minibatch)} is damaged ({why}): it is not as semel wrote "
        "it. No file was read, moved or removed because of it. Restore it"
    )


def manifests(folder: Folder, after: Minibatch | None = None) -> Iterator[Manifest]:
    """Give the manifests of a folder in the order of their minibatches, after one where told."""
    found = [_NAME.fullmatch(name) for name in folder.names(MANIFESTS)]
    named = sorted(Minibatch(int(each[1]), int(each[2])) for each in found if each is not None)
    for minibatch in named:
        if after is None or minibatch > after:
            yield Manifest.load(folder.read(manifest_name(minibatch)), folder, minibatch)
