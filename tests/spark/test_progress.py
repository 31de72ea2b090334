"""What Spark reports of a query becomes the figures of a run, read without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from semel.delivery.observer import KEPT, Figures, MinibatchCompleted, RunRecorder
from semel.events import Minibatch
from semel.ledger import MinibatchFigures, RunFigures, StateKind
from semel.ledger.payloads import Unfit, codec_of
from semel.spark import progress as spark_progress
from semel.spark.progress import BatchFigures, ProgressReader, behind, delivered_by
from support.ledger.one_pipeline import PlannedClock

ROCKSDB = {
    "rocksdbNumLoadedFromDfs": 2,
    "rocksdbNumReplayChangelogFiles": 3,
    "rocksdbTotalBytesWritten": 890,
    "rocksdbBytesCopied": 70,
    "rocksdbLoadLatencyMs": 30,
    "rocksdbReplayChangeLogLatencyMs": 12,
}
MEMORY = {"loadedMapCacheHitCount": 12, "loadedMapCacheMissCount": 0}


def report(
    batch: int,
    more: dict[str, int],
    operator: str = "dedupe",
    *,
    ran: bool = True,
    watermark: bool = True,
) -> dict[str, Any]:
    """A report as Spark writes it, without what nothing reads."""
    written = {
        "operatorName": operator,
        "numRowsTotal": 10 + batch,
        "numRowsUpdated": 4,
        "allUpdatesTimeMs": 39,
        "numRowsRemoved": 1,
        "allRemovalsTimeMs": 1,
        "commitTimeMs": 112,
        "memoryUsedBytes": 4272,
        "numRowsDroppedByWatermark": 0,
        "numStateStoreInstances": 2,
        "customMetrics": more,
    }
    return {
        "batchId": batch,
        "processedRowsPerSecond": 11.7,
        "durationMs": {"triggerExecution": 4263, **({"addBatch": 3066} if ran else {})},
        **({"eventTime": {"watermark": "1970-01-01T00:22:29.000Z"}} if watermark else {}),
        "stateOperators": [written],
    }


def recorded(progress: ProgressReader, *reports: dict[str, Any]) -> RunFigures:
    """The figures of a run that has seen these reports, as they come back from the ledger."""
    recorder = RunRecorder(PlannedClock())
    for each in reports:
        for event in progress.take([each]):
            recorder.observe(event)
    codec = codec_of(RunFigures)
    figures = recorder.figures(7)
    read: RunFigures = codec.read(codec.write(figures))
    assert read == figures
    return read


@pytest.mark.rows("O20")
def test_each_micro_batch_is_counted_once_though_spark_reports_it_again_while_idle() -> None:
    progress = ProgressReader("p", lambda: None, changelogs=True)
    at = {"SnapshotLastUploaded.partition_0_default": 0}
    figures = recorded(
        progress,
        report(0, ROCKSDB | at),
        report(0, ROCKSDB | at),
        report(1, ROCKSDB, ran=False),
        report(1, ROCKSDB | {"SnapshotLastUploaded.partition_0_default": 1}),
        report(2, ROCKSDB, ran=False),
    )
    assert figures.state is not None
    [state] = figures.state
    assert (state.operator, state.kind) == ("dedupe", StateKind.CHANGELOG)
    assert (state.stores, state.rows, state.memory_bytes) == (2, 11, 4272), "as of the newest"
    assert (state.rows_updated, state.rows_removed, state.rows_late) == (8, 2, 0)
    assert (state.changelogs_written, state.snapshots_written) == (4, 1)
    assert (state.loads, state.changelogs_loaded) == (4, 6)
    assert (state.bytes_written, state.bytes_copied) == (1780, 70)
    times = (state.seconds_updating, state.seconds_writing, state.seconds_loading)
    assert times == pytest.approx((0.08, 0.224, 0.06))
    assert figures.query is not None
    assert (figures.query.batch, figures.query.seconds) == (1, 4.263)
    assert figures.query.rows_per_s == 11.7
    assert figures.query.watermark == "1970-01-01T00:22:29.000Z"
    assert figures.to_json()["state"][0]["kind"] == "changelog"


@pytest.mark.rows("O14", "O20")
def test_a_session_without_changelogs_writes_a_snapshot_of_each_store() -> None:
    figures = recorded(ProgressReader("p", lambda: None, changelogs=False), report(0, ROCKSDB))
    assert figures.state is not None
    [state] = figures.state
    assert state.kind is StateKind.SNAPSHOTS
    assert (state.changelogs_written, state.snapshots_written) == (0, 2)


def test_the_loads_of_an_aggregation_are_unknown_because_spark_reports_them_nowhere() -> None:
    progress = ProgressReader("p", lambda: None, changelogs=True)
    figures = recorded(progress, report(0, ROCKSDB, "stateStoreSave"))
    assert figures.state is not None
    [state] = figures.state
    assert (state.loads, state.changelogs_loaded, state.seconds_loading) == (None, None, None)
    assert state.changelogs_written == 2


def test_what_a_store_or_a_version_does_not_report_is_unknown_and_not_nought() -> None:
    figures = recorded(
        ProgressReader("p", lambda: None, changelogs=True), report(0, MEMORY, watermark=False)
    )
    assert figures.state is not None
    [state] = figures.state
    assert state.kind is StateKind.MEMORY
    unknown = ("changelogs_written", "snapshots_written", "loads", "changelogs_loaded")
    assert {name: getattr(state, name) for name in unknown} == dict.fromkeys(unknown)
    assert (state.bytes_written, state.seconds_loading) == (None, None)
    assert figures.query is not None
    assert figures.query.watermark is None
    recorder = RunRecorder(PlannedClock(), "with Spark Connect ...")
    assert (recorder.figures(1).state, recorder.figures(1).query) == (None, None)
    assert recorder.figures(1).unknown == "with Spark Connect ..."


def test_a_query_that_cannot_answer_leaves_the_figures_as_they_are() -> None:
    def gone() -> Any:
        raise ConnectionError("the JVM is gone")

    assert ProgressReader("p", gone, changelogs=True).read() == []
    assert ProgressReader("p", lambda: None, changelogs=True).read() == []


@pytest.mark.rows("O20")
def test_throughput_and_latency_are_of_the_newest_minibatches() -> None:
    clock = PlannedClock()
    recorder = RunRecorder(clock)
    assert recorder.figures(1).rates is None
    for batch in range(30):
        clock.sleep(2.0)
        figures = {"out": Figures(delivered=10), "more": Figures(delivered=batch)}
        seconds = 1.5 if batch == 20 else 0.5
        recorder.observe(MinibatchCompleted("p", Minibatch(1, batch), figures, seconds=seconds))
    rates = recorder.figures(1).rates
    assert rates is not None
    assert (rates.minibatches, rates.seconds_max) == (20, 1.5)
    assert rates.elapsed_s == pytest.approx(19 * 2 + 0.5)
    assert rates.per_second("out") == pytest.approx(200 / 38.5)
    assert rates.seconds_each == pytest.approx((19 * 0.5 + 1.5) / 20)
    assert rates.delivered == {"out": 200, "more": sum(range(10, 30))}


@pytest.mark.rows("O20")
def test_the_newest_minibatches_are_kept_one_by_one_and_read_back() -> None:
    clock = PlannedClock()
    recorder = RunRecorder(clock)
    for batch in range(KEPT + 10):
        clock.move(2.0)
        figures = {
            "out": Figures(delivered=10, suppressed=3, parked_before=1),
            "more": Figures(delivered=12, parked=2, dropped_before=1, skipped=4),
        }
        completed = MinibatchCompleted("p", Minibatch(1, batch), figures, 5, seconds=0.25)
        recorder.observe(completed)
    figures_of_run = recorder.figures(1)
    codec = codec_of(RunFigures)
    assert codec.read(codec.write(figures_of_run)) == figures_of_run
    newest = figures_of_run.newest
    assert [each.minibatch for each in newest] == [f"1.{at}" for at in range(10, KEPT + 10)]
    assert newest[-1] == MinibatchFigures(f"1.{KEPT + 9}", clock.wall(), 0.25, 12, 5, 9, 2)
    assert figures_of_run.suppressed == (5 + 9) * (KEPT + 10)
    assert len(figures_of_run.to_json()["minibatches"]) == KEPT
    written = {**codec.write(figures_of_run)}
    for later in ("newest", "suppressed"):  # an older version does not write them
        del written[later]
    older = codec.read(written)
    assert (older.newest, older.suppressed) == ((), 0)
    wrong: list[Any] = [[["1.2", 1.0, 2.0]], [["1.2", 1.0, 2.0, 1, 1, 1, "x"]], [7], {}]
    for broken in wrong:
        with pytest.raises(Unfit):
            codec.read({**written, "newest": broken})


def offsets(**partitions: int) -> dict[str, dict[str, int]]:
    return {"t": {name.removeprefix("p"): at for name, at in partitions.items()}}


@pytest.mark.parametrize(
    ("end", "latest", "expected"),
    [
        (offsets(p0=5, p1=7), offsets(p0=9, p1=7), 4),
        ('{"t": {"0": 5}}', '{"t": {"0": 9}}', 4),
        (offsets(p0=5), offsets(p0=5, p1=100), 0),  # p1 is new: where it begins is not known
        (offsets(p0=9), offsets(p0=5), 0),  # deleted and created again
        ({"logOffset": 3}, {"logOffset": 5}, None),
        ({"logOffset": 3}, "null", None),
        (7, 9, None),
        (None, offsets(p0=5), None),
        ({}, {}, None),
        ("not json", "not json", None),
    ],
)
def test_a_source_is_behind_by_its_offsets_where_they_are_numbers(
    end: Any, latest: Any, expected: int | None
) -> None:
    source = {"description": "s", "endOffset": end, "latestOffset": latest}
    found = behind({"sources": [{"description": "another"}, source]})
    assert found == ({} if expected is None else {"1": expected})
    assert behind({}) == {}


def test_the_figures_of_the_newest_micro_batches_are_kept_and_found_by_query() -> None:
    figures = BatchFigures()
    figures.serve("q-1")
    for batch in range(spark_progress.KEPT + 20):
        done = MinibatchCompleted("p", Minibatch(1, batch), {"s": Figures(delivered=batch)})
        figures.observe(done)
    assert delivered_by({"id": "q-1", "batchId": 19}) is None
    found = delivered_by({"id": "q-1", "batchId": 20})
    assert found is not None
    assert found["delivered"] == 20
    assert [each["delivered"] for each in figures.newest(3)] == [119, 118, 117]
    assert delivered_by({"id": "q-2", "batchId": 20}) is None
    progress = {"id": "q-1", "batchId": 5}
    assert figures.add_to(progress) == {"id": "q-1", "batchId": 5}
    assert figures.add_to({"id": "q-1", "batchId": 50})["semel"]["delivered"] == 50
    assert figures.add_to(None) is None
