"""The driver's part of a pipeline, without Spark: it opens, completes, concludes and drains.

Always true:
- a minibatch is concluded (the sinks' end-of-minibatch step) once the ledger has it complete;
- Spark commits a micro-batch, and the ledger deletes its rows, only after it was concluded;
- a conclusion that fails stops the query; the next run makes it, from the same rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from semel.delivery.audit import Auditing
from semel.delivery.observer import (
    Figures,
    HeartbeatWritten,
    LogObserver,
    MinibatchCompleted,
    MinibatchOpened,
    Observers,
    PartitionFigures,
    RunRecorder,
)
from semel.delivery.parking.parking import stop_if_held
from semel.delivery.parking.resend import Resending
from semel.delivery.recovery.close_generation import Closing
from semel.delivery.second_stage import Stages
from semel.errors import NotDelivered, OutcomeUnknown, SemelError
from semel.events import Minibatch
from semel.ledger import (
    NO_TOPIC_IDS,
    REMEMBER_S,
    ROUTING,
    STAGE_OF,
    STREAMS_TABLE,
    UNKNOWN_SOURCES,
    CommitFigures,
    Journal,
    Minibatches,
    OpenMinibatch,
    OpenRequest,
    OpenRow,
    Owners,
    PartitionRow,
    Pruning,
    SnapshotFigures,
    Sources,
    compare_batch,
    finish_batch,
    finished_batch,
    is_unswept,
    key_number,
    make_prefix,
    read_parked,
    split_key,
    take_leftovers,
)
from semel.protocol import ParkedState, PartitionState
from semel.runtime import Runtime
from semel.sinks import Ended, EndedPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from semel.delivery.observer import Observer
    from semel.delivery.pacing import Pacing
    from semel.events import Identity
    from semel.ledger import Entity, Finished, LedgerClient, OwnerRow, Report
    from semel.runtime import Process
    from semel.sinks import AuditLog, Sink

NO_REPEATS: Mapping[str, int] = MappingProxyType({})
PRUNE_EVERY = 100
"""How many minibatches pass between two looks for rows that have grown too old."""


@dataclass
class Driver:
    """Runs the minibatches of one `start()` of a pipeline.

    The steps of a minibatch: 1. drain the parked events that are free to go; 2. open it, which
    fences the previous run; 3. the first time, close what an older generation left; 4. the tasks
    deliver; 5. complete it; 6. conclude it.

    Attributes:
        partitions: the number of partitions over which entities are spread; None takes the recorded
            number.
        default_partitions: the same for a pipeline that never ran, if no number is requested.
        accept_gap: proceed even if the input does not continue where the ledger stands.
        remember_s: how long ids, and the outcomes of parked events, are kept.
        drop_repeats: whether events with remembered ids are dropped; the same ids have to be
            remembered when a minibatch is replayed.
        routing: the description of how entities are spread over partitions; None is by their hash.
        forms: the type of each id column: integer, text, date, ...
        observer: is notified of what the driver does, and gets the figures of the tasks.
        pacing: decides when the next minibatch begins; None leaves it to Spark.
        recorder: keeps the figures that the heartbeat writes.
        audit: where the outcome of every event is kept for longer than the ledger does.
        stopping: whether the run is asked to stop: no further parked event is sent.
    """

    client: LedgerClient
    sinks: Sequence[Sink]
    identity: Identity
    process: Process
    nonce: str
    runtime: Runtime = field(default_factory=Runtime)
    partitions: int | None = None
    run: int = 0
    waited: bool = False
    default_partitions: int | None = None
    accept_gap: bool = False
    remember_s: float = REMEMBER_S
    forms: Mapping[str, str] = field(default_factory=dict)
    routing: dict[str, Any] | None = None
    observer: Observer = field(default_factory=LogObserver)
    pacing: Pacing | None = None
    drop_repeats: bool = False
    audit: AuditLog | None = None
    stopping: bool = False
    _closed: int = 0
    _opened_at: float | None = None
    _owners: Owners = field(init=False)
    _minibatches: Minibatches = field(init=False)
    _journal: Journal = field(init=False)
    _stage_of: Mapping[str, Sink] = field(init=False)
    _destinations: Sequence[Sink] = field(init=False)
    _concluding: Sequence[Sink] = field(init=False)
    _auditing: Auditing | None = field(default=None, init=False)
    _held: dict[str, dict[Entity, str]] = field(default_factory=dict, init=False)
    recorder: RunRecorder = field(init=False)

    def __post_init__(self) -> None:
        self.recorder = RunRecorder(self.runtime.clock)
        self.observer = Observers((self.observer, self.recorder))
        self._stage_of = {
            sink.name: stage for sink in self.sinks if (stage := sink.stage) is not None
        }
        self._destinations = [*self.sinks, *self._stage_of.values()]
        self._concluding = [sink for sink in self.sinks if sink.concludes]

    def start(self, after: OwnerRow | Literal["any"] | None = "any") -> int:
        """Register the run, with `after` only if that one still has the pipeline; it fences no
        other run before its first minibatch.
        """
        self._journal = Journal(self.client)
        self._take_partitions()
        self._owners = Owners(self.client)
        self.run = self._owners.register(self.describe(), self.process, self.nonce, after)
        self._minibatches = Minibatches(self.client, self.run)
        if self.audit is not None:
            self._auditing = Auditing(self.client, self.audit, self.run)
        return self.run

    def withdraw(self) -> None:
        """Undo what `start` wrote, if the run was refused before its first minibatch was opened:
        then neither the pipeline nor its sinks are listed.
        """
        self._owners.withdraw(self.nonce)

    def refuse_changed(self) -> None:
        """Raise `ConfigurationError` if `start` would, because the name was used for something
        else.
        """
        self._take_partitions()
        Owners(self.client).refuse_changed(self.describe())

    def _take_partitions(self) -> None:
        """If no number of partitions is requested, take the recorded one, else the default."""
        if self.partitions is None and not self.identity.uses_source_partitions:
            recorded = Owners(self.client).described()
            known = self.default_partitions if recorded is None else recorded.get("partitions")
            self.partitions = known

    def describe(self) -> dict[str, Any]:
        """Return what must not change under the pipeline's name."""
        described = {
            "identity": self.identity.describe(),
            "partitions": self.partitions,
            "sinks": {
                **{sink.name: sink.describe() for sink in self.sinks},
                **{
                    stage.name: {**stage.describe(), STAGE_OF: name}
                    for name, stage in self._stage_of.items()
                },
            },
        }
        if self.routing is not None:
            described[ROUTING] = self.routing
        return {**described, "forms": dict(self.forms)} if self.forms else described

    def begin(
        self,
        query: str,
        batch: int,
        starts: Mapping[str, int] | None = None,
        sources: Sources = UNKNOWN_SOURCES,
        inputs: tuple[str, ...] = (),
    ) -> OpenMinibatch:
        """Open a minibatch; `starts` is where Spark begins in each source partition, if known,
        `sources` the topics that they belong to, `inputs` the position of each input after it.

        If the result is `settled`, run no task: `end` takes no reports. Raises `Fenced`,
        `StopRequested`, `Diverged`, `ConfigurationError`.
        """
        began = self.runtime.clock.monotonic()
        # 1. Send the parked events that are free to go. A driver that crashes here leaves the event
        #    that it was sending claimed, and the next drain asks for its outcome.
        self.drain()
        request = OpenRequest(
            query,
            batch,
            tuple(sink.name for sink in self.sinks),
            self.partitions,
            self.identity.survives_lost_checkpoint,
            starts,
            self.accept_gap,
            sources,
            inputs,
            {name: stage.name for name, stage in self._stage_of.items()},
        )
        # 2. Open in one commit. From now on the tasks of an earlier run can record and settle
        #    nothing, so what a crashed driver left does not change while the next steps read it.
        opening = self._minibatches.open(request)
        generation, lost_before = opening.row.minibatch.generation, opening.lost_before
        if generation != self._closed:
            if judged := opening.new_generation and opening.row.continues:
                self._held.clear()  # events of its may have been discarded, with heads as they were
                self.drain()
            # 3. Conclude what is complete before its rows are deleted by the next step: a driver
            #    that crashed between complete and conclude did not do it.
            self._conclude_before(opening.row.minibatch)
            if self._auditing is not None:
                self._auditing.show_left()
            # 4. Close what older generations left, before any task runs: a crashed attempt of
            #    theirs may have sent events that would come again. Open again to read the new
            #    standings.
            if self._close(opening) or judged:
                opening = self._minibatches.open(request)
            for sink in self._destinations:
                place = f"pipeline {self.client.pipeline!r}, sink {sink.name!r}"
                stop_if_held(self.client, sink, place)
            self._record_resolved(opening)
            # 5. Remember it last, and in memory only: the run after a crash does all of this again.
            self._closed = generation
        # 6. Delete old rows. A crash before it only leaves them for a later minibatch.
        lost = lost_before is not None
        replayed = self.drop_repeats and opening.first_of_run
        if lost or (opening.row.serial % PRUNE_EVERY == 0 and not replayed):
            self._prune(opening, lost_before or 0)
        self._opened(opening, began)
        return opening

    def _opened(self, opening: OpenMinibatch, began: float) -> None:
        self._opened_at = began
        self.observer.observe(
            MinibatchOpened(
                self.client.pipeline,
                opening.row.minibatch,
                self.run,
                opening.new_generation,
                opening.row.continues,
                opening.row.settled,
                self.runtime.clock.monotonic() - began,
            )
        )

    def _prune(self, opening: OpenMinibatch, before: int) -> None:
        self._record_resolved(opening)
        audited = self._auditing is not None
        names = [sink.name for sink in self.sinks]
        Pruning(self.client, self.remember_s, audited).run(names, before)
        if self._stage_of:  # their events have no rows in the audit log
            stages = [stage.name for stage in self._stage_of.values()]
            Pruning(self.client, self.remember_s).run(stages, before)

    def _record_resolved(self, opening: OpenMinibatch) -> None:
        """Write the audit log's rows of parked events that were resolved."""
        if self._auditing is not None:
            self._auditing.record_resolved([sink.name for sink in self.sinks], opening)

    def finished(self) -> Mapping[str, Finished] | None:
        """Return what this batch job delivered, by sink; None while it is not finished."""
        return finished_batch(self.client)

    def finish(self, opening: OpenMinibatch) -> Mapping[str, Finished]:
        """Write the permanent row of a batch job whose only minibatch is complete."""
        return finish_batch(self.client, opening)

    def recount(self) -> OpenMinibatch:
        """Return what tasks need to count a finished batch job again; nothing is opened."""
        row = OpenRow(self.run, Minibatch(1, 0), 1, "", self.partitions)
        return OpenMinibatch(row, row.dump(), counts=True)

    def compare(self, reports: Sequence[Report]) -> None:
        """Compare what was counted with what was delivered. Raises `Diverged`."""
        compare_batch(self.client, reports, [sink.name for sink in self.sinks])

    def drain(self, ends: Callable[[], bool] = lambda: False, *, waits: bool = False) -> int:
        """Send the parked events that are free to go, with `waits` also those that soon are, until
        `ends()`; return how many.
        """
        return sum(
            Resending(
                self.client,
                sink,
                self.process,
                self.runtime,
                waits=waits,
                observer=self.observer,
                ends=lambda: self.stopping or ends(),
                held=self._held.setdefault(sink.name, {}),
            ).drain()
            for sink in self._destinations
        )

    def parked(self) -> dict[str, int]:
        """Return how many events wait for a person or for their turn, by sink."""
        return {
            sink.name: sum(not row.state.final for _, row, _ in read_parked(self.client, sink.name))
            for sink in self._destinations
        }

    def undelivered(self) -> dict[str, Counter[ParkedState]]:
        """Count events that were parked or dropped and not delivered since, by sink and state."""
        return {
            sink.name: Counter(
                row.state
                for _, row, _ in read_parked(self.client, sink.name)
                if not row.state.only_marks and row.state is not ParkedState.DELIVERED
            )
            for sink in self._destinations
        }

    def end(
        self,
        opening: OpenMinibatch,
        reports: Sequence[Report],
        ids: Mapping[str, str] = NO_TOPIC_IDS,
        skipped: int = 0,
        repeats: Mapping[str, int] = NO_REPEATS,
    ) -> None:
        """Complete the minibatch from the tasks' reports that Spark returned, then conclude it at
        the sinks; `ids` are those of topics that were first read in it, `skipped` counts the events
        of partitions without a report, `repeats` those among them that were dropped, by sink.
        """
        # 1. Complete in one commit. A crash before it leaves the minibatch open, and a restart
        #    replays it.
        marker = [] if self.pacing is None else self.pacing.plan(opening, reports)
        names = [sink.name for sink in self.sinks]
        self._minibatches.complete(opening, reports, names, ids, marker)
        # 2. Conclude only then, and before Spark commits: after a crash in between, Spark runs the
        #    micro-batch again, its events are only counted, and it is concluded from the same rows.
        self._conclude(opening.row.minibatch)
        if self._auditing is not None:
            self._auditing.show(names, opening.row.minibatch)
        self._completed(opening, reports, skipped, repeats)
        if self.pacing is not None:
            self.pacing.ended()

    def _completed(
        self,
        opening: OpenMinibatch,
        reports: Sequence[Report],
        skipped: int,
        repeats: Mapping[str, int],
    ) -> None:
        """Notify the observer, with the figures that the tasks reported."""
        figures = {sink.name: Figures(repeats=repeats.get(sink.name, 0)) for sink in self.sinks}
        parts = tuple(map(PartitionFigures.of, reports))
        for part in parts:
            figures[part.sink] += part.figures
        now = self.runtime.clock.monotonic()
        self.observer.observe(
            MinibatchCompleted(
                self.client.pipeline,
                opening.row.minibatch,
                figures,
                skipped,
                opening.row.continues,
                0.0 if self._opened_at is None else now - self._opened_at,
                reduce(add, [each.snapshots for each in reports] or [SnapshotFigures()]),
                self.run,
                opening.row.again,
                parts,
                reduce(add, [each.commits for each in reports] or [CommitFigures()]),
            )
        )

    def holds(self, opening: OpenMinibatch) -> bool:
        """Whether this run can still complete the minibatch."""
        return self._minibatches.stands(opening)

    def beat(self, *, ended: bool = False) -> bool:
        """Record that the run is alive, or has ended, with its figures; return whether it is asked
        to stop. Raises `Fenced` if it was replaced.
        """
        figures = self.recorder.figures(self.run)
        owners = Owners(self.client)
        stop = owners.beat(self.run, self.nonce, ended=ended, figures=figures)
        self.observer.observe(HeartbeatWritten(self.client.pipeline, self.run, ended))
        if stop is not None and not ended:
            # The request may be older than the first minibatch, whose row does not say it then.
            owners.request_stop(stop.by, self.run)
        return stop is not None

    def ask_to_stop(self, by: str) -> None:
        """Let the tasks of this run end at the border of a window, where nothing is in doubt."""
        self.stopping = True
        Owners(self.client).request_stop(by, self.run)

    # -- the end of a minibatch at the sinks

    def _conclude(self, minibatch: Minibatch) -> None:
        """Conclude a complete minibatch at every sink that has an end-of-minibatch step, and hand
        it to the second stage of the sink.
        """
        for sink in self._concluding:
            at = (sink.name, minibatch.generation, minibatch.batch)
            for ended in _ended(self.client, sink.name, make_prefix(self.client.pipeline, *at)):
                self._conclude_at(sink, ended)

    def _conclude_before(self, opened: Minibatch) -> None:
        """Conclude the complete minibatches of older generations, and those left by a sink that was
        removed for a while, before their rows are deleted.
        """
        for sink in self._concluding:
            start = make_prefix(self.client.pipeline, sink.name)
            for ended in _ended(self.client, sink.name, start):
                older = ended.minibatch.generation < opened.generation
                if older or is_unswept(ended.minibatch, opened):
                    self._conclude_at(sink, ended)

    def _conclude_at(self, sink: Sink, ended: Ended) -> None:
        _patiently(sink, ended, self.runtime)
        self._stages().hand_over(sink, ended)

    def _stages(self) -> Stages:
        return Stages(self.client, self.run, self.process, self.runtime, self.observer)

    def _close(self, opening: OpenMinibatch) -> int:
        """Close what older generations left pending; return how many partitions there were."""
        sinks = {sink.name: sink for sink in self.sinks}
        # Their rows are taken over in the ledger first: an attempt that is still alive can record
        # nothing more.
        found = take_leftovers(self.client, opening, sinks, self.process)
        if found:
            closing = Closing(
                self.client,
                opening,
                sinks,
                self.identity,
                self._journal,
                self.runtime,
                self._auditing,
            )
            closing.run(found)
        return len(found)


def _ended(client: LedgerClient, sink: str, start: str) -> Iterator[Ended]:
    """Yield each minibatch that has complete rows, with what is at its places."""
    stored = client.scan(STREAMS_TABLE, start)
    found = [(split_key(at.key), PartitionRow.load(text, at)) for at, text in stored]
    for at, rows in groupby(found, key=lambda each: each[0][2:4]):
        parts = tuple(
            EndedPart(row.partition, row.attempt, row.count or 0, row.placed)
            for _, row in rows
            if row.state is PartitionState.COMPLETE and row.placed is not None
        )
        if parts:
            minibatch = Minibatch(key_number(at[0]), key_number(at[1]))
            yield Ended(client.at_sinks, sink, minibatch, parts)


def _patiently(sink: Sink, ended: Ended, runtime: Runtime) -> None:
    """Conclude a minibatch, with retries: a conclusion may be repeated."""
    last: Exception = NotDelivered("not tried")
    for _ in sink.retry.tries(runtime):
        try:
            sink.conclude(ended)
        except (NotDelivered, OutcomeUnknown) as error:
            last = error
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - unclassified, and it may be repeated
            last = error
        else:
            return
    raise NotDelivered(
        f"pipeline {ended.pipeline!r}, sink {ended.sink!r}, minibatch {ended.minibatch}: its "
        f"events are delivered, but the sink's end-of-minibatch step failed ({last}). Check that "
        "the destination can be reached, then restart the query: it retries that step"
    ) from last
