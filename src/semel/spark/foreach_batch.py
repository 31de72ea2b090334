"""The driver's part: what `foreachBatch` calls, once for each micro-batch.

The steps of a micro-batch: 1. the first time, register the run; 2. open the minibatch; 3. one
action over one pass of the frame delivers it; 4. complete it from the reports Spark handed over.

Always true:
- the frame is computed once: no count, no cache, no second action while nothing fails;
- it is pickled without anything that lives: under Spark Connect it wakes up beside the server.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.delivery import Driver
from semel.errors import ConfigurationError, Diverged, Fenced, SemelError
from semel.events import Position
from semel.ledger import (
    UNKNOWN_SOURCES,
    LedgerClient,
    Owners,
    Sources,
    open_store,
    starting_pipeline,
)
from semel.runtime import Process
from semel.spark import checkpoints, kafka_topics
from semel.spark.checks import refuse_optimized
from semel.spark.failures import Stopped, for_spark, raised, tell
from semel.spark.heartbeat import Heartbeat
from semel.spark.repartition import arranged, plainly_named
from semel.spark.task import SCHEMA, Outcome, Task
from semel.spark.versions import installed, refuse_old

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from semel.delivery import PipelineSpec
    from semel.ledger import OpenMinibatch, OwnerRow
    from semel.spark.kafka_topics import KafkaSource

OWNER_LEASE_S = 10.0
TRIES = 10
PARTITIONS = 8

log = logging.getLogger("semel")


@dataclass
class Live:
    """What a run keeps in the process it runs in."""

    driver: Driver
    ledger: str
    query: str
    starts: Mapping[str, int] | None
    sources: Sources
    between: threading.Lock
    heartbeat: Heartbeat


@dataclass
class MicroBatches:
    """Delivers the micro-batches of one `start()`. Runs on the driver, or beside a Connect server.

    Attributes:
        nonce: tells this start from every other.
        source: the Kafka that is read, where that is known.
        query: Spark's query, where it lives in this process; the heartbeat ends with it.
    """

    agreement: PipelineSpec
    ledger: str | None
    checkpoint: str
    nonce: str
    source: KafkaSource | None = None
    query: Any = None
    _live: Live | None = field(default=None, init=False, repr=False)
    _watched: OwnerRow | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "query": None, "_live": None}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Deliver one micro-batch. Raises what stops the query, in few words."""
        try:
            self._deliver(frame, batch)
        except Exception as error:
            made = for_spark(error)
            if made is not error and not isinstance(made, Stopped):
                log.exception("pipeline %r: the query stops", self.agreement.name)
            raise made from None

    def _deliver(self, frame: DataFrame, batch: int) -> None:
        if self._live is None:
            refuse_optimized()
            refuse_old(installed(), "PySpark where the driver's part runs", self.agreement.name)
            self._live = self._begin_run(frame, batch)
        live = self._live
        inputs = checkpoints.inputs(self.checkpoint, batch)
        try:
            with live.between:
                opening = live.driver.begin(live.query, batch, live.starts, live.sources, inputs)
        except (ConfigurationError, Diverged):
            withdraw(live.driver, live.heartbeat)
            raise
        if opening.new_generation:
            self._tell_generation(opening)
        if opening.settled:
            log.warning("%s: taken as recorded, as a person said", self._place(opening))
            live.driver.end(opening, [])
            return

        def learn(outcome: Outcome) -> Mapping[str, str]:
            """Ask for the ids of topics that came for the first time."""
            if self.source is not None:
                came = {_topic(report.partition) for report in outcome.reports}
                live.sources = self._ask(frame, came - set(live.sources.ids), live.sources)
            return live.sources.ids

        outcome = deliver(frame, live.driver, opening, self.agreement, live.ledger, learn)
        tell(self._place(opening), outcome, judged=opening.row.continues)

    def look_first(self, spark: SparkSession) -> None:
        """Look at the ledger before Spark starts anything: is the name used, or somebody at it?

        Raises `ConfigurationError`. What a person released meanwhile is sent.
        """
        self.ledger = checkpoints.resolve(self.ledger, self.checkpoint)
        checkpoints.refuse_unreachable(self.ledger, spark)
        with closing(open_store(self.ledger)) as store:
            client = LedgerClient(store, self.agreement.name)
            driver = make_driver(client, self.agreement, self.nonce, spark)
            driver.refuse_changed()
            self._watched = refuse_living(client)
            driver.drain()  # what a person released goes also where no new input comes

    def _ask(
        self, frame: DataFrame, topics: Collection[str], known: Sources = UNKNOWN_SOURCES
    ) -> Sources:
        """Ask for the ids of topics that are not known yet."""
        if not topics:
            return known
        told = kafka_topics.ask(frame, self.source, topics)
        if told.why and self.source is not None and told.why != known.why:
            log.warning(
                "pipeline %r: if a topic is deleted and made anew nobody will notice, because %s",
                self.agreement.name,
                told.why,
            )
        return Sources({**known.ids, **told.ids}, told.why)

    def _begin_run(self, frame: DataFrame, batch: int) -> Live:
        """Register this start, once nobody else has the name."""
        spark = frame.sparkSession
        ledger = checkpoints.resolve(self.ledger, self.checkpoint)
        checkpoints.refuse_unreachable(ledger, spark)
        client = LedgerClient(open_store(ledger), self.agreement.name)
        driver = make_driver(client, self.agreement, self.nonce, spark)
        between = threading.Lock()
        heartbeat = Heartbeat(driver, self._active, between)
        with starting_pipeline(ledger, self.agreement.name):
            refuse_living(client, self._watched)
            driver.start()
            heartbeat.start()
        try:
            starts = None
            if isinstance(self.agreement.identity, Position):
                starts = checkpoints.starts(spark, self.checkpoint, batch)
            known = self._ask(frame, {_topic(name) for name in starts or ()})
            query = checkpoints.query_id(spark, self.checkpoint)
        except BaseException:
            withdraw(driver, heartbeat)
            raise
        return Live(driver, ledger, query, starts, known, between, heartbeat)

    def _active(self) -> bool:
        """Whether the query still runs, as far as this process can see."""
        if self.query is None:
            return True
        try:
            return bool(self.query.isActive)
        except Exception:  # noqa: BLE001 - the session is gone, and the query with it
            return False

    def _place(self, opening: OpenMinibatch) -> str:
        return f"pipeline {self.agreement.name!r}, minibatch {opening.row.minibatch}"

    def _tell_generation(self, opening: OpenMinibatch) -> None:
        why = "the checkpoint was lost or replaced"
        if opening.row.continues:
            why = "a person has judged the minibatch before"
        log.warning(
            "%s: %s; generation %d goes on from what the ledger remembers, and says what it skips",
            self._place(opening),
            why,
            opening.row.minibatch.generation,
        )


def no_ids(_: Outcome) -> Mapping[str, str]:
    """A source whose topics have no ids."""
    return {}


def deliver(
    frame: DataFrame,
    driver: Driver,
    opening: OpenMinibatch,
    agreement: PipelineSpec,
    ledger: str,
    learn: Callable[[Outcome], Mapping[str, str]] = no_ids,
) -> Outcome:
    """Run the tasks of an open minibatch and complete it, with the ids of its topics.

    An attempt that Spark started for nothing may take a partition from the one whose report Spark
    kept; and one that was replaced fails its task, of which Spark counts only so many. While the
    minibatch is ours, so is whoever took the partition: it is run again, and what was delivered is
    not.
    """
    for left in reversed(range(TRIES)):
        task = Task(agreement, ledger, driver.nonce, opening, driver.waited)
        try:
            outcome = run_tasks(frame, task)
            driver.end(opening, outcome.reports, learn(outcome))
        except Fenced:
            if not left or not driver.holds(opening):
                raise
        else:
            return outcome
    raise AssertionError("the last try returns or raises")


def run_tasks(frame: DataFrame, task: Task) -> Outcome:
    """One action over one pass of the frame; its own token tells what its tasks failed with."""
    token = uuid4().hex
    partitions = task.opening.row.partitions
    ready, names = plainly_named(_arranged(frame, task.agreement, partitions, token))
    try:
        rows = ready.mapInArrow(replace(task, names=names, token=token).run, SCHEMA).collect()
    except Exception as error:
        made = raised(error, token)
        if made is error:
            raise
        raise made from None
    return Outcome.of(Outcome.load(bytes(row[0])) for row in rows)


def _arranged(
    frame: DataFrame, agreement: PipelineSpec, partitions: int | None, token: str
) -> DataFrame:
    return arranged(frame, agreement.identity, partitions, agreement.partition_by, token)


def make_driver(
    client: LedgerClient, agreement: PipelineSpec, nonce: str, spark: SparkSession
) -> Driver:
    """Make the driver's part for an agreement."""
    positions = isinstance(agreement.identity, Position)
    if positions and agreement.partition_by is not None:
        raise ConfigurationError(
            f"pipeline {agreement.name!r}: partition_by= with position identity, where the "
            "source's own partitions are delivered; remove it, or name entity= and event="
        )
    if positions and agreement.partitions is not None:
        raise ConfigurationError(
            f"pipeline {agreement.name!r}: partitions={agreement.partitions} with position "
            "identity, where the source's own partitions are delivered; leave it away"
        )
    return Driver(
        client,
        agreement.sinks,
        agreement.identity,
        Process.here(),
        nonce,
        partitions=agreement.partitions,
        default_partitions=None if positions else _parallelism(spark),
        accept_gap=agreement.accept_gap,
        remember_s=agreement.remember_s,
        forms=agreement.forms,
        routing=None if agreement.partition_by is None else agreement.partition_by.describe(),
    )


def _topic(partition: str) -> str:
    """The topic of a source partition: `topic/3`."""
    return partition.rpartition("/")[0]


def withdraw(driver: Driver, heartbeat: Heartbeat) -> None:
    """Leave nothing of a run that was refused before it opened anything, and end its heartbeat. The
    refusal is what is told, also where the ledger is away.
    """
    heartbeat.stop()
    heartbeat.join()
    with suppress(SemelError):
        driver.withdraw()


def refuse_living(client: LedgerClient, known: OwnerRow | None = None) -> OwnerRow | None:
    """Refuse a name whose beat moves: somebody else runs it. Give the owner that does not.

    One that was watched before, and has not moved since, need not be watched again.
    """
    owners = Owners(client)
    standing = owners.owner()
    if standing is not None and standing == known:
        return standing
    me = Process.here()
    # One that was stopped just now may beat once more; one that lives beats again.
    if owners.alive(me, OWNER_LEASE_S) and owners.alive(me, OWNER_LEASE_S):
        owner = owners.owner()
        where = ""
        if owner is not None:
            here = "this process" if owner.process == me else f"process {owner.process.pid}"
            where = f" (run {owner.run}, by {here} on {owner.process.host})"
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} is running{where}. Stop that query first, or give this "
            "one another name"
        )
    return owners.owner()


def _parallelism(spark: SparkSession) -> int:
    """How many partitions a pipeline begins with when nobody says: as many tasks as run at once."""
    said = spark.conf.get("spark.default.parallelism", "") or ""
    if said.isdecimal():
        return int(said)
    context = getattr(spark, "_sc", None)
    return PARTITIONS if context is None else int(context.defaultParallelism)
