"""What Spark reports of a query: its micro-batches and its state, read with the heartbeat.

Always true:
- each micro-batch is read once, though Spark reports it again while the query is idle;
- Spark keeps its newest 100 reports: micro-batches that pass between two looks are not missed;
- an error in reading them stops nothing, and leaves the figures as they were.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from semel.delivery import MinibatchCompleted, QueryProgressed, summary
from semel.ledger import QueryFigures, StateFigures, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

BESIDE_CONNECT = (
    "with Spark Connect only the client has the progress of the query: query.lastProgress"
)

FIGURES = "semel"
"""The key of Spark's progress under which a query of semel has its own figures."""
KEPT = 100
"""Of how many micro-batches the figures are kept: as many as Spark keeps the progress of."""

log = logging.getLogger("semel")

_recorders: WeakValueDictionary[str, BatchFigures] = WeakValueDictionary()


class BatchFigures:
    """Keeps what the newest micro-batches of one query delivered: an observer of its driver."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Any]] = {}

    def observe(self, event: object) -> None:
        """Keep the figures of a minibatch."""
        if isinstance(event, MinibatchCompleted):
            kept = {**self._kept, event.minibatch.batch: summary(event)}
            self._kept = dict(list(kept.items())[-KEPT:])

    def serve(self, query: str) -> None:
        """Let `delivered_by` find them by the id of the query."""
        _recorders[query] = self

    def of(self, batch: int) -> dict[str, Any] | None:
        """Return the figures of a micro-batch; None if they are not known."""
        return self._kept.get(batch)

    def newest(self, count: int) -> list[dict[str, Any]]:
        """Return the figures of the newest micro-batches, the newest first."""
        return list(self._kept.values())[: -count - 1 : -1]

    def add_to(self, progress: Any) -> Any:
        """Add the figures to a progress of the query, and to the text that it is printed as."""
        if isinstance(progress, dict):
            known = self.of(progress["batchId"])
            for each in (progress, getattr(progress, "_jdict", None)):
                if known is not None and isinstance(each, dict):
                    each[FIGURES] = known
        return progress


def delivered_by(progress: Any) -> dict[str, Any] | None:
    """Return what semel delivered in the micro-batch that a `StreamingQueryProgress` reports.

    For `onQueryProgress(event)` of a listener: `delivered_by(event.progress)`. None if the query is
    not one of semel's, or its driver is another process (Spark Connect).
    """
    is_dict = type(progress) is dict
    query, batch = (
        (progress["id"], progress["batchId"]) if is_dict else (progress.id, progress.batchId)
    )
    recorder = _recorders.get(str(query))
    return None if recorder is None else recorder.of(batch)


def writes_changelogs(spark: SparkSession) -> bool:
    """Whether RocksDB state stores of a session write changelogs."""
    return str(spark.conf.get(CHANGELOG, "false")).lower() == "true"


class ProgressReader:
    """Reads the reports of a query that were not read before. Runs on the driver.

    Attributes:
        query: gives Spark's query, None while it is not known.
        changelogs: whether its RocksDB state stores write changelogs.
    """

    def __init__(self, pipeline: str, query: Callable[[], Any], *, changelogs: bool) -> None:
        self._pipeline = pipeline
        self._query = query
        self._changelogs = changelogs
        self._batch = -1
        self._uploaded: dict[str, int] = {}

    def read(self) -> list[QueryProgressed]:
        """Return what is new, oldest first; nothing if it cannot be read."""
        try:
            query = self._query()
            return [] if query is None else self.take(self._newer(query))
        except Exception as error:  # noqa: BLE001 - the session is gone, or Spark cannot answer
            log.debug("pipeline %r: no progress of the query: %s", self._pipeline, error)
            return []

    def _newer(self, query: Any) -> list[dict[str, Any]]:
        """Return the reports since the newest micro-batch that was read, oldest first."""
        newer = []
        for report in reversed(list(query._jsq.recentProgress())):  # noqa: SLF001 - Spark's text
            newer.append(json.loads(report.json()))
            if newer[-1]["batchId"] <= self._batch:
                break
        return newer[::-1]

    def take(self, reports: Iterable[dict[str, Any]]) -> list[QueryProgressed]:
        """Return an event for each report of a micro-batch that was not read before."""
        made = []
        for report in reports:
            ran = "addBatch" in report["durationMs"]  # else nothing was run: the query is idle
            if ran and report["batchId"] > self._batch:
                self._batch = report["batchId"]
                made.append(self._event(report))
        return made

    def _event(self, report: dict[str, Any]) -> QueryProgressed:
        query = QueryFigures(
            report["batchId"],
            float(report.get("inputRowsPerSecond") or 0.0),
            float(report.get("processedRowsPerSecond") or 0.0),
            report["durationMs"].get("triggerExecution", 0) / 1000,
            (report.get("eventTime") or {}).get("watermark"),
        )
        state = tuple(
            self._state(place, each) for place, each in enumerate(report["stateOperators"])
        )
        return QueryProgressed(self._pipeline, query, state, behind(report))

    def _state(self, place: int, operator: Mapping[str, Any]) -> StateFigures:
        more: Mapping[str, int] = operator.get("customMetrics") or {}
        kind = kind_of(more, changelogs=self._changelogs)
        stores = operator.get("numStateStoreInstances") or 0
        uploads = self._uploads(place, more)
        # An aggregation reads its state by an operator of its own, which Spark does not report.
        loading = {} if operator["operatorName"] == AGGREGATION else more
        return StateFigures(
            operator=operator["operatorName"],
            kind=kind,
            stores=stores,
            rows=max(operator["numRowsTotal"], 0),
            memory_bytes=max(operator["memoryUsedBytes"], 0),
            rows_updated=operator["numRowsUpdated"],
            rows_removed=operator.get("numRowsRemoved", 0),
            rows_late=operator.get("numRowsDroppedByWatermark", 0),
            changelogs_written={StateKind.CHANGELOG: stores, StateKind.SNAPSHOTS: 0}.get(kind),
            snapshots_written=stores if kind is StateKind.SNAPSHOTS else uploads,
            loads=loading.get("rocksdbNumLoadedFromDfs"),
            changelogs_loaded=loading.get("rocksdbNumReplayChangelogFiles"),
            bytes_written=more.get("rocksdbTotalBytesWritten"),
            bytes_copied=more.get("rocksdbBytesCopied"),
            seconds_updating=_seconds(operator, "allUpdatesTimeMs", "allRemovalsTimeMs"),
            seconds_writing=_seconds(operator, "commitTimeMs"),
            seconds_loading=_ms(loading, "rocksdbLoadLatencyMs"),
        )

    def _uploads(self, place: int, more: Mapping[str, int]) -> int | None:
        """Count the snapshots that were uploaded since the micro-batch before, if Spark says so."""
        found = {name: at for name, at in more.items() if name.startswith(_UPLOADED)}
        if not found:
            return None
        count = 0
        for name, version in found.items():
            known = self._uploaded.get(f"{place}/{name}")
            # A store that is met for the first time may have been uploaded by an earlier run.
            count += known is not None and version > known
            self._uploaded[f"{place}/{name}"] = version
        return count


def behind(report: Mapping[str, Any]) -> dict[str, int]:
    """Return for each source, by its place, how many records its newest offsets are ahead of those
    that were taken; only sources whose offsets are numbers by topic and partition.
    """
    found = {}
    for place, source in enumerate(report.get("sources") or ()):
        taken, newest = (_offsets(source.get(name)) for name in ("endOffset", "latestOffset"))
        if taken is not None and newest is not None:
            ahead = (at - taken.get(partition, at) for partition, at in newest.items())
            found[str(place)] = sum(max(0, count) for count in ahead)
    return found


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """Return offsets by topic and partition; None if that is not what they are."""
    try:
        known = json.loads(value) if isinstance(value, str) else value
        return {
            (topic, partition): int(at)
            for topic, partitions in known.items()
            for partition, at in partitions.items()
        } or None
    except (AttributeError, TypeError, ValueError):
        return None


_UPLOADED = "SnapshotLastUploaded."
AGGREGATION = "stateStoreSave"
"""How Spark names the operator that writes the state of an aggregation."""


def kind_of(more: Mapping[str, int], *, changelogs: bool) -> StateKind:
    """Return how the state is kept, by the names of the figures that its store reports."""
    if any(name.startswith("rocksdb") for name in more):
        return StateKind.CHANGELOG if changelogs else StateKind.SNAPSHOTS
    if "loadedMapCacheHitCount" in more:
        return StateKind.MEMORY
    return StateKind.OTHER


def _seconds(figures: Mapping[str, Any], *names: str) -> float:
    return float(sum(figures.get(name) or 0 for name in names)) / 1000


def _ms(figures: Mapping[str, int], name: str) -> float | None:
    return figures[name] / 1000 if name in figures else None
