"""Reads Spark's checkpoint folder, and chooses the ledger that belongs to it.

A local folder is read directly, any other through Spark. The ledger is the one that was named,
`$SEMEL_LEDGER`, or a file beside the checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import re
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from semel.errors import ConfigurationError
from semel.events.encoding import ascii_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger("semel")

OFFSETS_FROM = 2
"""An offsets file begins with a version line and a metadata line."""
NO_OFFSET = "-"
"""What Spark writes for a source of which nothing was read yet."""
INPUTS_MAX = 16 * 1024
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def local_path(location: str) -> Path | None:
    """Return the folder as a local path; None if it is on another file system."""
    if location.startswith("file:"):
        rest = location.removeprefix("file:")
        return Path("/" + rest.lstrip("/")) if rest.startswith("/") else None
    return None if _SCHEME.match(location) else Path(location)


def query_id(spark: SparkSession, location: str) -> str:
    """Return Spark's id of the query, which lasts as long as the checkpoint."""
    text = _read(spark, location, "metadata")
    if text is None:
        raise ConfigurationError(
            f"the file `metadata` of checkpoint {location} cannot be read: use a "
            "checkpointLocation that the driver can read, on durable storage"
        )
    return str(json.loads(text.splitlines()[-1])["id"])


def move_aside(spark: SparkSession, location: str, number: int) -> Path | None:
    """Move the checkpoint from before reset `number` aside, so that the query begins again; return
    where to. Nothing is deleted.

    Raises `ConfigurationError` if there is a checkpoint on a file system where it cannot be moved.
    """
    path = local_path(location)
    if path is None or not path.exists():
        if _read(spark, location, "metadata") is None:
            return None
        raise ConfigurationError(
            f"the pipeline was reset, and {location} is the checkpoint from before the reset: move "
            "it aside (semel moves local folders only), or pass another checkpointLocation, and "
            "start again"
        )
    if not (path / "metadata").exists():
        return None
    path = path.absolute()
    names = (
        path.with_name(f"{path.name}.before-reset-{number}{f'-{more}' if more else ''}")
        for more in count()
    )
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    return aside


def starts(spark: SparkSession, location: str, batch: int) -> Mapping[str, int] | None:
    """Return the offsets where `batch` begins, for Spark's Kafka source and for semel's sources;
    None if the checkpoint does not have them.
    """
    if batch == 0:
        first = _positions(_offsets(spark, location, "sources/0/0"))  # Spark's Kafka source
        ended = _offsets(spark, location, "offsets/0")
        # The first batch of any other source ends there: only semel's sources say where it began.
        return first or (_positions(ended.get("begin")) if _is_of_semel(ended) else None)
    before = _offsets(spark, location, f"offsets/{batch - 1}")
    return _positions(before["positions"] if _is_of_semel(before) else before)


def _is_of_semel(offsets: Mapping[str, Any]) -> bool:
    """Whether a source of semel wrote an offset; in Kafka's form every name is that of a topic."""
    return isinstance(offsets.get("marker"), int)


def _offsets(spark: SparkSession, location: str, name: str) -> dict[str, Any]:
    """Return the object in the last line of a checkpoint file; an empty one if there is none."""
    text = _read(spark, location, name)
    try:
        found = json.loads(text.splitlines()[-1]) if text else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _positions(offsets: object) -> dict[str, int] | None:
    """Return positions in Kafka's format by their partitions; None for anything else."""
    found: dict[str, int] = {}
    for topic, partitions in offsets.items() if isinstance(offsets, dict) else ():
        if not isinstance(partitions, dict):
            return None
        for number, offset in partitions.items():
            if type(offset) is not int:
                return None
            found[f"{topic}/{number}"] = offset
    return found or None


def inputs(location: str, batch: int, query: Callable[[], Any]) -> tuple[str, ...]:
    """Return the end offsets of each source in `batch`, as Spark's JSON; nothing if they cannot be
    read without a request, or if they are too long to be kept with every minibatch.

    A folder on another file system is not read: `query` gives Spark's query, whose log has the
    newest micro-batches in memory.
    """
    path = local_path(location)
    if path is None:
        found = _remembered(query(), batch)
    else:
        try:
            lines = (path / "offsets" / str(batch)).read_text("utf-8").splitlines()
        except OSError:
            return ()
        found = tuple(lines[OFFSETS_FROM:])
    found = tuple(map(_where, found))
    return found if sum(map(len, found)) <= INPUTS_MAX else ()


def _where(text: str) -> str:
    """Return an offset without the markers inside its micro-batch, which only a replay needs."""
    try:
        offsets = json.loads(text) if '"borders"' in text else None
    except ValueError:
        return text
    if not isinstance(offsets, dict) or not _is_of_semel(offsets):
        return text
    return ascii_json({name: at for name, at in offsets.items() if name != "borders"})


def _remembered(query: Any, batch: int) -> tuple[str, ...]:
    """Return the end offsets of a micro-batch that Spark has just recorded; nothing if the query
    has no JVM here (Spark Connect), or if this Spark keeps them in another way.
    """
    try:
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - no public API has them
        offsets = execution.offsetLog().get(batch).get().offsets()
        each = [offsets.apply(at) for at in range(offsets.size())]
        return tuple(str(one.get().json()) if one.isDefined() else NO_OFFSET for one in each)
    except Exception as error:  # noqa: BLE001 - py4j raises what the JVM does; nothing rests on it
        log.debug("no positions of the inputs: %s", error)
        return ()


def _read(spark: SparkSession, location: str, name: str) -> str | None:
    """Return the text of a checkpoint file; None if there is none."""
    path = local_path(location)
    if path is not None and path.exists():
        file = path / name
        return file.read_text() if file.is_file() else None
    from pyspark.errors import PySparkException

    try:
        rows = spark.read.text(f"{location.rstrip('/')}/{name}", wholetext=True).collect()
    except PySparkException:
        return None
    return rows[0][0] if rows else None


VARIABLE = "SEMEL_LEDGER"
SQLITE = "sqlite:///"
LOOPBACK = ("localhost", "::1")
STANDALONE = "spark://"


def resolve(named: str | None, checkpoint: str | None) -> str:
    """Return the URL of the ledger, with an absolute path.

    Runs where the pipeline's driver runs: with Spark Connect that is beside the server.
    """
    url = named or os.environ.get(VARIABLE) or _beside(checkpoint)
    if url.startswith(SQLITE):
        return SQLITE + str(Path(url.removeprefix(SQLITE)).absolute())
    return url


def _beside(checkpoint: str | None) -> str:
    """Return a file beside the checkpoint, not in it, so that it outlives a deleted checkpoint. Its
    folder is created, as Spark creates that of the checkpoint.
    """
    folder = None if checkpoint is None else local_path(checkpoint)
    if folder is None:
        where = "there is no checkpoint" if checkpoint is None else f"{checkpoint} is not local"
        raise ConfigurationError(
            f"{where}, so semel cannot put a ledger beside it: pass ledger="
            f'"postgresql://user@host/database", or set ${VARIABLE}'
        )
    absolute = folder.absolute()
    absolute.parent.mkdir(parents=True, exist_ok=True)
    return SQLITE + str(absolute.with_name(absolute.name + ".semel.db"))


def refuse_unreachable(url: str, spark: SparkSession) -> None:
    """Refuse a SQLite file if executors run on other machines, which cannot share it."""
    master = spark.conf.get("spark.master", "local") or "local"
    if not url.startswith("sqlite:") or master.startswith("local"):
        return
    masters = master.removeprefix(STANDALONE).split(",")
    if master.startswith(STANDALONE) and all(map(_is_here, masters)):
        return
    raise ConfigurationError(
        f"the ledger is a SQLite file, and the master is {master}: executors on other machines "
        "cannot share a file safely. Pass ledger="
        f'"postgresql://user@host/database", or set ${VARIABLE}'
    )


def _is_here(place: str) -> bool:
    """Whether the master's host and port are reachable from this machine only."""
    host = urlsplit(f"//{place}").hostname or ""
    return host in LOOPBACK or host.startswith("127.")
