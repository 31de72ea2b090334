"""A folder of files on any file system: its operations, and what is durable when they return.

Always true:
- a name from outside is escaped before it is part of a path, and no two names share one path;
- a file is written to a temporary place and moved to its own atomically: on a local disk after it
  and its folder were synced, on an object store by a copy that is atomic.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.urls import is_misplaced, place, scheme_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNSAFE = re.compile(r"[^A-Za-z0-9@+._-]|^[._]")
_NAME_BYTES_MAX = 120
_OBJECT_STORES = ("s3", "gcs", "abfs")
_HDFS = ("hdfs", "viewfs")
_SCHEMES = ("file", "s3", *_HDFS)


def path_part(name: str) -> str:
    """Return a name as one part of a path: `topic/3` is `topic~2F3`. A very long name is shortened
    and gets a digest that keeps it unique.
    """
    text = _UNSAFE.sub(lambda found: "".join(f"~{each:02X}" for each in _bytes(found[0])), name)
    if len(text) <= _NAME_BYTES_MAX:
        return text or "~"
    return f"{text[:64]}~~{hashlib.sha256(_bytes(name)).hexdigest()[:32]}"


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def where_of(url: str, below: Sequence[str] = ()) -> str:
    """Name the folder at a URL, or one below it, without a secret."""
    return "/".join([place(url).rstrip("/"), *map(path_part, below)])


def refuse_url(url: str) -> None:
    """Raise `ConfigurationError` for a URL that cannot be a place for files. It connects to
    nothing, and shows nothing that may be a part of a secret.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme not in _SCHEMES:
        raise ConfigurationError(
            f"{scheme_of(url)}... is not a supported place for files: use a path, file:///path, "
            "s3://bucket/path?region=... or hdfs://host:port/path. For another store that "
            "pyarrow.fs supports pass filesystem=, with url= a path in it"
        )
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    host = authority.rpartition("@")[2]
    port = host.rpartition("]")[2].partition(":")[2]
    after = rest[len(authority) :]
    misplaced = scheme != "file" and (is_misplaced(after) or ("@" in authority and "@" in after))
    if separator and (misplaced or (port and (scheme == "s3" or not port.isdecimal()))):
        raise ConfigurationError(
            f"{scheme}://... is not a valid place for files: the part before its first slash is "
            "neither a bucket nor a host. Write special characters in a key as %XX: / is %2F, + "
            "is %2B, # is %23, ? is %3F, and @ is %40"
        )


def replaces_nothing(url: str, system: Any) -> bool:
    """Return whether a rename in that file system cannot replace an existing file, as on HDFS."""
    if system is not None:
        return bool(system.type_name == "hdfs")
    return url.partition("://")[0] in _HDFS and "://" in url


@lru_cache(maxsize=8)
def _connected(url: str, process: int) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it, made once per process."""
    from pyarrow import fs

    del process
    if "://" not in url:
        return fs.LocalFileSystem(), url.rstrip("/")
    try:
        system, root = fs.FileSystem.from_uri(url)
    except (ValueError, TypeError) as error:
        where = place(url)
        why = f": {error}" if where == url else "; check its user, its key and its options"
        raise ConfigurationError(f"{where!r} is not a usable place for files{why}") from None
    return system, str(root)


@dataclass(eq=False)
class Writing:
    """A file being written aside: counted and digested on its way."""

    stream: Any
    local: bool
    bytes: int = 0
    closed: bool = False
    _digest: Any = field(default_factory=hashlib.sha256)

    def write(self, content: Any) -> int:
        """Take the next bytes; bytes after `close` are dropped."""
        view = memoryview(content)
        if self.closed:
            return view.nbytes
        self._digest.update(view)
        self.stream.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return how many bytes were written so far."""
        return self.bytes

    def flush(self) -> None:
        """Leave it to the end."""

    def digest(self) -> str:
        """Return the SHA-256 of the bytes so far."""
        return str(self._digest.hexdigest())

    def keep(self) -> None:
        """Close it; when this returns, its bytes are durable."""
        if self.local:
            self.stream.flush()
            os.fsync(self.stream.fileno())
        self.close()

    def close(self) -> None:
        """Close it."""
        if not self.closed:
            self.closed = True
            self.stream.close()


@dataclass(frozen=True)
class Folder:
    """A folder, named by its path in its file system, and by a URL that holds no secret."""

    system: Any
    root: str
    where: str

    @classmethod
    def at(cls, url: str, system: Any = None, below: Sequence[str] = ()) -> Folder:
        """Return the folder at a URL, or at a path in a given file system, or one below it."""
        root = url.rstrip("/")
        if system is None:
            refuse_url(url)
            # A client that was made before a fork is of no use after it.
            system, root = _connected(url, os.getpid())
        names = [path_part(name) for name in below]
        return cls(system, "/".join([root.rstrip("/"), *names]), where_of(url, below))

    @property
    def local(self) -> bool:
        """Whether it is on a disk of this machine."""
        return bool(self.system.type_name == "local")

    def path(self, name: str) -> str:
        """Return the path of a file in it."""
        return f"{self.root}/{name}"

    # -- looking

    def names(self, below: str) -> list[str]:
        """List the files in a folder of it; empty if there is no such folder."""
        from pyarrow import fs

        found = self.system.get_file_info(fs.FileSelector(self.path(below), allow_not_found=True))
        return [each.base_name for each in found if each.type is fs.FileType.File]

    def folders(self, below: str = "") -> list[str]:
        """List the folders in it, or in a folder of it, sorted; none if there is no such folder."""
        from pyarrow import fs

        place = self.path(below) if below else self.root
        found = self.system.get_file_info(fs.FileSelector(place, allow_not_found=True))
        return sorted(each.base_name for each in found if each.type is fs.FileType.Directory)

    def names_below(self, below: str) -> dict[str, list[str]]:
        """List the files in the folders of a folder of it, with one look: by folder."""
        from pyarrow import fs

        selector = fs.FileSelector(self.path(below), allow_not_found=True, recursive=True)
        listed: dict[str, list[str]] = {}
        for each in self.system.get_file_info(selector):
            if each.type is fs.FileType.File:
                listed.setdefault(Path(each.path).parent.name, []).append(each.base_name)
        return listed

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Tell the size of each file, None of one that is not there."""
        from pyarrow import fs

        found = self.system.get_file_info([self.path(name) for name in names])
        return [each.size if each.type is fs.FileType.File else None for each in found]

    def stands(self, name: str) -> bool:
        """Return whether a file of this name exists."""
        return self.sizes([name])[0] is not None

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self.system.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    # -- changing

    def write_aside(self, name: str) -> Writing:
        """Begin a file in a temporary place; the names there need not outlive the machine, because
        no process does.
        """
        self._make(Path(name).name if self.local else name)
        if self.local:
            Path(self.path(name)).parent.mkdir(parents=True, exist_ok=True)
            return Writing(Path(self.path(name)).open("wb"), local=True)
        return Writing(self.system.open_output_stream(self.path(name)), local=False)

    def move(self, aside: str, place: str) -> None:
        """Move a file to its place and replace an existing file; it is durable afterwards.

        In an object store it is copied atomically, and the temporary file stays. On HDFS a rename
        cannot replace a file, and none is removed for it: `FileExistsError`.
        """
        self._make(place)
        source, target = self.path(aside), self.path(place)
        if self.local:
            Path(source).replace(target)
            _sync(Path(target).parent)
            return
        if self.system.type_name in _OBJECT_STORES:
            self.system.copy_file(source, target)
            return
        if replaces_nothing("", self.system):
            if not self.stands(aside):
                raise FileNotFoundError(f"{self.where}/{aside} does not exist")
            if self.stands(place):
                raise FileExistsError(f"{self.where}/{place} exists already")
        self.system.move(source, target)

    def remove(self, name: str) -> None:
        """Remove a file if it exists; the removal is durable afterwards."""
        if self.local:
            with contextlib.suppress(FileNotFoundError):
                Path(self.path(name)).unlink()
                _sync(Path(self.path(name)).parent)
            return
        try:
            if self.stands(name):
                self.system.delete_file(self.path(name))
        except OSError:
            if self.stands(name):
                raise

    def remove_folder(self, below: str) -> None:
        """Remove a folder with its content if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.system.delete_dir(self.path(below))

    def _make(self, name: str) -> None:
        """Make the folder that a file is to be in, durably; object stores have none."""
        if self.system.type_name in _OBJECT_STORES:
            return
        parent = Path(self.path(name)).parent
        if not self.local:
            self.system.create_dir(str(parent), recursive=True)
            return
        missing = [each for each in (parent, *parent.parents) if not each.exists()]
        parent.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _sync(each.parent)


def _sync(folder: Path) -> None:
    """Make durable which names a folder on a local disk has."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
