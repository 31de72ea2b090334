"""Which ledger a pipeline writes: a named one, `$SEMEL_LEDGER`, or one beside the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from semel.errors import ConfigurationError
from semel.spark.checkpoints import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
