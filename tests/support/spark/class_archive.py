"""An archive of the classes that a driver's JVM loads: one that has it starts with half the work.

It is made once for each installation of Spark; a JVM that it does not fit goes on without it.
"""

from __future__ import annotations

import fcntl
import sys
from importlib.metadata import version
from pathlib import Path

from semel.verify.demo.standalone import SMALL_JVM
from support.spark.driver_scripts import Bed, wait_for

ARCHIVE = Path(sys.prefix) / f"spark-{version('pyspark')}.jsa"
SINKS = ["opaque", "probing", "repeatable", "sequenced", "transactional"]


def option() -> str:
    """Say it to a JVM; nothing where there is no archive yet."""
    return f"-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off" if ARCHIVE.exists() else ""


def archive(bed: Bed) -> None:
    """Let a driver deliver a little and write down its classes when it ends, unless that is done;
    two processes of xdist do not do it twice.
    """
    aside = ARCHIVE.with_suffix(".aside")
    with ARCHIVE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ARCHIVE.exists():
            return
        bed.payments()
        writes = f"{SMALL_JVM} -XX:ArchiveClassesAtExit={aside}"
        conf = {"spark.driver.extraJavaOptions": writes}
        bed.run(bed.settings(sink=SINKS, conf=conf, words={"partitions": 2}))
        wait_for(lambda: not bed.group.members(), timeout_s=300.0)
        if aside.exists():
            aside.rename(ARCHIVE)
