"""A manifest names the files of one complete minibatch; readers go by manifests alone.

Always true:
- a manifest is put in its place as a whole, after every file that it names, and only when the
  ledger has the minibatch complete;
- one that stands never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, NotDelivered
from semel.events.chunks import escaped
from semel.events.ids import Attempt, Minibatch
from semel.sinks.files import reading

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from semel.sinks.files.folders import Folder

MANIFESTS = "_manifests"
VERSION = 1
_NAME = re.compile(r"(\d+)-(\d+)\.json")


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
    def load(cls, content: bytes, folder: Folder) -> Manifest:
        """Read it back. Raises `ConfigurationError` for one of another version."""
        value = json.loads(content)
        if value.get("version") != VERSION:
            raise ConfigurationError(
                f"{folder.where}: a manifest of version {value.get('version')!r}, and this is for "
                f"version {VERSION}: read it with the semel that wrote it"
            )
        return cls(
            value["pipeline"],
            value["sink"],
            Minibatch(*value["minibatch"]),
            value["format"],
            tuple(Part.from_json(part) for part in value["parts"]),
            folder,
        )

    def tables(self) -> Iterator[pa.Table]:
        """Give the rows of each file, compared with what the manifest says of it.

        Raises `NotDelivered` for a file that is missing or not the one that was delivered.
        """
        for part in self.parts:
            table = reading.table(self.content(part), self.format, part.schema)
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


def manifests(folder: Folder, after: Minibatch | None = None) -> Iterator[Manifest]:
    """Give the manifests of a folder in the order of their minibatches, after one where told."""
    found = [_NAME.fullmatch(name) for name in folder.names(MANIFESTS)]
    named = sorted(Minibatch(int(each[1]), int(each[2])) for each in found if each is not None)
    for minibatch in named:
        if after is None or minibatch > after:
            yield Manifest.load(folder.read(manifest_name(minibatch)), folder)
