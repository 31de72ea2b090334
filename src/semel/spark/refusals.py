"""What is refused before an event moves, because it would make the promise false."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events import Counter, Given
from semel.protocol import Capability
from semel.spark.frames import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from semel.delivery import Agreement
    from semel.sinks import Sink

ASYNCHRONOUS = "asyncprogresstrackingenabled"


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
    if (spark.conf.get("spark.speculation", "false") or "").lower() != "true":
        return
    for sink in agreement.sinks:
        if sink.capability in (Capability.OPAQUE, Capability.PROBING):
            raise ConfigurationError(
                f"pipeline {agreement.name!r}: speculation runs a partition twice at once, and "
                f"sink {sink.name!r} is {sink.capability.value}: its destination cannot refuse the "
                "second. Set spark.speculation=false for this application"
            )


def refuse_columns(frame: DataFrame, sinks: Iterable[Sink]) -> None:
    """Refuse columns that cannot travel, or that a sink's destination cannot hold."""
    schema = arrow_schema(frame)
    for sink in sinks:
        sink.refuse(schema)


def refuse_trigger(agreement: Agreement, trigger: Mapping[str, Any]) -> None:
    """Refuse triggers that have no micro-batches to open and complete."""
    for word in ("continuous", "realTime"):
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
