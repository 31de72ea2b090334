"""Opening and completing minibatches: the two commits of the driver.

Always true:
- the first open of a run fences every run before it, because every write of theirs requires the old
  row;
- complete happens once, from reports that Spark handed to the driver, and from the very attempts
  that hold the partitions; afterwards no task can act on the minibatch;
- rows of a minibatch are swept when the next but one opens, in the same commit.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from semel.errors import Diverged, Fenced
from semel.events.digests import changed_columns
from semel.events.ids import Minibatch
from semel.ledger import gaps, journal, judging, owners, refusals, sequences, sources
from semel.ledger.judging import Consequence
from semel.ledger.keys import EVENTS, HEADS, OPEN, STREAMS, key, prefix
from semel.ledger.owners import PIPELINES
from semel.ledger.rows import OpenRow, StreamRow
from semel.ledger.sequences import SequenceRow, Standing
from semel.ledger.sources import UNKNOWN, Sources
from semel.ledger.store import Absent, Conflict, Equals, Put, Sweep
from semel.protocol import PartitionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semel.ledger.journal import Entry
    from semel.ledger.reports import Report
    from semel.ledger.scribe import Scribe
    from semel.ledger.store import Requirement, Update

NOTHING = Consequence()
NO_IDS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Opening:
    """An open minibatch, as it travels from the driver to its tasks.

    Attributes:
        sequences: the row of each partition of each sink; `standing` reads it as of this minibatch.
        first_of_run: whether this is the run's first: a run before it may have left something.
        new_generation: whether one began just now: the checkpoint was lost or replaced, or a
            person has judged a divergence.
        counts: whether it is of a batch job that is finished, and in no ledger: tasks only count.
        joined: the sinks that get a minibatch which is complete at others: they were added since.
        starts: where Spark began in each source partition, where that is known, and after a lost
            checkpoint the tasks have to compare it.
        lost_before: where a checkpoint was lost just now: the first serial after the loss before.
        inputs: the position of each input after this minibatch; recorded with complete.
    """

    row: OpenRow
    text: str
    sequences: Mapping[str, Mapping[str, SequenceRow]] = field(default_factory=dict)
    first_of_run: bool = False
    new_generation: bool = False
    counts: bool = False
    joined: frozenset[str] = frozenset()
    starts: Mapping[str, int] = field(default_factory=dict)
    lost_before: int | None = None
    inputs: tuple[str, ...] = ()

    @property
    def completed(self) -> str:
        """The text of the row once the minibatch is complete."""
        return self.completed_with({})

    def completed_with(self, ids: Mapping[str, str]) -> str:
        """The same, with the ids of topics that were first read in this minibatch."""
        sources = {**self.row.sources, **ids}
        row = replace(self.row, complete=True, version=self.row.version + 1, sources=sources)
        return replace(row, inputs=self.inputs or row.inputs).dump()

    @property
    def settled(self) -> bool:
        """Whether a person said that it stands as recorded: no task runs, nothing is reported."""
        return self.row.settled

    def standing(self, sink: str, partition: str) -> Standing:
        """Give where a partition stands before this minibatch; one never seen from nothing."""
        return self.sequence(sink, partition).as_of(self.row.serial)

    def acknowledged(self, sink: str, partition: str) -> int:
        """Give the last OSN that the destination acknowledged, whatever is replayed."""
        return self.sequence(sink, partition).after.sent

    def delivered_before(self, sink: str) -> bool:
        """Say whether a minibatch before this one delivered anything to a sink."""
        return any(row.delivered for row in self.sequences.get(sink, {}).values())

    def sequence(self, sink: str, partition: str) -> SequenceRow:
        """Give the row of a partition, an empty one when it was never seen."""
        known = self.sequences.get(sink, {}).get(partition)
        return known or SequenceRow(partition, Standing(), ())


@dataclass(frozen=True, slots=True)
class Wish:
    """What the driver wants to open: Spark's ids, and the shape of the pipeline.

    Attributes:
        starts: where Spark begins in each source partition, by its name, where that is known; it is
            compared with the ledger when a checkpoint was lost.
        sources: what Kafka says of the topics that Spark reads.
        accept_gap: go on although Spark begins later than the ledger stands.
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
    sources: Sources = UNKNOWN
    inputs: tuple[str, ...] = ()
    stages: Mapping[str, str] = field(default_factory=dict)


class Minibatches:
    """Opens and completes the minibatches of one pipeline, for one run. Runs on the driver."""

    def __init__(self, scribe: Scribe, run: int) -> None:
        self._scribe = scribe
        self._run = run
        self._open = key(OPEN, scribe.pipeline)
        self._pipeline = key(PIPELINES, scribe.pipeline)
        self._all_in = False
        self._stages: Mapping[str, str] = {}

    def open(self, wish: Wish) -> Opening:
        """Open a minibatch; a run's first open fences the run before it.

        Raises `Fenced` when a later run has the pipeline, `ConfigurationError` when the identity
        cannot survive a lost checkpoint or the pipeline was rescaled meanwhile, `Diverged` when
        Spark went on past a minibatch that is not complete, or begins later than the ledger stands.
        """
        self._stages = wish.stages
        while True:
            rows = self._scribe.read(self._open, self._pipeline)
            text, described = rows.get(self._open), rows.get(self._pipeline)
            refusals.rescaled(self._scribe, described, wish)
            before = None if text is None else OpenRow.load(text, self._open)
            self._refuse_left_out(described, before, wish)
            judged = self._follow(before, wish)
            if before is not None and not judged.new_generation:
                self._refuse_partly_joined(before, described, wish)
            row = self._from_known_sources(before, self._next(before, wish, judged), wish)
            standing = self._sequences(wish)
            if before is not None and _same(before, row):
                row = before
            elif before is not None and _begins(before, row):
                row = replace(row, compared=gaps.compare(self._scribe, standing, wish))
            opening = Opening(
                row,
                row.dump(),
                standing,
                first_of_run=before is None or before.run != self._run,
                new_generation=before is not None
                and before.minibatch.generation != row.minibatch.generation,
                joined=self._joined(row.minibatch, described, wish) if row.again else frozenset(),
                starts=_starts(row, wish),
                lost_before=before.first if before is not None and _begins(before, row) else None,
                inputs=wish.inputs,
            )
            if text == opening.text:
                return opening
            if text is None:
                refusals.finished(self._scribe, described)
            required = [
                Absent(at) if payload is None else Equals(at, payload)
                for at, payload in ((self._open, text), (self._pipeline, described))
            ]
            sweeps = _swept(self._scribe.pipeline, before, row, wish.sinks)
            requirements = [*required, *judged.requirements]
            updates = [Put(self._open, opening.text), *sweeps, *judged.updates]
            try:
                self._scribe.commit(requirements, updates)
            except Conflict:
                continue
            self._refuse_left_out(described, before, wish)  # a zombie may have begun until now
            self._all_in = True
            return replace(opening, sequences=self._sequences(wish)) if judged.updates else opening

    def _refuse_left_out(self, described: str | None, before: OpenRow | None, wish: Wish) -> None:
        """Refuse, once for a run, to leave a sink out of which something is open."""
        if before is not None and not self._all_in and before.run <= self._run:
            refusals.left_out(self._scribe, described, before, wish)

    def _sequences(self, wish: Wish) -> Mapping[str, Mapping[str, SequenceRow]]:
        return {sink: sequences.read_sequences(self._scribe, sink) for sink in wish.sinks}

    def _from_known_sources(self, before: OpenRow | None, row: OpenRow, wish: Wish) -> OpenRow:
        """Give the row with the ids of its topics. Raises `Diverged` where one was made anew."""
        if before is None:
            return replace(row, sources=dict(wish.sources.ids))
        lost = _begins(before, row)
        found = sources.compare(self._scribe.pipeline, before.sources, wish, lost=lost)
        return replace(row, sources=found)

    def _follow(self, before: OpenRow | None, wish: Wish) -> Consequence:
        """Say what follows from a judgement, where the batch that was judged comes again."""
        if before is None or before.judged is None or before.run > self._run:
            return NOTHING
        if (wish.query, wish.batch) != (before.query, before.minibatch.batch):
            return NOTHING
        refusals.step(self._scribe, before, wish, 0, complete=True)
        return judging.follow(
            self._scribe, before, wish.sinks, survives=wish.survives_lost_checkpoint
        )

    def complete(
        self,
        opening: Opening,
        reports: Sequence[Report],
        sinks: Iterable[str],
        ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        """Turn every pending partition complete, advance L, write watermarks and drop locations, in
        one commit; `ids` are those of topics that were first read in this minibatch.

        Raises `Fenced` when a later run or attempt has it, `Diverged` when the reports do not cover
        what is recorded. May be repeated after a lost reply.
        """
        done = opening.completed_with(ids)
        if opening.settled and reports:
            raise AssertionError("nothing of a settled minibatch is run, so nothing is reported")
        try:
            requirements, updates = self._completing(opening, reports, sinks)
        except Diverged:
            if self._scribe.read_one(self._open) not in (opening.text, done):
                raise self._fenced(opening, "a later run has gone on") from None
            raise
        try:
            self._scribe.commit(
                [Equals(self._open, opening.text), *requirements], [Put(self._open, done), *updates]
            )
        except Conflict:
            if self._scribe.read_one(self._open) != done:
                raise self._fenced(
                    opening, "its row or one of its partitions changed hands"
                ) from None

    def stands(self, opening: Opening) -> bool:
        """Say whether it is open just as it was: no other run has it, nobody completed it."""
        return self._scribe.read_one(self._open) == opening.text

    def _completing(
        self, opening: Opening, reports: Sequence[Report], sinks: Iterable[str]
    ) -> tuple[list[Requirement], list[Update]]:
        """Match every recorded partition with its report, and make what completes them."""
        requirements: list[Requirement] = []
        updates: dict[Update, None] = {}
        by_place = {(report.sink, report.partition): report for report in reports}
        for sink in () if opening.settled else sinks:
            start = prefix(self._scribe.pipeline, sink, *astuple(opening.row.minibatch))
            for row_key, text in self._scribe.scan(STREAMS, start):
                row = StreamRow.load(text, row_key)
                report = self._matching(
                    opening, sink, row, by_place.pop((sink, row.partition), None)
                )
                if row.state is PartitionState.COMPLETE:
                    continue
                requirements.append(Equals(row_key, text))
                updates[Put(row_key, _completed(row, report, self._stages.get(sink)).dump())] = None
                updates[self._advanced(opening, sink, row, report)] = None
                updates |= dict.fromkeys(
                    journal.updates(self._scribe.pipeline, _new(opening, report))
                )
        if by_place:
            raise self._fenced(opening, f"no row is left of partition {next(iter(by_place))[1]}")
        return requirements, list(updates)

    def _next(self, before: OpenRow | None, wish: Wish, judged: Consequence) -> OpenRow:
        """Decide which minibatch Spark's batch is: the same again, the next, or the first of a
        generation, also because a person has judged it.
        """
        blocked = tuple(
            sink
            for sink in wish.sinks
            if self._scribe.scan(HEADS, prefix(self._scribe.pipeline, sink), limit=1)
        )
        row = OpenRow(
            run=self._run,
            minibatch=Minibatch(1, wish.batch),
            serial=1,
            query=wish.query,
            partitions=wish.partitions,
            blocked=blocked,
            version=1 if before is None else before.version + 1,
            since=self._scribe.clock.wall(),
            inputs=() if before is None else before.inputs,
        )
        if before is None:
            gaps.refuse_unknown(self._scribe.pipeline, wish)
            return row
        if before.run > self._run:
            raise Fenced(
                f"pipeline {self._scribe.pipeline!r}: run {self._run} was replaced by run "
                f"{before.run}, which has minibatch {before.minibatch}; this one stops"
            )
        generation = before.minibatch.generation
        batch, serial, complete = before.reached()
        step = wish.batch - batch
        fresh = replace(
            row,
            minibatch=Minibatch(generation + 1, wish.batch),
            serial=serial + 1,
            accepted=wish.accept_gap,
            first=serial + 1,
        )
        began = before.began if before.began > 1 else 0
        accepted = began > 0 and (before.accepted or wish.accept_gap)
        if judged.new_generation:
            return replace(fresh, continues=True, since=before.since, lost=began, accepted=accepted)
        if wish.query == before.query and step in (-1, 0, 1) and self._steps(before, wish):
            refusals.step(self._scribe, before, wish, step, complete=complete)
            was_complete = step < 0 or (step == 0 and complete)
            return replace(
                row,
                minibatch=Minibatch(generation, wish.batch),
                serial=serial + step,
                newest=(batch, serial, complete) if step < 0 else None,
                again=was_complete,
                since=before.since,
                settled=before.minibatch.batch == wish.batch
                and (before.settled or before.judged is not None),
                continues=before.continues,
                compared=before.compared,
                lost=before.lost,
                first=before.first,
                accepted=accepted,
            )
        if not wish.survives_lost_checkpoint:
            raise refusals.lost_checkpoint(self._scribe, before, wish)
        return fresh

    def _steps(self, before: OpenRow, wish: Wish) -> bool:
        """Whether a batch belongs to the generation: one before the newest only where the newest is
        complete and its own rows are there to compare, because Spark may have planned it anew; and
        none that leaves a minibatch behind which had grown and is half delivered.
        """
        batch, _, complete = before.reached()
        left = before.again and not before.complete and wish.batch != before.minibatch.batch
        if left and PartitionState.PENDING in self._states_of(before.minibatch, wish.sinks):
            return False
        if wish.batch >= batch or not wish.survives_lost_checkpoint:
            return True
        again = Minibatch(before.minibatch.generation, wish.batch)
        return complete and bool(self._states_of(again, wish.sinks))

    def _joined(self, minibatch: Minibatch, described: str | None, wish: Wish) -> frozenset[str]:
        """Name the sinks that had no part in a minibatch which is complete. All sinks of a run get
        the same partitions: one without a complete row, where another has some, was added since.
        """
        known = (
            {}
            if described is None
            else owners.described(described, self._pipeline).get("sinks", {})
        )
        had = {
            sink
            for sink in {*known, *wish.sinks}
            if PartitionState.COMPLETE in self._states_of(minibatch, [sink])
        }
        return frozenset(wish.sinks) - had if had else frozenset()

    def _refuse_partly_joined(self, before: OpenRow, described: str | None, wish: Wish) -> None:
        """Refuse to go on past a complete minibatch of which a sink that was added has only a part,
        because another copy of the checkpoint is back: the rest of it would never come.
        """
        if not before.again or before.complete or wish.query != before.query:
            return
        if wish.batch <= before.minibatch.batch:
            return
        for sink in sorted(self._joined(before.minibatch, described, wish)):
            if self._states_of(before.minibatch, [sink]):
                raise refusals.partly_joined(self._scribe, before, wish, sink)

    def _states_of(self, minibatch: Minibatch, sinks: Iterable[str]) -> set[PartitionState]:
        """Give the states in which partitions of a minibatch are, at some sinks."""
        parts = (self._scribe.pipeline, *astuple(minibatch))
        starts = [prefix(parts[0], sink, *parts[1:]) for sink in sinks]
        rows = [row for start in starts for row in self._scribe.scan(STREAMS, start)]
        return {StreamRow.load(text, at).state for at, text in rows}

    def _matching(
        self, opening: Opening, sink: str, row: StreamRow, report: Report | None
    ) -> Report:
        """Give the report that belongs to a row, or say what does not fit."""
        place = (
            f"pipeline {self._scribe.pipeline!r}, sink {sink!r}, minibatch "
            f"{opening.row.minibatch}, partition {row.partition}"
        )
        if report is None or report.short:
            seen = (
                "no task came for it"
                if report is None
                else f"a replay gave only {report.count} events"
            )
            raise Diverged(
                f"{place}: an earlier attempt delivered from it, and {seen}. The query does not "
                "give the same rows for the same input; nothing was repeated. Look at the query, "
                f"then say `semel resolve {self._scribe.pipeline}/{opening.row.minibatch} "
                "as-recorded|as-replayed`"
            )
        if row.state is PartitionState.COMPLETE:
            if (report.count, report.digest) != (row.count, row.digest):
                raise Diverged(
                    f"{place}: complete with {row.count} events and digest {row.digest}, but a "
                    f"replay gave {report.count} events and digest {report.digest}; nothing was "
                    f"repeated.{changed_columns(row.columns, report.columns)} Look at the query, "
                    "then say `semel resolve "
                    f"{self._scribe.pipeline}/{opening.row.minibatch} as-recorded|as-replayed`"
                )
        elif report.attempt != row.attempt:
            raise self._fenced(
                opening,
                f"attempt {row.attempt} took partition {row.partition} from {report.attempt}",
            )
        return report

    def _advanced(self, opening: Opening, sink: str, row: StreamRow, report: Report) -> Put:
        known = opening.sequence(sink, row.partition)
        known = known.tried(report.delivered + report.suppressed, report.unanswered)
        before = opening.standing(sink, row.partition)
        after = Standing(report.osn, max(report.sent, before.sent), report.mark or before.mark)
        return sequences.advance(self._scribe, sink, known, opening.row.serial, after)

    def _fenced(self, opening: Opening, why: str) -> Fenced:
        return Fenced(
            f"pipeline {self._scribe.pipeline!r}: minibatch {opening.row.minibatch} of run "
            f"{self._run} cannot be completed: {why}. Nothing was changed; the later run or "
            "attempt goes on"
        )


def _new(opening: Opening, report: Report) -> Iterator[Entry]:
    """Give what a report brings to the journal. Counters are of all sinks together: those of a
    minibatch that was complete before stand there already.
    """
    return (
        entry
        for entry in report.entries
        if not opening.row.again or entry.operator != journal.COUNTERS.name
    )


def _same(before: OpenRow, row: OpenRow) -> bool:
    """Whether a row says what stands there already."""
    return before == replace(row, version=before.version, since=before.since)


def _starts(row: OpenRow, wish: Wish) -> Mapping[str, int]:
    """Give where Spark began, where the driver could not compare all of it."""
    told = row.compared or row.continues or row.minibatch.generation == 1
    return {} if told or wish.starts is None else wish.starts


def _begins(before: OpenRow, row: OpenRow) -> bool:
    """Whether a generation begins because a checkpoint was lost, not because a person said so."""
    return before.minibatch.generation != row.minibatch.generation and not row.continues


def _completed(row: StreamRow, report: Report, stage: str | None) -> StreamRow:
    """Give the row as it stands when complete: what it held, and no location any more."""
    return replace(
        row,
        state=PartitionState.COMPLETE,
        count=report.count,
        digest=report.digest,
        first=report.first,
        last=report.last,
        location=None,
        placed=None if report.placed is None else dict(report.placed),
        stage=None if report.placed is None else stage,
    )


def _swept(
    pipeline: str, before: OpenRow | None, row: OpenRow, sinks: Iterable[str]
) -> list[Update]:
    """Sweep the next but one before a minibatch that opens as the next one of its generation."""
    if before is None or row.serial <= before.reached()[1]:
        return []
    if row.minibatch.generation != before.minibatch.generation:
        return []
    old = (row.minibatch.generation, row.minibatch.batch - 2)
    return [
        Sweep(table, prefix(pipeline, sink, *old)) for sink in sinks for table in (STREAMS, EVENTS)
    ]
