"""Opening minibatches: the driver's first commit.

Always true:
- the first open of a run fences every run before it, because each of their writes requires the old
  row;
- rows of a minibatch are swept when the next but one opens, in the same commit.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from semel.errors import Fenced, StopRequested
from semel.events import Minibatch
from semel.ledger.keys import (
    EVENTS_TABLE,
    HEADS_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
    make_key,
    make_prefix,
)
from semel.ledger.rows import OpenRow, PartitionRow, read_description
from semel.ledger.store.commit import Absent, Conflict, Equals, Put, Sweep
from semel.ledger.verbs import divergence, open_checks
from semel.ledger.verbs.complete import (
    SequenceRow,
    Standing,
    complete,
    had_partitions,
    read_sequences,
)
from semel.ledger.verbs.divergence import JudgementEffects
from semel.ledger.verbs.open_checks import UNKNOWN_SOURCES, Sources
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Update
    from semel.ledger.verbs.complete import Report

NO_EFFECTS = JudgementEffects()
NO_TOPIC_IDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OpenMinibatch:
    """An open minibatch, as it travels from the driver to its tasks.

    Attributes:
        sequences: the row of each partition of each sink; `standing` reads it as of this minibatch.
        first_of_run: whether this is the first of the run: a previous run may have left partitions.
        new_generation: whether a generation began just now: the checkpoint was lost or replaced, or
            a person has judged a divergence.
        counts: whether it belongs to a finished batch job, and to no ledger: tasks only count.
        joined: sinks that were added since, and get a minibatch that is complete at the others.
        later: sinks that were added with the minibatch after this one, and get nothing of this one:
            their events of later minibatches would come first.
        starts: where Spark began in each source partition, if it is known and the tasks have to
            compare it after a lost checkpoint.
        lost_before: if a checkpoint was lost just now: the first serial after the previous loss.
        inputs: the position of each input after this minibatch, recorded with complete; empty if it
            is not known, which is not where an older minibatch ended.
    """

    row: OpenRow
    text: str
    sequences: Mapping[str, Mapping[str, SequenceRow]] = field(default_factory=dict)
    first_of_run: bool = False
    new_generation: bool = False
    counts: bool = False
    joined: frozenset[str] = frozenset()
    later: frozenset[str] = frozenset()
    starts: Mapping[str, int] = field(default_factory=dict)
    lost_before: int | None = None
    inputs: tuple[str, ...] = ()

    @property
    def completed(self) -> str:
        """The text of the row once it is complete."""
        return self.completed_with({})

    def completed_with(self, ids: Mapping[str, str]) -> str:
        """The same, with the ids of topics that were first read in this minibatch."""
        sources = {**self.row.sources, **ids}
        row = replace(self.row, complete=True, version=self.row.version + 1, sources=sources)
        return replace(row, inputs=self.inputs or (row.inputs if row.again else ())).dump()

    def asked_to_stop(self, text: str | None, key: Key) -> OpenMinibatch | None:
        """Return this minibatch with the row as it is in `text`, if all that changed is that the
        run was asked to stop; otherwise None.
        """
        row = None if text is None or text == self.text else OpenRow.load(text, key)
        if text is None or row is None or not row.is_stop_of(self.text):
            return None
        return replace(self, row=row, text=text)

    @property
    def stop_requested(self) -> StopRequested:
        """The error with which a run ends that was asked to stop."""
        return StopRequested(
            f"run {self.row.run} was asked to stop. No event is in doubt because of it; the next "
            "run delivers the rest"
        )

    @property
    def settled(self) -> bool:
        """Whether a person decided that it stays as recorded: no task runs, none reports."""
        return self.row.settled

    def standing(self, sink: str, partition: str) -> Standing:
        """Return the standing of a partition before this minibatch; a new one starts from 0."""
        return self.sequence(sink, partition).as_of(self.row.serial)

    def acknowledged(self, sink: str, partition: str) -> int:
        """Return the last OSN that the destination acknowledged, whatever is replayed."""
        return self.sequence(sink, partition).after.sent

    def delivered_before(self, sink: str) -> bool:
        """Whether a minibatch before this one delivered anything to a sink."""
        return any(row.delivered for row in self.sequences.get(sink, {}).values())

    def sequence(self, sink: str, partition: str) -> SequenceRow:
        """Return the row of a partition, an empty one for a new partition."""
        known = self.sequences.get(sink, {}).get(partition)
        return known or SequenceRow(partition, Standing(), ())


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What the driver wants to open: Spark's ids, and the shape of the pipeline.

    Attributes:
        starts: where Spark begins in each source partition, by its name, if known; it is compared
            with the ledger after a lost checkpoint.
        sources: the topics that Spark reads, as Kafka describes them.
        accept_gap: continue although Spark begins later than the ledger stands.
        inputs: the position of each input after the minibatch, as Spark writes it.
        stages: the second stage of each sink that has one.
    """

    query: str
    batch: int
    sinks: tuple[str, ...]
    partitions: int | None = None
    survives_lost_checkpoint: bool = True
    starts: Mapping[str, int] | None = None
    accept_gap: bool = False
    sources: Sources = UNKNOWN_SOURCES
    inputs: tuple[str, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)


class Minibatches:
    """Opens and completes the minibatches of one pipeline, for one run. Runs on the driver."""

    def __init__(self, client: LedgerClient, run: int) -> None:
        self._client = client
        self._run = run
        self._open = client.open_key
        self._pipeline = make_key(PIPELINES_TABLE, client.pipeline)
        self._all_in = False
        self._stages: Mapping[str, str] = {}

    def open(self, request: OpenRequest) -> OpenMinibatch:
        """Open a minibatch; a run's first open fences the run before it.

        Raises `Fenced` if a later run has the pipeline, `StopRequested` if this one was asked to
        stop, `ConfigurationError` if the identity cannot survive a lost checkpoint or the pipeline
        was rescaled meanwhile, `Diverged` if Spark continues after a minibatch that is not
        complete, or begins later than the ledger stands.
        """
        self._stages = request.stages
        while True:
            # 1. Read the open minibatch, and refuse a request that cannot follow it. Nothing is
            #    written yet: a driver that crashes here is repeated.
            rows = self._client.read(self._open, self._pipeline)
            text, recorded = rows.get(self._open), rows.get(self._pipeline)
            described = read_description(recorded, self._pipeline)
            open_checks.rescaled(self._client, described, request)
            before = None if text is None else OpenRow.load(text, self._open)
            if before is not None and before.stopping == self._run:
                raise OpenMinibatch(before, before.dump()).stop_requested
            self._refuse_left_out(described, before, request)
            judged = self._follow(before, request)
            if before is not None and not judged.new_generation:
                self._refuse_partly_joined(before, described, request)
            # 2. Decide which minibatch it is. If the row is there already, a driver crashed after
            #    it was written, or the reply of the commit was lost: it is opened.
            opening = self._decide(before, described, request, judged)
            if text == opening.text:
                return opening
            if text is None:
                open_checks.finished(self._client, described)
            # 3. One commit: it requires the rows that were read, so a second driver that read the
            #    same ones fails here. From now on no write of an earlier run is accepted. A crash
            #    before it changes nothing; after a later one, the next run finds the row.
            required = [
                Absent(at) if payload is None else Equals(at, payload)
                for at, payload in ((self._open, text), (self._pipeline, recorded))
            ]
            sweeps = _swept(self._client.pipeline, before, opening.row, request.sinks)
            requirements = [*required, *judged.requirements]
            updates = [Put(self._open, opening.text), *sweeps, *judged.updates]
            try:
                self._client.commit(requirements, updates)
            except Conflict:
                continue
            # 4. Look once more for open partitions of removed sinks: until the commit an attempt of
            #    an earlier run could begin one.
            self._refuse_left_out(described, before, request)
            self._all_in = True
            return (
                replace(opening, sequences=self._sequences(request)) if judged.updates else opening
            )

    def _decide(
        self,
        before: OpenRow | None,
        described: Mapping[str, Any],
        request: OpenRequest,
        judged: JudgementEffects,
    ) -> OpenMinibatch:
        """Return the minibatch that follows, as it will be when it is open."""
        row = self._from_known_sources(before, self._next(before, request, judged), request)
        standing = self._sequences(request)
        begins = before is not None and _begins(before, row)
        if before is not None and _same(before, row):
            row = before
        elif begins:
            compared = open_checks.compare_positions(
                self._client, standing, request, accepted=row.accepted
            )
            row = replace(row, compared=compared)
        joined: frozenset[str] = frozenset()
        if row.again:
            joined = self._joined(row.minibatch, described, request)
        later = self._later(row, joined)
        return OpenMinibatch(
            row,
            row.dump(),
            standing,
            first_of_run=before is None or before.run != self._run,
            new_generation=before is not None
            and before.minibatch.generation != row.minibatch.generation,
            joined=joined - later,
            later=later,
            starts=_starts(row, request),
            lost_before=before.first if before is not None and begins else None,
            inputs=request.inputs,
        )

    def _refuse_left_out(
        self, described: Mapping[str, Any], before: OpenRow | None, request: OpenRequest
    ) -> None:
        """Refuse, once for a run, to remove a sink that has open partitions."""
        if before is not None and not self._all_in and before.run <= self._run:
            open_checks.left_out(self._client, described, before, request)

    def _sequences(self, request: OpenRequest) -> Mapping[str, Mapping[str, SequenceRow]]:
        return {sink: read_sequences(self._client, sink) for sink in request.sinks}

    def _from_known_sources(
        self, before: OpenRow | None, row: OpenRow, request: OpenRequest
    ) -> OpenRow:
        """Return the row with the ids of its topics. Raises `Diverged` if one was recreated."""
        if before is None:
            return replace(row, sources=dict(request.sources.ids))
        lost = _begins(before, row)
        found = open_checks.compare_topics(
            self._client.pipeline, before.sources, request, lost=lost
        )
        return replace(row, sources=found)

    def _follow(self, before: OpenRow | None, request: OpenRequest) -> JudgementEffects:
        """Return the effects of a judgement, if the batch that was judged runs again."""
        if before is None or before.judged is None or before.run > self._run:
            return NO_EFFECTS
        if (request.query, request.batch) != (before.query, before.minibatch.batch):
            return NO_EFFECTS
        open_checks.step(self._client, before, request, 0, complete=True)
        return divergence.follow(
            self._client, before, request.sinks, survives=request.survives_lost_checkpoint
        )

    def complete(
        self,
        opening: OpenMinibatch,
        reports: Sequence[Report],
        sinks: Iterable[str],
        ids: Mapping[str, str] = NO_TOPIC_IDS,
        also: Sequence[Update] = (),
    ) -> None:
        """Complete a minibatch, and do the updates `also` in the same commit (`complete`)."""
        names = tuple(sinks)
        try:
            done = opening.completed_with(ids)
            complete(self._client, opening, done, reports, names, self._stages, also)
        except StopRequested:
            # All of it is delivered, so it is completed although the run was asked to stop.
            asked = opening.asked_to_stop(self._client.read_one(self._open), self._open)
            if asked is None:
                raise
            done = asked.completed_with(ids)
            complete(self._client, asked, done, reports, names, self._stages, also)

    def stands(self, opening: OpenMinibatch) -> bool:
        """Whether it is open as it was: no other run has it, and it is not complete."""
        text = self._client.read_one(self._open)
        return text == opening.text or opening.asked_to_stop(text, self._open) is not None

    def _next(
        self, before: OpenRow | None, request: OpenRequest, judged: JudgementEffects
    ) -> OpenRow:
        """Decide which minibatch Spark's batch is: the same again, the next, or the first of a
        generation, which a judgement begins too.
        """
        row = OpenRow(
            run=self._run,
            minibatch=Minibatch(1, request.batch),
            serial=1,
            query=request.query,
            partitions=request.partitions,
            blocked=self._blocked(request),
            version=1 if before is None else before.version + 1,
            since=self._client.clock.wall(),
            inputs=() if before is None else before.inputs,
        )
        if before is None:
            open_checks.refuse_unknown(self._client.pipeline, request)
            return row
        if before.run > self._run:
            raise Fenced(
                f"pipeline {self._client.pipeline!r}: run {self._run} was replaced by run "
                f"{before.run}, which has minibatch {before.minibatch}; run {self._run} stops"
            )
        generation = before.minibatch.generation
        batch, serial, complete = before.reached()
        step = request.batch - batch
        fresh = replace(
            row,
            minibatch=Minibatch(generation + 1, request.batch),
            serial=serial + 1,
            accepted=request.accept_gap,
            first=serial + 1,
        )
        began = before.began if before.began > 1 else 0
        accepted = began > 0 and (before.accepted or request.accept_gap)
        if before.reset is not None:
            open_checks.refuse_other_start(self._client, before, before.reset, request)
            fresh = replace(fresh, accepted=fresh.accepted or before.reset.accepts_gap)
        if judged.new_generation:
            return replace(fresh, continues=True, since=before.since, lost=began, accepted=accepted)
        if request.query == before.query and step in (-1, 0, 1) and self._steps(before, request):
            open_checks.step(self._client, before, request, step, complete=complete)
            was_complete = step < 0 or (step == 0 and complete)
            return replace(
                row,
                minibatch=Minibatch(generation, request.batch),
                serial=serial + step,
                newest=(batch, serial, complete) if step < 0 else None,
                again=was_complete,
                since=before.since,
                settled=before.minibatch.batch == request.batch
                and (before.settled or before.judged is not None),
                continues=before.continues,
                compared=before.compared,
                lost=before.lost,
                first=before.first,
                accepted=accepted,
            )
        if not request.survives_lost_checkpoint:
            raise open_checks.lost_checkpoint(self._client, before, request)
        return fresh

    def _blocked(self, request: OpenRequest) -> tuple[str, ...]:
        """Return the sinks at which events of some entity wait."""
        heads = {sink: make_prefix(self._client.pipeline, sink) for sink in request.sinks}
        return tuple(
            sink for sink, start in heads.items() if self._client.scan(HEADS_TABLE, start, limit=1)
        )

    def _steps(self, before: OpenRow, request: OpenRequest) -> bool:
        """Whether a batch belongs to the generation. One before the newest does only if the newest
        is complete and its own rows are there to compare, because Spark may have planned it again;
        and none that leaves behind a minibatch which had grown and is half delivered.
        """
        batch, _, complete = before.reached()
        left = before.again and not before.complete and request.batch != before.minibatch.batch
        if left and PartitionState.PENDING in self._states_of(before.minibatch, request.sinks):
            return False
        if request.batch >= batch or not request.survives_lost_checkpoint:
            return True
        again = Minibatch(before.minibatch.generation, request.batch)
        return complete and bool(self._states_of(again, request.sinks))

    def _joined(
        self, minibatch: Minibatch, described: Mapping[str, Any], request: OpenRequest
    ) -> frozenset[str]:
        """Return the sinks that had no part in a complete minibatch. All sinks of a run get the
        same partitions: one without a complete row, while another has some, was added since. If
        nothing in it was new to any, one that never had a partition, while another has, was added.
        """
        sinks = {*described.get("sinks", {}), *request.sinks}
        had = {
            sink for sink in sinks if PartitionState.COMPLETE in self._states_of(minibatch, [sink])
        } or had_partitions(self._client, sinks)
        return frozenset(request.sinks) - had if had else frozenset()

    def _later(self, row: OpenRow, joined: frozenset[str]) -> frozenset[str]:
        """Name those of the sinks that had no part in a minibatch which have one in the next."""
        if row.newest is None:
            return frozenset()
        newest = Minibatch(row.minibatch.generation, row.newest[0])
        return frozenset(sink for sink in joined if self._states_of(newest, [sink]))

    def _refuse_partly_joined(
        self, before: OpenRow, described: Mapping[str, Any], request: OpenRequest
    ) -> None:
        """Refuse to continue after a complete minibatch of which an added sink has only a part, or
        nothing although it was added at the one before, because another copy of the checkpoint is
        used: the rest of it would never arrive.
        """
        if not before.again or request.query != before.query:
            return
        if request.batch <= before.minibatch.batch:
            return
        if before.complete:
            self._refuse_passed(before, described, request)
            return
        for sink in sorted(self._joined(before.minibatch, described, request)):
            if self._states_of(before.minibatch, [sink]):
                raise open_checks.partly_joined(self._client, before, request, sink)

    def _refuse_passed(
        self, before: OpenRow, described: Mapping[str, Any], request: OpenRequest
    ) -> None:
        """Refuse to go on past the newest minibatch if a sink has nothing of it, but was given the
        one before since then: by a later run than the one that delivered the newest.
        """
        if before.newest is None or request.batch <= before.newest[0]:
            return
        newest = Minibatch(before.minibatch.generation, before.newest[0])
        passed = self._joined(newest, described, request)
        others = [sink for sink in request.sinks if sink not in passed]
        for sink in sorted(passed):
            since = max(self._runs_of(newest, others), default=before.run)
            if max(self._runs_of(before.minibatch, [sink]), default=0) > since:
                raise open_checks.passed_by(self._client, before, request, sink)

    def _states_of(self, minibatch: Minibatch, sinks: Iterable[str]) -> set[PartitionState]:
        """Return the states of the partitions of a minibatch, at some sinks."""
        return {row.state for row in self._partitions_of(minibatch, sinks)}

    def _runs_of(self, minibatch: Minibatch, sinks: Iterable[str]) -> set[int]:
        """Return the runs that have delivered partitions of a minibatch, at some sinks."""
        return {row.attempt.run for row in self._partitions_of(minibatch, sinks)}

    def _partitions_of(self, minibatch: Minibatch, sinks: Iterable[str]) -> list[PartitionRow]:
        parts = (self._client.pipeline, *astuple(minibatch))
        starts = [make_prefix(parts[0], sink, *parts[1:]) for sink in sinks]
        rows = [row for start in starts for row in self._client.scan(STREAMS_TABLE, start)]
        return [PartitionRow.load(text, at) for at, text in rows]


def _same(before: OpenRow, row: OpenRow) -> bool:
    """Whether a row equals the recorded one."""
    return before == replace(row, version=before.version, since=before.since)


def _starts(row: OpenRow, request: OpenRequest) -> Mapping[str, int]:
    """Return where Spark began, if the driver could not compare all of it."""
    compared = row.compared or row.continues or row.minibatch.generation == 1
    return {} if compared or request.starts is None else request.starts


def _begins(before: OpenRow, row: OpenRow) -> bool:
    """Whether a generation begins because a checkpoint was lost, not because of a judgement."""
    return before.minibatch.generation != row.minibatch.generation and not row.continues


def _swept(
    pipeline: str, before: OpenRow | None, row: OpenRow, sinks: Iterable[str]
) -> list[Update]:
    """Return the sweeps of the next but one before a minibatch that opens as the next one."""
    if before is None or row.serial <= before.reached()[1]:
        return []
    if row.minibatch.generation != before.minibatch.generation:
        return []
    old = (row.minibatch.generation, row.minibatch.batch - 2)
    return [
        Sweep(table, make_prefix(pipeline, sink, *old))
        for sink in sinks
        for table in (STREAMS_TABLE, EVENTS_TABLE)
    ]
