"""The driver's part of a pipeline, without Spark: it opens, completes, closes and drains.

Finishes what sinks do at the end of a minibatch, once the ledger has it complete.

Always true:
- Spark commits a micro-batch, and the ledger lets go of its rows, only after it was concluded;
- a conclusion that fails stops the query; the next run makes it, from the same rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from semel.delivery.parking.in_doubt import stop_if_held
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
    Journal,
    Minibatches,
    OpenMinibatch,
    OpenRequest,
    OpenRow,
    Owners,
    PartitionRow,
    Pruning,
    Sources,
    compare_batch,
    finish_batch,
    finished_batch,
    is_unswept,
    key_number,
    make_prefix,
    read_parked,
    split_key,
)
from semel.protocol import ParkedState, PartitionState
from semel.runtime import Runtime
from semel.sinks import Ended, EndedPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.events import Identity
    from semel.ledger import Finished, LedgerClient, Report
    from semel.runtime import Process
    from semel.sinks import Sink

PRUNE_EVERY = 100
"""How many minibatches pass between two looks for rows that have grown too old."""


@dataclass
class Driver:
    """Runs the minibatches of one `start()` of a pipeline.

    The steps of a minibatch: 1. drain what is parked and free to go; 2. open it, which fences the
    run before; 3. the first time, close what an older generation left; 4. the tasks deliver; 5.
    complete it; 6. conclude it.

    Attributes:
        partitions: over how many partitions entities are spread; None takes the recorded number.
        default_partitions: the same for a pipeline that never ran, where no number is asked for.
        accept_gap: go on although the input does not continue where the ledger stands.
        remember_s: how long ids, and what became of parked events, are kept.
        routing: how entities are spread over partitions, described; None is by their hash.
        forms: of each column that gives an id, whether it is an integer, a text, a date, ...
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
    _closed: int = 0
    _owners: Owners = field(init=False)
    _minibatches: Minibatches = field(init=False)
    _journal: Journal = field(init=False)

    def start(self) -> int:
        """Register the run; it fences nobody before its first minibatch."""
        self._journal = Journal(self.client)
        self._take_partitions()
        self._owners = Owners(self.client)
        self.run = self._owners.register(self.describe(), self.process, self.nonce)
        self._minibatches = Minibatches(self.client, self.run)
        return self.run

    def withdraw(self) -> None:
        """Take back what `start` wrote, where the run was refused before its first minibatch was
        opened: a start that was refused is not listed as a pipeline, nor its sinks.
        """
        self._owners.withdraw(self.nonce)

    def refuse_changed(self) -> None:
        """Raise `ConfigurationError` where `start` would: the name was used for something else."""
        self._take_partitions()
        Owners(self.client).refuse_changed(self.describe())

    def _take_partitions(self) -> None:
        """Where nobody asks for a number of partitions, take the recorded one, else the default."""
        if self.partitions is None and not self.identity.uses_source_partitions:
            recorded = Owners(self.client).described()
            known = self.default_partitions if recorded is None else recorded.get("partitions")
            self.partitions = known

    def describe(self) -> dict[str, Any]:
        """Say what may not change under the pipeline's name."""
        described = {
            "identity": self.identity.describe(),
            "partitions": self.partitions,
            "sinks": {
                **{sink.name: sink.describe() for sink in self.sinks},
                **{
                    stage.name: {**stage.describe(), STAGE_OF: sink.name}
                    for sink, stage in self._staged()
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
        """Open a minibatch; `starts` tells where Spark begins in each source partition, if known,
        `sources` which topics they are of, `inputs` where each input stands after it.

        Where `settled` is set on what it gives, no task is run: `end` takes no reports. Raises
        `Fenced`, `Diverged`, `ConfigurationError`.
        """
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
            {sink.name: stage.name for sink, stage in self._staged()},
        )
        opening = self._minibatches.open(request)
        generation, lost_before = opening.row.minibatch.generation, opening.lost_before
        if generation != self._closed:
            judged = opening.new_generation and opening.row.continues
            if judged:
                self.drain()  # what was parked of it may have been discarded
            opened = opening.row.minibatch
            conclude_before(self.client, self.sinks, opened, self.runtime, self._stages())
            if self._close(opening) or judged:
                opening = self._minibatches.open(request)
            for sink in self._with_stages():
                place = f"pipeline {self.client.pipeline!r}, sink {sink.name!r}"
                stop_if_held(self.client, sink, place)
            self._closed = generation
        lost = lost_before is not None
        if lost or opening.row.serial % PRUNE_EVERY == 0:
            names = [sink.name for sink in self._with_stages()]
            Pruning(self.client, self.remember_s).run(names, lost_before or 0)
        return opening

    def finished(self) -> Mapping[str, Finished] | None:
        """Tell what this batch job delivered, by sink; None while it is not finished."""
        return finished_batch(self.client)

    def finish(self, opening: OpenMinibatch) -> Mapping[str, Finished]:
        """Leave the permanent row of a batch job whose only minibatch is complete."""
        return finish_batch(self.client, opening)

    def recount(self) -> OpenMinibatch:
        """Give what the tasks of a finished batch job need to count it again; nothing is opened."""
        row = OpenRow(self.run, Minibatch(1, 0), 1, "", self.partitions)
        return OpenMinibatch(row, row.dump(), counts=True)

    def compare(self, reports: Sequence[Report]) -> None:
        """Compare what was counted with what was delivered. Raises `Diverged`."""
        compare_batch(self.client, reports, [sink.name for sink in self.sinks])

    def drain(self, *, waits: bool = False) -> int:
        """Send parked events that are free to go now, or also those that soon are; say how many."""
        return sum(
            Resending(self.client, sink, self.process, self.runtime, waits=waits).drain()
            for sink in self._with_stages()
        )

    def parked(self) -> dict[str, int]:
        """Tell how many events wait for a person or for their turn, by sink."""
        return {
            sink.name: sum(not row.state.final for _, row, _ in read_parked(self.client, sink.name))
            for sink in self._with_stages()
        }

    def undelivered(self) -> dict[str, Counter[ParkedState]]:
        """Count events that were parked or dropped and not delivered since, by sink and state."""
        return {
            sink.name: Counter(
                row.state
                for _, row, _ in read_parked(self.client, sink.name)
                if not row.state.only_marks and row.state is not ParkedState.DELIVERED
            )
            for sink in self._with_stages()
        }

    def end(
        self,
        opening: OpenMinibatch,
        reports: Sequence[Report],
        ids: Mapping[str, str] = NO_TOPIC_IDS,
    ) -> None:
        """Complete the minibatch from the reports that Spark handed over, then let sinks conclude
        it; `ids` are those of topics that were first read in it.
        """
        self._minibatches.complete(opening, reports, [sink.name for sink in self.sinks], ids)
        minibatch = opening.row.minibatch
        conclude(self.client, self.sinks, minibatch, self.runtime, self._stages())

    def holds(self, opening: OpenMinibatch) -> bool:
        """Say whether the minibatch is still this run's to complete."""
        return self._minibatches.stands(opening)

    def beat(self, *, ended: bool = False) -> None:
        """Say that the run lives, or that it has ended. Raises `Fenced` when it was replaced."""
        Owners(self.client).beat(self.run, self.nonce, ended=ended)

    def _stages(self) -> Stages:
        return Stages(self.client, self.run, self.process, self.runtime)

    def _staged(self) -> Iterator[tuple[Sink, Sink]]:
        """Give each sink that has a second stage, and that."""
        for sink in self.sinks:
            if (stage := sink.stage) is not None:
                yield sink, stage

    def _with_stages(self) -> list[Sink]:
        """Give every destination: the sinks, and the stages after them."""
        return [*self.sinks, *filter(None, (sink.stage for sink in self.sinks))]

    def _close(self, opening: OpenMinibatch) -> int:
        closing = Closing(
            self.client,
            opening,
            self.sinks,
            self.identity,
            self._journal,
            self.process,
            self.runtime,
        )
        return closing.run()


def conclude(
    client: LedgerClient,
    sinks: Sequence[Sink],
    minibatch: Minibatch,
    runtime: Runtime,
    stages: Stages,
) -> None:
    """Conclude a minibatch that is complete, at every sink that does something at its end, and hand
    it to the stage after it.
    """
    for sink in sinks:
        if sink.concludes:
            at = (minibatch.generation, minibatch.batch)
            for ended in _ended(client, sink.name, make_prefix(client.pipeline, sink.name, *at)):
                _patiently(sink, ended, runtime)
                stages.hand_over(sink, ended)


def conclude_before(
    client: LedgerClient, sinks: Sequence[Sink], opened: Minibatch, runtime: Runtime, stages: Stages
) -> None:
    """Conclude what older generations have complete, and what stayed of a sink that was left out
    for a while, before its rows are let go.
    """
    for sink in sinks:
        if sink.concludes:
            for ended in _ended(client, sink.name, make_prefix(client.pipeline, sink.name)):
                older = ended.minibatch.generation < opened.generation
                if older or is_unswept(ended.minibatch, opened):
                    _patiently(sink, ended, runtime)
                    stages.hand_over(sink, ended)


def _ended(client: LedgerClient, sink: str, start: str) -> Iterator[Ended]:
    """Give each minibatch of which rows are complete, with what stands at its places."""
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
            yield Ended(client.pipeline, sink, minibatch, parts)


def _patiently(sink: Sink, ended: Ended, runtime: Runtime) -> None:
    """Conclude it, and again while that may help: a conclusion may be repeated."""
    last: Exception = NotDelivered("not tried")
    for _ in sink.retry.tries(runtime):
        try:
            sink.conclude(ended)
        except (NotDelivered, OutcomeUnknown) as error:
            last = error
        except SemelError:
            raise
        except Exception as error:  # noqa: BLE001 - nobody classified it, and it may be repeated
            last = error
        else:
            return
    raise NotDelivered(
        f"pipeline {ended.pipeline!r}, sink {ended.sink!r}, minibatch {ended.minibatch}: its "
        f"events are delivered, and its end could not be told ({last}). Nothing is lost: see that "
        "the destination can be reached, then restart the query, which tells it"
    ) from last
