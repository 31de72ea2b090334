"""Runs a pipeline file: a session, the query, its progress, and its end by a signal.

Always true:
- everything that is wrong before the query starts is a problem of the file, at its line;
- after the first SIGTERM or SIGINT no micro-batch begins and no further parked event is sent; the
  micro-batch that runs is finished, or ends at the border of a window; after the second signal the
  query is stopped at once;
- while another run has the pipeline this one waits, and takes over when that run ends or its
  heartbeat stops; with `once` it is refused;
- no message holds a secret of the file.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from semel.delivery import JsonLogs
from semel.errors import ConfigurationError, LedgerUnavailable, SemelError
from semel.ledger import Ledger, LedgerClient, pending_reset
from semel.pipeline.build import INBOX, inbox_options, located
from semel.pipeline.progress import RunCounts, RunProgress
from semel.runtime import SystemClock
from semel.spark import (
    StandbyEnded,
    deliver,
    headline,
    jvm_is_gone,
    ledger_url,
    pipeline_session,
    read_source,
    run_sql,
    stop_in_order,
    why_failed,
)
from semel.urls import conceal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from semel.ledger import ResetRow
    from semel.pipeline.build import Pipeline
    from semel.pipeline.positions import Path

POLL_S = 0.25

FAILED = 1
WRONG = 2
UNREACHABLE = 3
BY_SIGNAL = 128

CHECKPOINT_SHARED = "CONCURRENT_STREAM_LOG_UPDATE"
"""In Spark's error when two queries wrote into one checkpoint."""

JVM_GONE = (
    "Spark's JVM ended under the query; what was being sent then is as after a crash, and the next "
    "start goes on. If a signal was to stop the run in order, send it to the process of `semel "
    "run` alone (systemd: KillMode=mixed), or use `semel stop`"
)

PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
"""Workers find modules beside the file, where the file's folder is on their machine too."""


log = logging.getLogger("semel")


class QueryFailed(SemelError):
    """The query ended with an error; the message is its sentence."""

    exit_status = FAILED


class RunEnd(Enum):
    """How a run ended in order."""

    FINISHED = "finished"
    DRAINED = "drained"
    STOPPED = "stopped at once"


# -- signals


@dataclass
class Signals:
    """SIGTERM and SIGINT as two requests: end after the micro-batch, and end at once."""

    drain: threading.Event = field(default_factory=threading.Event)
    at_once: threading.Event = field(default_factory=threading.Event)
    number: int = 0
    running: bool = False
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def take(self) -> None:
        """Take the signals, also from a session that has just taken them for itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, self._receive)
            self._before.setdefault(number, before)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if not self.drain.is_set():
            self.drain.set()
            return
        self.number = number
        self.at_once.set()
        if not self.running:
            raise KeyboardInterrupt


# -- the run


def run(
    pipeline: Pipeline, progress: RunProgress, *, once: bool = False, json_logs: bool = False
) -> tuple[RunEnd, int]:
    """Run a pipeline until its query ends; return how it ended, and the exit status. With
    `json_logs` semel's log lines are JSON, with one for each minibatch.

    Runs on the main thread of the driver. Raises `WrongPipelineFile`, `QueryFailed`, and
    `LedgerUnavailable` if the ledger cannot be reached at the start.
    """
    with Signals() as signals, _concealing(pipeline.file.problems.secrets, json_logs=json_logs):
        try:
            return _Running(pipeline, progress, signals).run(once=once)
        except KeyboardInterrupt:  # by the second signal, before there was a query to stop
            if not signals.at_once.is_set():
                raise
            return RunEnd.STOPPED, BY_SIGNAL + signals.number


class _Running:
    """One run of one pipeline."""

    def __init__(self, pipeline: Pipeline, progress: RunProgress, signals: Signals) -> None:
        self._pipeline = pipeline
        self._file = pipeline.file
        self._progress = progress
        self._signals = signals
        self._clock = SystemClock()

    def run(self, *, once: bool) -> tuple[RunEnd, int]:
        """Start the session and the query, and wait for the end."""
        with self._blaming(("spark",)):
            spark = self._session()
        self._signals.take()
        try:
            frame = self._frame(spark)
            writer, figures = self._writer(frame, once=once)
            while True:
                try:
                    with self._blaming(("pipeline",)):
                        query = writer.start()
                except StandbyEnded:
                    return RunEnd.DRAINED, 0
                self._signals.running = True
                try:
                    return self._wait(query, figures)
                except QueryFailed as error:
                    # The run before this one woke up and wrote into the checkpoint once more. It is
                    # fenced, so this one starts again and has the checkpoint for itself.
                    if once or CHECKPOINT_SHARED not in str(error):
                        raise
                    log.warning("%s: starting again: %s", self._pipeline.name, error)
        finally:
            with suppress(Exception):  # its JVM may be gone
                spark.stop()

    def _session(self) -> Any:
        section = self._file.sections.spark
        settings = dict(section.settings)
        known = settings.get(PYTHON_PATH)
        settings[PYTHON_PATH] = os.pathsep.join(filter(None, (str(self._file.folder), known)))
        return pipeline_session(
            self._pipeline.name,
            master=section.master,
            settings=settings,
            log_level=section.log_level,
        )

    def _frame(self, spark: Any) -> Any:
        """Return the DataFrame that is delivered."""
        sections = self._file.sections
        one = sections.source is not None
        with self._blaming(("pipeline",)):
            reset = self._reset()
        frames = {}
        for name, each in sections.named_sources.items():
            form, options = self._pipeline.formats[name], self._located(each.options)
            if form == INBOX:
                options = inbox_options(
                    options, self._file.folder, self._pipeline.name, self._ledger()
                )
            if not each.static:
                options = _begun(form, options, reset)
            with self._blaming(("source",) if one else ("sources", name)):
                frames[name] = read_source(spark, form, each.schema_, options, static=each.static)
        transform = sections.transform
        if transform is None:
            return frames["source"]
        if transform.sql is not None:
            with self._blaming(("transform", "sql")):
                return run_sql(spark, frames, transform.views, transform.sql)
        function: Any = self._pipeline.function
        with self._blaming(("transform", "python")):
            made = function(frames["source"]) if one else function(**frames)
            if not hasattr(made, "isStreaming"):
                kind = type(made).__name__
                raise ConfigurationError(
                    f"{transform.python} must return a Spark DataFrame, got {kind}"
                )
        return made

    def _reset(self) -> ResetRow | None:
        """Return a reset of the pipeline that no start has acted on yet."""
        try:
            ledger = Ledger(self._ledger())
        except ConfigurationError:  # there is no ledger before the first run
            return None
        with ledger:
            return pending_reset(LedgerClient(ledger.store, self._pipeline.name))

    def _ledger(self) -> str:
        return ledger_url(self._pipeline.words()["ledger"], self._pipeline.checkpoint)

    def _located(self, options: dict[str, str]) -> dict[str, str]:
        """Return the options with a relative `path` that starts at the folder of the file."""
        return {
            name: located(value, self._file.folder) if name.lower() == "path" else value
            for name, value in options.items()
        }

    def _writer(self, frame: Any, *, once: bool) -> tuple[Any, RunCounts]:
        sections = self._file.sections
        checkpoint = self._pipeline.checkpoint
        words = self._pipeline.words()
        with self._blaming(("pipeline",)):
            writer: Any = deliver(frame, **words)
            figures = RunCounts(
                self._pipeline.name, ledger_url(words["ledger"], checkpoint), self._clock
            )
            writer = writer.hides(self._file.problems.secrets).observed_by(figures)
            writer = writer.outputMode(sections.pipeline.mode)
            writer = writer.option("checkpointLocation", checkpoint)
            writer = writer.unless_ended(self._signals.drain.is_set)
            every = sections.trigger.every
            if once:
                return writer.trigger(availableNow=True), figures
            writer = writer.stands_by()
            if every is not None:
                writer = writer.trigger(processingTime=f"{round(every * 1000)} milliseconds")
        return writer, figures

    def _wait(self, query: Any, figures: RunCounts) -> tuple[RunEnd, int]:
        """Wait until the query ends. Raises `QueryFailed`, also if Spark's JVM ends under it."""
        try:
            return self._watch(query, figures)
        except Exception as error:
            if not jvm_is_gone(error):
                raise
            raise QueryFailed(JVM_GONE) from None

    def _watch(self, query: Any, figures: RunCounts) -> tuple[RunEnd, int]:
        """Show progress until the query ends, by itself or by a signal."""
        signals = self._signals
        stopping = None
        while query.isActive:
            if signals.drain.is_set() and stopping is None:
                stopping = threading.Thread(
                    target=stop_in_order, args=(query, signals.at_once), daemon=True
                )
                stopping.start()
            self._progress.show(figures.standing(draining=stopping is not None))
            signals.drain.wait(POLL_S) if stopping is None else stopping.join(POLL_S)
        if stopping is not None:
            stopping.join()
        why = why_failed(query)
        self._progress.show(figures.standing(last=True))
        if why is not None:
            raise QueryFailed(conceal(why, self._file.problems.secrets))
        if signals.at_once.is_set():
            return RunEnd.STOPPED, BY_SIGNAL + signals.number
        return (RunEnd.FINISHED if stopping is None else RunEnd.DRAINED), 0

    @contextmanager
    def _blaming(self, path: Path) -> Iterator[None]:
        """Raise what goes wrong here as a problem of the file, at the nearest key of `path`."""
        try:
            yield
        except (LedgerUnavailable, StandbyEnded):
            raise
        except Exception as error:  # noqa: BLE001 - Spark, a source, or the user's function
            text = str(error) if isinstance(error, SemelError) else headline(error)
            self._file.problems.at_key(path, text)
            self._file.problems.raise_any()


_BEGINS = ("startingoffsets", "startingmarker", "startingtimestamp", "startingoffsetsbytimestamp")
_TOPICS = {"kafka": "subscribe", "semel.kafka": "subscribe", INBOX: "stream"}
"""The formats that take `startingOffsets`, and the option that names their topics."""


def _begun(form: str, options: dict[str, str], reset: ResetRow | None) -> dict[str, str]:
    """Return the options of a source that begins where a reset says."""
    if reset is None or form not in _TOPICS:
        return options
    named = next((text for at, text in options.items() if at.lower() == _TOPICS[form]), None)
    topics = None if named is None else {each.strip() for each in named.split(",")}
    begins = reset.starting_offsets(topics)
    if not begins:
        return options
    kept = {name: value for name, value in options.items() if name.lower() not in _BEGINS}
    return {**kept, "startingOffsets": begins}


@contextmanager
def _concealing(secrets: set[str], *, json_logs: bool) -> Iterator[None]:
    """Let the log lines of semel hold no secret, and print them if nothing else takes them."""
    logger = logging.getLogger("semel")
    handler = logging.StreamHandler()
    handler.setFormatter(_ConcealingJson(secrets) if json_logs else _Concealing(secrets))
    logger.addHandler(handler)
    level = logger.level
    if json_logs:
        logger.setLevel(logging.INFO)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        logger.setLevel(level)


class _Concealing(logging.Formatter):
    """Writes a log line without secrets."""

    def __init__(self, secrets: set[str]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return conceal(super().format(record), self._secrets)


class _ConcealingJson(JsonLogs):
    """Writes a log line as JSON, without secrets."""

    def __init__(self, secrets: set[str]) -> None:
        super().__init__()
        self._secrets = secrets

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        return {
            name: conceal(value, self._secrets) if isinstance(value, str) else value
            for name, value in super().fields(record).items()
        }


def exit_status(error: BaseException) -> int:
    """Return the exit status for an error of `run`."""
    if isinstance(error, QueryFailed):
        return FAILED
    return UNREACHABLE if isinstance(error, LedgerUnavailable) else WRONG
