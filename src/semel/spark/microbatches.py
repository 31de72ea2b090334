"""The driver's part: what `foreachBatch` calls, once for each micro-batch.

The steps of a micro-batch: 1. the first time, register the run; 2. open the minibatch; 3. one
action over one pass of the frame delivers it; 4. complete it from the reports Spark handed over.

Always true:
- the frame is computed once: no count, no cache, no second action while nothing fails;
- it is pickled without anything that lives: under Spark Connect it wakes up beside the server.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel import errors
from semel.delivery import Driver
from semel.errors import ConfigurationError, Fenced, SemelError
from semel.events import Position
from semel.ledger.owners import Owners
from semel.ledger.processes import Process
from semel.ledger.scribe import Scribe
from semel.ledger.sources import UNKNOWN, Sources
from semel.ledger.stores import open_store
from semel.spark import checkpoints, ledgers, sources
from semel.spark.frames import arranged, plainly_named
from semel.spark.heartbeat import Heartbeat
from semel.spark.refusals import refuse_optimized
from semel.spark.task import SCHEMA, Outcome, Task

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from semel.delivery import Agreement
    from semel.ledger.minibatches import Opening
    from semel.ledger.owners import OwnerRow
    from semel.spark.sources import KafkaSource

OWNER_LEASE_S = 10.0
TRIES = 10
PARTITIONS = 8

log = logging.getLogger("semel")

_RAISED = re.compile(r"semel\.errors\.(\w+): (.*)")


@dataclass
class Live:
    """What a run keeps in the process it runs in."""

    driver: Driver
    ledger: str
    query: str
    starts: Mapping[str, int] | None
    sources: Sources
    between: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class MicroBatches:
    """Delivers the micro-batches of one `start()`. Runs on the driver, or beside a Connect server.

    Attributes:
        nonce: tells this start from every other.
        source: the Kafka that is read, where that is known.
        query: Spark's query, where it lives in this process; the heartbeat ends with it.
    """

    agreement: Agreement
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
        """Deliver one micro-batch. Raises what stops the query."""
        if self._live is None:
            refuse_optimized()
            self._live = self._begin_run(frame, batch)
        live = self._live
        with live.between:
            opening = live.driver.begin(live.query, batch, live.starts, live.sources)
        if opening.new_generation:
            self._tell_generation(opening)
        if opening.settled:
            log.warning("%s: taken as recorded, as a person said", self._place(opening))
            live.driver.end(opening, [])
            return
        outcome = deliver(frame, live.driver, opening, self.agreement, live.ledger)
        self._tell(opening, outcome)
        if self.source is not None:
            came = {_topic(report.partition) for report in outcome.reports}
            live.sources = self._ask(frame, came - set(live.sources.ids), live.sources)

    def look_first(self, spark: SparkSession) -> None:
        """Look at the ledger before Spark starts anything: is the name used, or somebody at it?

        Raises `ConfigurationError`. What a person released meanwhile is sent.
        """
        self.ledger = ledgers.resolve(self.ledger, self.checkpoint)
        ledgers.refuse_unreachable(self.ledger, spark)
        with closing(open_store(self.ledger)) as store:
            scribe = Scribe(store, self.agreement.name)
            driver = make_driver(scribe, self.agreement, self.nonce, spark)
            driver.refuse_changed()
            self._watched = refuse_living(scribe)
            driver.drain()  # what a person released goes also where no new input comes

    def _ask(self, frame: DataFrame, topics: Collection[str], known: Sources = UNKNOWN) -> Sources:
        """Ask for the ids of topics that are not known yet."""
        if not topics:
            return known
        told = sources.ask(frame, self.source, topics)
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
        ledger = ledgers.resolve(self.ledger, self.checkpoint)
        ledgers.refuse_unreachable(ledger, spark)
        scribe = Scribe(open_store(ledger), self.agreement.name)
        refuse_living(scribe, self._watched)
        driver = make_driver(scribe, self.agreement, self.nonce, spark)
        driver.start()
        starts = None
        if isinstance(self.agreement.identity, Position):
            starts = checkpoints.starts(spark, self.checkpoint, batch)
        known = self._ask(frame, {_topic(name) for name in starts or ()})
        query = checkpoints.query_id(spark, self.checkpoint)
        live = Live(driver, ledger, query, starts, known)
        Heartbeat(driver, self._active, live.between).start()
        return live

    def _active(self) -> bool:
        """Whether the query still runs, as far as this process can see."""
        if self.query is None:
            return True
        try:
            return bool(self.query.isActive)
        except Exception:  # noqa: BLE001 - the session is gone, and the query with it
            return False

    def _place(self, opening: Opening) -> str:
        return f"pipeline {self.agreement.name!r}, minibatch {opening.row.minibatch}"

    def _tell_generation(self, opening: Opening) -> None:
        why = "the checkpoint was lost or replaced"
        if opening.row.continues:
            why = "a person has judged the minibatch before"
        log.warning(
            "%s: %s; generation %d goes on from what the ledger remembers, and says what it skips",
            self._place(opening),
            why,
            opening.row.minibatch.generation,
        )

    def _tell(self, opening: Opening, outcome: Outcome) -> None:
        """Say what was not sent because it had been, and what waits for a person."""
        told: Counter[str] = Counter(skipped=outcome.skipped)
        for report in outcome.reports:
            told["skipped"] += report.skipped
            told["suppressed"] += report.suppressed
            told["doubted"] += report.doubted
            told["others"] += max(report.parked - report.doubted, 0)
        judged = opening.row.continues
        before = "before a person judged" if judged else "before the checkpoint was lost"
        texts = {
            "skipped": f"not sent, because handled (delivered or parked) {before}",
            "suppressed": "not sent again, because delivered by an attempt before",
            "doubted": "parked in doubt (`semel parked ls` shows them)",
            "others": "parked for another reason, or behind one that is (`semel parked ls`)",
        }
        for what, text in texts.items():
            if told[what]:
                log.warning("%s: events %s: %d", self._place(opening), text, told[what])


def deliver(
    frame: DataFrame, driver: Driver, opening: Opening, agreement: Agreement, ledger: str
) -> Outcome:
    """Run the tasks of an open minibatch and complete it.

    An attempt that Spark started for nothing may take a partition from the one whose report Spark
    kept; and one that was replaced fails its task, of which Spark counts only so many. While the
    minibatch is ours, so is whoever took the partition: it is run again, and what was delivered is
    not.
    """
    for left in reversed(range(TRIES)):
        task = Task(agreement, ledger, driver.nonce, opening, driver.waited)
        try:
            outcome = run_tasks(frame, task)
            driver.end(opening, outcome.reports)
        except Fenced:
            if not left or not driver.holds(opening):
                raise
        else:
            return outcome
    raise AssertionError("the last try returns or raises")


def run_tasks(frame: DataFrame, task: Task) -> Outcome:
    """One action over one pass of the frame."""
    partitions = task.opening.row.partitions
    ready, names = plainly_named(arranged(frame, task.agreement.identity, partitions))
    try:
        rows = ready.mapInArrow(replace(task, names=names).run, SCHEMA).collect()
    except Exception as error:  # noqa: BLE001 - it is raised again, in fewer words
        raise _plain(error) from None
    return Outcome.of(Outcome.load(bytes(row[0])) for row in rows)


class Stopped(Exception):
    """The query was stopped while its tasks ran; Spark knows the end it asked for by these words.

    Spark looks for them in the whole text of an error, and fails on a long one.
    """

    def __init__(self, why: str) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling collect: "
            f"java.lang.InterruptedException ({why[:200]})"
        )


def _plain(error: Exception) -> Exception:
    """Give the error of semel that a task failed with; anything else as Spark told it."""
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        if "Interrupt" in cause.getClass().getName():
            return Stopped(str(cause))
        cause = cause.getCause()
    found = _RAISED.findall(str(error))
    if not found:
        return error
    kind = getattr(errors, found[-1][0], SemelError)
    told: Exception = kind(found[-1][1])
    return told


def make_driver(scribe: Scribe, agreement: Agreement, nonce: str, spark: SparkSession) -> Driver:
    """Make the driver's part for an agreement."""
    positions = isinstance(agreement.identity, Position)
    if positions and agreement.partitions is not None:
        raise ConfigurationError(
            f"pipeline {agreement.name!r}: partitions={agreement.partitions} with position "
            "identity, where the source's own partitions are delivered; leave it away"
        )
    return Driver(
        scribe,
        agreement.sinks,
        agreement.identity,
        Process.here(),
        nonce,
        partitions=agreement.partitions,
        default_partitions=None if positions else _parallelism(spark),
        accept_gap=agreement.accept_gap,
        remember_s=agreement.remember_s,
        forms=agreement.forms,
    )


def _topic(partition: str) -> str:
    """The topic of a source partition: `topic/3`."""
    return partition.rpartition("/")[0]


def refuse_living(scribe: Scribe, known: OwnerRow | None = None) -> OwnerRow | None:
    """Refuse a name whose beat moves: somebody else runs it. Give the owner that does not.

    One that was watched before, and has not moved since, need not be watched again.
    """
    owners = Owners(scribe)
    standing = owners.owner()
    if standing is not None and standing == known:
        return standing
    me = Process.here()
    # One that was stopped just now may beat once more; one that lives beats again.
    if owners.alive(me, OWNER_LEASE_S) and owners.alive(me, OWNER_LEASE_S):
        owner = owners.owner()
        where = "" if owner is None else f" by process {owner.process.pid} on {owner.process.host}"
        raise ConfigurationError(
            f"pipeline {scribe.pipeline!r} is being run{where}: its heartbeat moves. Stop that "
            "query first, or give this one another name"
        )
    return owners.owner()


def _parallelism(spark: SparkSession) -> int:
    """How many partitions a pipeline begins with when nobody says: as many tasks as run at once."""
    said = spark.conf.get("spark.default.parallelism", "") or ""
    if said.isdecimal():
        return int(said)
    context = getattr(spark, "_sc", None)
    return PARTITIONS if context is None else int(context.defaultParallelism)
