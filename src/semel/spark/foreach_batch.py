"""The driver's part of a delivery: the function that `foreachBatch` calls for each micro-batch.

The steps of a micro-batch: 1. the first time, register the run; 2. open the minibatch; 3. deliver
it with one action over one pass of the DataFrame; 4. complete it from the reports of the tasks.

Always true:
- the DataFrame is computed once: no count, no cache, no second action unless something fails;
- it is pickled without connections and threads: with Spark Connect it runs beside the server.
"""

from __future__ import annotations

import json
import logging
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.delivery import Driver, Observers, Pacing
from semel.errors import ConfigurationError, Diverged, Fenced, StopRequested
from semel.ledger import (
    UNKNOWN_SOURCES,
    LedgerClient,
    Owners,
    Sources,
    open_store,
    pending_reset,
)
from semel.monitoring import Monitoring
from semel.spark import checkpoints
from semel.spark.checks import refuse_optimized
from semel.spark.failures import Stopped, for_spark, raised
from semel.spark.frames import kafka_topics
from semel.spark.frames.backlog import is_behind
from semel.spark.frames.plan import is_classic
from semel.spark.frames.repartition import arranged, plainly_named
from semel.spark.heartbeat import Heartbeat
from semel.spark.progress import (
    BESIDE_CONNECT,
    BatchFigures,
    ProgressReader,
    writes_changelogs,
)
from semel.spark.starting import (
    Begun,
    StandbyEnded,
    begin_unless_running,
    make_driver,
    refuse_living,
    stand_by,
)
from semel.spark.stopping import MicroBatchBorder, stop_at_border
from semel.spark.task import SCHEMA, Task, TaskOutcome
from semel.spark.versions import installed, refuse_old, root_session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from semel.delivery import Observer, PipelineSpec
    from semel.ledger import OpenMinibatch, OwnerRow
    from semel.ledger.store import Store
    from semel.monitoring import Monitor
    from semel.spark.frames.kafka_topics import KafkaSource

TRIES = 10

log = logging.getLogger("semel")


@dataclass
class Live:
    """The objects of a run that has micro-batches."""

    begun: Begun
    driver: Driver
    query: str
    starts: Mapping[str, int] | None
    sources: Sources


@dataclass
class MicroBatches:
    """Delivers the micro-batches of one `start()`. Runs on the driver, or beside a Connect server.

    Attributes:
        nonce: unique for this start.
        source: the Kafka source, if the DataFrame reads one.
        query: Spark's query, if it is in this process; the heartbeat ends with it.
        border: what a micro-batch passes first, so that the query can be stopped before it; None
            at a client of Spark Connect.
        observer: is notified of what the driver does, besides the log.
        trigger_s: the interval of Spark's own trigger, for a paced pipeline.
        monitoring: the metrics, traces and alerts that are wanted.
        figures: keeps what the newest micro-batches delivered.
        standby: whether to wait while another run has the pipeline, instead of refusing.
        ended: whether this start was asked to end before its query runs.
    """

    spec: PipelineSpec
    ledger: str | None
    checkpoint: str
    nonce: str
    source: KafkaSource | None = None
    query: Any = None
    border: MicroBatchBorder | None = None
    observer: Observer | None = None
    trigger_s: float = 0.0
    monitoring: Monitoring = field(default_factory=Monitoring)
    figures: BatchFigures = field(default_factory=BatchFigures)
    standby: bool = False
    ended: Callable[[], bool] | None = None
    _begun: Begun | None = field(default=None, init=False, repr=False)
    _root: SparkSession | None = field(default=None, init=False, repr=False)
    _monitor: Monitor | None = field(default=None, init=False, repr=False)
    _live: Live | None = field(default=None, init=False, repr=False)
    _watched: OwnerRow | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        own = ("query", "border", "observer", "ended", "_begun", "_root", "_live", "_monitor")
        return {**self.__dict__, **dict.fromkeys(own)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _root=root_session())

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Deliver one micro-batch. Raises the error that stops the query, shortened."""
        self.border = border = self.border or MicroBatchBorder()
        with border:
            self._call(frame, batch, border)

    def _call(self, frame: DataFrame, batch: int, border: MicroBatchBorder) -> None:
        try:
            self._deliver(frame, batch, border)
        except StopRequested as asked:
            log.info("pipeline %r stops: %s", self.spec.name, asked)
            threading.Thread(target=self._stop_query, daemon=True).start()
            border.wait_for_stop()
        except Exception as error:
            made = for_spark(error)
            if made is not error and not isinstance(made, Stopped):
                log.exception("pipeline %r: the query stops", self.spec.name)
            raise made from None

    def _deliver(self, frame: DataFrame, batch: int, border: MicroBatchBorder) -> None:
        if self._live is None:
            refuse_optimized()
            refuse_old(installed(), "PySpark beside the Spark Connect server", self.spec.name)
            self._live = self._begin_run(frame, batch)
            if border.closed:  # asked before there was a run to ask
                raise StopRequested(f"pipeline {self.spec.name!r} was asked to stop")
        live = self._live
        if live.driver.pacing is not None:
            live.driver.pacing.began()
        inputs = checkpoints.inputs(
            self.checkpoint, batch, lambda: self.query or self._query_beside(live)
        )
        try:
            with live.begun.between:
                opening = live.driver.begin(live.query, batch, live.starts, live.sources, inputs)
        except (ConfigurationError, Diverged):
            live.begun.withdraw()
            raise
        if opening.settled:
            live.driver.end(opening, [])
            self._pace(live, frame)
            return

        def learn(outcome: TaskOutcome) -> Mapping[str, str]:
            """Ask Kafka for the ids of topics seen for the first time."""
            if self.source is not None:
                came = {_topic(report.partition) for report in outcome.reports}
                live.sources = self._ask(frame, came - set(live.sources.ids), live.sources)
            return live.sources.ids

        deliver(frame, live.driver, opening, self.spec, live.begun.ledger, learn)
        self._pace(live, frame)

    def _pace(self, live: Live, frame: DataFrame) -> None:
        """Hold the end of the micro-batch until the next marker is due, if the pipeline is paced.

        The minibatch is complete: a crash from here on costs one recount.
        """
        pacing = live.driver.pacing
        if pacing is None:
            return
        query = self.query or self._query_beside(live)
        behind = is_behind(frame, self.spec.limits, _progress_of(query))
        border = self.border
        pacing.hold(
            lambda: _is_active(query) and not (border is not None and border.closed), behind=behind
        )

    def look_first(self, spark: SparkSession) -> None:
        """Check the ledger before Spark starts: the pipeline must fit it and must not be running; a
        standby waits until it is not, and begins its run.

        Parked events that were resolved meanwhile are sent. Raises `ConfigurationError`, and, where
        none of them is in doubt because of it, `StandbyEnded` if this start is asked to end.
        """
        self.ledger = checkpoints.resolve(self.ledger, self.checkpoint)
        checkpoints.refuse_unreachable(self.ledger, spark)
        if not self.standby:
            self._begin_monitor(self.ledger)
        with closing(open_store(self.ledger)) as store:
            client = self._client(store)
            driver = make_driver(client, self.spec, self.nonce, spark, self._observed())
            driver.refuse_changed()
            if self.standby:
                stand_by(client, lambda owner: self._take_turn(spark, owner), self._is_ended)
            else:
                self._watched = refuse_living(client)
            self._follow_reset(client, spark)
            driver.drain(self._is_ended)  # resolved events are sent even if no new input comes
            if self._is_ended():
                raise StandbyEnded
            if self._begun is not None:
                self._begun.between.release()

    def _is_ended(self) -> bool:
        """Whether this start is asked to end before its query runs, by its caller or the ledger."""
        asked = self.ended is not None and self.ended()
        if self._begun is not None:
            asked = self._begun.driver.stopping = asked or self._begun.driver.stopping
        return asked

    def started(self, query: StreamingQuery) -> None:
        """Keep Spark's query, and stop it if the run was asked to stop before there was one."""
        self.query = query
        if self._begun is not None and self._begun.driver.stopping:
            threading.Thread(target=self._stop_query, daemon=True).start()

    def _take_turn(self, spark: SparkSession, owner: OwnerRow | None) -> None:
        """Begin the run of a standby after another one. Its metrics may wait for their port: a
        frozen process still has it.
        """
        ledger = str(self.ledger)
        self._begin_monitor(ledger, waits=True)
        begun = self._prepare(spark, ledger, classic=True)
        begun.between.acquire()  # until the query starts, `look_first` sends parked events
        try:
            begun.register(owner)
        except BaseException:
            begun.driver.client.store.close()
            raise
        self._begun = begun

    def ask_to_stop(self, by: str) -> None:
        """Record in the ledger that the run is to stop, if there is one."""
        if self._live is not None:
            self._live.driver.ask_to_stop(by)
        elif self.border is None:
            with self._owners() as owners:
                owner = owners.owner()
                if owner is not None and owner.nonce == self.nonce:
                    owners.request_stop(by, owner.run)

    def is_recorded(self) -> bool:
        """Whether the end of the run is recorded, and no parked event is being sent."""
        if self.border is not None:
            return self._live is None or not self._live.begun.heartbeat.is_alive()
        with self._owners() as owners:
            owner = owners.owner()
        return owner is None or owner.nonce != self.nonce or owner.ended

    @property
    def fenced(self) -> Fenced | None:
        """The error of a run that was replaced while it had nothing to deliver."""
        return None if self._live is None else self._live.begun.heartbeat.fenced

    @contextmanager
    def _owners(self) -> Iterator[Owners]:
        """Open the ledger at a client of Spark Connect, where the run is not."""
        url = checkpoints.resolve(self.ledger, self.checkpoint)
        with closing(open_store(url, create=False)) as store:
            yield Owners(LedgerClient(store, self.spec.name))

    def _stop_query(self) -> None:
        """Stop the query of this run, on a thread of its own."""
        live, border = self._live, self.border
        query = self.query or (None if live is None else self._query_beside(live))
        if border is None or (query is None and live is None):
            return  # it has no micro-batch yet, so `started` or the first one stops it
        if query is None:
            border.release()  # nothing can stop it but an error
        elif self.query is None and live is not None:
            # Spark kills the process beside a Connect server as soon as the query is stopped.
            end = partial(live.begun.heartbeat.end, None)
            stop_at_border(query, border, threading.Event(), end)
        else:
            stop_at_border(query, border, threading.Event())

    def _query_beside(self, live: Live) -> Any:
        """Return the query of this run, in a process beside a Spark Connect server."""
        try:
            return (self._root or live.begun.spark).streams.get(live.query)
        except Exception:  # noqa: BLE001 - the session is gone, and the query with it
            return None

    def _client(self, store: Store) -> LedgerClient:
        """Return the ledger of this pipeline, and learn how destinations know it."""
        client = LedgerClient(store, self.spec.name)
        self.spec = replace(self.spec, known_as=Owners(client).known_as())
        return replace(client, known_as=self.spec.known_as, hidden=self.spec.hidden)

    def _begin_monitor(self, ledger: str, *, waits: bool = False) -> None:
        """Begin to observe this start for the outside, once. Raises `ConfigurationError`; an
        address that is in use is waited for if it `waits`.
        """
        if self._monitor is None:
            names = [each.name for sink in self.spec.sinks for each in (sink, sink.stage) if each]
            self._monitor = self.monitoring.open(
                self.spec.name, names, ledger, self._active, waits=waits
            )

    @contextmanager
    def ending_if_refused(self) -> Iterator[None]:
        """End what observes this start if it is refused."""
        try:
            yield
        except BaseException:
            if self._monitor is not None:
                self._monitor.close()
            if self._begun is not None:
                self._begun.withdraw()
            raise

    def _observed(self) -> Observer:
        """Return what is notified of this start, besides the log."""
        others = [each for each in (self.observer, self._monitor) if each is not None]
        return Observers([self.figures, *others])

    def _follow_reset(self, client: LedgerClient, spark: SparkSession) -> None:
        """Move the checkpoint aside if the pipeline was reset and has not begun again since."""
        reset = pending_reset(client)
        if reset is None:
            return
        aside = checkpoints.move_aside(spark, self.checkpoint, reset.number)
        log.info(
            "pipeline %r begins again, because %s reset it to %s (%s); %s",
            self.spec.name,
            reset.by,
            reset.to,
            reset.reason,
            "it has no checkpoint yet" if aside is None else f"its checkpoint is now {aside}",
        )

    def _ask(
        self, frame: DataFrame, topics: Collection[str], known: Sources = UNKNOWN_SOURCES
    ) -> Sources:
        """Ask Kafka for the ids of `topics` and add them to `known`."""
        if not topics:
            return known
        found = kafka_topics.ask(frame, self.source, topics)
        if found.why and self.source is not None and found.why != known.why:
            log.warning(
                "pipeline %r: semel cannot detect a deleted and recreated topic, because %s",
                self.spec.name,
                found.why,
            )
        return Sources({**known.ids, **found.ids}, found.why)

    def _prepare(self, spark: SparkSession, ledger: str, *, classic: bool) -> Begun:
        """Return a run that is not registered yet."""
        client = self._client(open_store(ledger))
        driver = make_driver(client, self.spec, self.nonce, spark, self._observed())
        if self._monitor is not None:
            self._monitor.knows(driver)
        if self.spec.application is not None:
            driver.pacing = Pacing(client, self.spec.application, driver.observer, self.trigger_s)
        between = threading.Lock()
        progress = self._progress(spark, driver, classic=classic)
        heartbeat = Heartbeat(driver, self._active, between, progress, self._stop_query)
        return Begun(driver, ledger, between, heartbeat, spark)

    def _begin_run(self, frame: DataFrame, batch: int) -> Live:
        """Register this start, if no other run has the name and it is not registered yet."""
        spark = frame.sparkSession
        begun = self._begun
        if begun is None:
            ledger = checkpoints.resolve(self.ledger, self.checkpoint)
            checkpoints.refuse_unreachable(ledger, spark)
            self._begin_monitor(ledger)
            begun = self._prepare(spark, ledger, classic=is_classic(frame))
            begin_unless_running(begun.driver.client, self._watched, begun.register)
        client = begun.driver.client
        try:
            starts = None
            if self.spec.identity.uses_source_partitions or pending_reset(client) is not None:
                starts = checkpoints.starts(spark, self.checkpoint, batch)
            known = self._ask(frame, {_topic(name) for name in starts or ()})
            query = checkpoints.query_id(spark, self.checkpoint)
        except BaseException:
            begun.withdraw()
            raise
        return Live(begun, begun.driver, query, starts, known)

    def _progress(
        self, spark: SparkSession, driver: Driver, *, classic: bool
    ) -> ProgressReader | None:
        """Return what reads the progress of the query, in a classic session."""
        if not classic:
            driver.recorder.unknown = BESIDE_CONNECT
            return None
        changelogs = writes_changelogs(spark)
        return ProgressReader(self.spec.name, lambda: self.query, changelogs=changelogs)

    def _active(self) -> bool:
        """Whether the query still runs, as far as this process can see."""
        return _is_active(self.query)


def _is_active(query: Any) -> bool:
    """Whether a query still runs; True if it is not known here."""
    if query is None:
        return True
    try:
        return bool(query.isActive)
    except Exception:  # noqa: BLE001 - the session is gone, and the query with it
        return False


def _progress_of(query: Any) -> Mapping[str, Any]:
    """Return the progress of the last micro-batch that ended; empty if it is not known."""
    try:
        found = None if query is None else query.lastProgress
        return {} if found is None else found if isinstance(found, dict) else json.loads(found.json)
    except Exception:  # noqa: BLE001 - as above
        return {}


def no_ids(_: TaskOutcome) -> Mapping[str, str]:
    """Return no ids, for a source without topics."""
    return {}


def deliver(
    frame: DataFrame,
    driver: Driver,
    opening: OpenMinibatch,
    spec: PipelineSpec,
    ledger: str,
    learn: Callable[[TaskOutcome], Mapping[str, str]] = no_ids,
) -> TaskOutcome:
    """Run the tasks of an open minibatch and complete it, with the ids of its topics.

    A superfluous attempt may take a partition over from the attempt whose report Spark kept, and a
    replaced attempt fails its task, of which Spark allows only a few. While this run holds the
    minibatch, both are its own attempts: the action runs again, and delivered events are not sent
    again.
    """
    for left in reversed(range(TRIES)):
        task = Task(spec, ledger, driver.nonce, opening, driver.waited)
        try:
            outcome = run_tasks(frame, task)
            ids, skipped, repeats = learn(outcome), outcome.skipped, outcome.repeats
            driver.end(opening, outcome.reports, ids, skipped, repeats)
        except Fenced:
            if not left or not driver.holds(opening):
                raise
        else:
            return outcome
    raise AssertionError("the last try returns or raises")


def run_tasks(frame: DataFrame, task: Task) -> TaskOutcome:
    """Run one action over one pass of the DataFrame; its token marks the errors of its tasks."""
    token = uuid4().hex
    partitions = task.opening.row.partitions
    spec = task.spec
    spread = arranged(frame, spec.identity, partitions, spec.partition_by, token)
    ready, names = plainly_named(spread)
    try:
        rows = ready.mapInArrow(replace(task, names=names, token=token).run, SCHEMA).collect()
    except Exception as error:
        made = raised(error, token)
        if made is error:
            raise
        raise made from None
    return TaskOutcome.of(TaskOutcome.load(bytes(row[0])) for row in rows)


def _topic(partition: str) -> str:
    """Return the topic of a source partition such as `topic/3`."""
    return partition.rpartition("/")[0]
