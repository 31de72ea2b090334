"""What a checkpoint folder says: whose it is, and where its sources began.

Reading goes through the local file system where the folder is there, else through Spark.

Which ledger a pipeline writes: a named one, `$SEMEL_LEDGER`, or one beside the checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OFFSETS_FROM = 2
"""A file of offsets begins with a version and a line about the micro-batch."""
INPUTS_MAX = 16 * 1024
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def local_path(location: str) -> Path | None:
    """The folder as a path of this machine; None when it names another file system."""
    if location.startswith("file:"):
        rest = location.removeprefix("file:")
        return Path("/" + rest.lstrip("/")) if rest.startswith("/") else None
    return None if _SCHEME.match(location) else Path(location)


def query_id(spark: SparkSession, location: str) -> str:
    """Spark's id of the query: it lives and dies with the checkpoint."""
    text = _read(spark, location, "metadata")
    if text is None:
        raise ConfigurationError(
            f"the checkpoint {location} has no metadata that could be read: give a "
            "checkpointLocation that the driver can read, and a disk that keeps it"
        )
    return str(json.loads(text.splitlines()[-1])["id"])


def starts(spark: SparkSession, location: str, batch: int) -> Mapping[str, int] | None:
    """Where Spark's offsets begin in `batch`, for a source that has Kafka's shape; None where the
    checkpoint does not say.
    """
    name = "sources/0/0" if batch == 0 else f"offsets/{batch - 1}"
    text = _read(spark, location, name)
    if not text:
        return None
    try:
        offsets = json.loads(text.splitlines()[-1])
    except ValueError:
        return None
    found: dict[str, int] = {}
    for topic, partitions in offsets.items() if isinstance(offsets, dict) else ():
        if not isinstance(partitions, dict):
            return None
        for number, offset in partitions.items():
            if type(offset) is not int:
                return None
            found[f"{topic}/{number}"] = offset
    return found or None


def inputs(location: str, batch: int) -> tuple[str, ...]:
    """Where each source stands after `batch`, one text of Spark's for each; nothing where the
    folder is on another file system, or they are too long to be kept with every minibatch.
    """
    path = local_path(location)
    file = None if path is None else path / "offsets" / str(batch)
    try:
        lines = [] if file is None else file.read_text("utf-8").splitlines()
    except OSError:
        return ()
    found = tuple(lines[OFFSETS_FROM:])
    return found if sum(map(len, found)) <= INPUTS_MAX else ()


def _read(spark: SparkSession, location: str, name: str) -> str | None:
    """The text of a file of the checkpoint; None when there is none."""
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
    """Give the URL of the ledger, as every process of this machine can open it.

    Runs where the pipeline's driver runs: under Spark Connect that is beside the server.
    """
    url = named or os.environ.get(VARIABLE) or _beside(checkpoint)
    if url.startswith(SQLITE):
        return SQLITE + str(Path(url.removeprefix(SQLITE)).absolute())
    return url


def _beside(checkpoint: str | None) -> str:
    """A file beside the checkpoint, not in it: it outlives a checkpoint that is thrown away. Its
    folder is made, as Spark makes that of the checkpoint.
    """
    folder = None if checkpoint is None else local_path(checkpoint)
    if folder is None:
        where = "there is no checkpoint" if checkpoint is None else f"{checkpoint} is not local"
        raise ConfigurationError(
            f"{where}, so no ledger can lie beside it: say ledger="
            f'"postgresql://user@host/database", or set ${VARIABLE}'
        )
    absolute = folder.absolute()
    absolute.parent.mkdir(parents=True, exist_ok=True)
    return SQLITE + str(absolute.with_name(absolute.name + ".semel.db"))


def refuse_unreachable(url: str, spark: SparkSession) -> None:
    """A SQLite file serves the processes of one machine: refuse it where there are several."""
    master = spark.conf.get("spark.master", "local") or "local"
    if not url.startswith("sqlite:") or master.startswith("local"):
        return
    masters = master.removeprefix(STANDALONE).split(",")
    if master.startswith(STANDALONE) and all(map(_is_here, masters)):
        return
    raise ConfigurationError(
        f"the ledger is a SQLite file, and the master is {master}: executors on other machines "
        "cannot share a file safely. Say ledger="
        f'"postgresql://user@host/database", or set ${VARIABLE}'
    )


def _is_here(place: str) -> bool:
    """Whether a master at this host and port is reached on this machine alone."""
    host = urlsplit(f"//{place}").hostname or ""
    return host in LOOPBACK or host.startswith("127.")
