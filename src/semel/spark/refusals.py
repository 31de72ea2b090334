"""What is refused before an event moves, because it would make the promise false."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import Counter, Given
from semel.protocol import Capability
from semel.spark.plans import route
from semel.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from semel.delivery import Agreement
    from semel.sinks import Sink

ASYNCHRONOUS = "asyncprogresstrackingenabled"
NO_MICRO_BATCHES = ("continuous", "realTime")
"""The triggers that have none; not every version of Spark knows both words."""


def refuse_optimized() -> None:
    """Assertions state the design: without them nobody would notice that it does not hold."""
    if sys.flags.optimize:
        raise ConfigurationError(
            "Python runs with -O (PYTHONOPTIMIZE), which removes the checks that semel's promise "
            "rests on: start the driver and the executors without it"
        )


def refuse_session(spark: SparkSession, agreement: Agreement) -> None:
    """Refuse an interpreter or a session under which an effect could happen twice unnoticed."""
    refuse_optimized()
    refuse_stopped(spark, agreement.name)
    if (spark.conf.get("spark.speculation", "false") or "").lower() != "true":
        return
    for sink in agreement.sinks:
        if sink.capability in (Capability.OPAQUE, Capability.PROBING):
            raise ConfigurationError(
                f"pipeline {agreement.name!r}: speculation runs a partition twice at once, and "
                f"sink {sink.name!r} is {sink.capability.value}: its destination cannot refuse the "
                "second. Set spark.speculation=false for this application"
            )


def refuse_stopped(spark: Any, name: str) -> None:
    """Refuse a session that was stopped: nothing can be computed in it any more."""
    try:
        if hasattr(spark, "_jsparkSession"):
            stopped = bool(spark._jsparkSession.sparkContext().isStopped())  # noqa: SLF001
        else:
            stopped = bool(spark.is_stopped)  # Spark Connect
    except Exception:  # noqa: BLE001 - the JVM is gone, and the session with it
        stopped = True
    if stopped:
        raise ConfigurationError(
            f"pipeline {name!r}: the Spark session of the frame is stopped. Start a session, read "
            "the frame from it again, and call spark.stop() only after the query has ended"
        )


def refuse_columns(frame: DataFrame, sinks: Iterable[Sink]) -> None:
    """Refuse columns that cannot travel, or that a sink's destination cannot hold."""
    schema = arrow_schema(frame.schema)
    for sink in sinks:
        sink.refuse(schema)


def refuse_trigger(agreement: Agreement, trigger: Mapping[str, Any]) -> None:
    """Refuse triggers that have no micro-batches to open and complete."""
    for word in NO_MICRO_BATCHES:
        if trigger.get(word) is not None:
            raise ConfigurationError(
                f"pipeline {agreement.name!r}: trigger({word}=...) has no micro-batches that could "
                "be opened and completed. Use processingTime or availableNow"
            )


def refuse_options(agreement: Agreement, options: Mapping[str, str]) -> None:
    """Refuse options under which a restart replays more than the ledger keeps."""
    if options.get(ASYNCHRONOUS, "false").lower() == "true":
        raise ConfigurationError(
            f"pipeline {agreement.name!r}: asynchronous progress tracking commits only some of the "
            "micro-batches, so a restart replays more than the ledger keeps. Leave "
            "asyncProgressTrackingEnabled away"
        )


def refuse_mode(agreement: Agreement, mode: str) -> None:
    """Refuse modes in which an id comes again with other values."""
    identity = agreement.identity
    tells_versions = isinstance(identity, Counter) or (
        isinstance(identity, Given) and len(identity.event) > 1
    )
    if mode != "append" and not tells_versions:
        raise ConfigurationError(
            f"pipeline {agreement.name!r}: in {mode} mode a row comes again with new values under "
            'the id it had. Use append mode, identity="counter", or an id that tells the versions '
            'apart: event=["window.start", "version"]'
        )


def refuse_moved(frame: DataFrame, name: str) -> None:
    """Refuse, for position identity, a plan by which a source partition comes in several tasks, or
    positions come from several sources.
    """
    found = route(frame)
    instead = "use given identity (entity=, event=)"
    if found.splitting:
        raise ConfigurationError(
            f"pipeline {name!r}: the Kafka source has {', '.join(found.splitting)}, with which "
            "Spark reads one partition of a topic in several tasks; by position, one task delivers "
            f"a source partition in the order of its offsets. Remove the option, or {instead}"
        )
    if found.sources > 1:
        raise ConfigurationError(
            f"pipeline {name!r}: the frame reads {found.sources} streaming sources, and positions "
            "are unique within one source only. Read all topics with one source "
            f'(.option("subscribe", "a,b")), run one pipeline for each source, or {instead}'
        )
    if found.moving:
        raise ConfigurationError(
            f"pipeline {name!r}: {found.moving!r} in the plan puts the rows of a source partition "
            "into several tasks; by position, one task delivers a source partition in the order of "
            "its offsets. Remove repartition, deduplication and shuffled joins before "
            f"semel.deliver (broadcast the static side of a join), or {instead}"
        )
