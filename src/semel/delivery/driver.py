"""The driver's part of a pipeline, without Spark: it opens, completes, closes and drains."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.delivery import concluding
from semel.delivery.closing import Closing
from semel.delivery.doubts import stop_if_held
from semel.delivery.resending import Resending
from semel.delivery.stages import Stages
from semel.delivery.surroundings import Surroundings
from semel.events import Minibatch, Position
from semel.ledger import finished as finishing
from semel.ledger.journal import Journal
from semel.ledger.minibatches import NO_IDS, Minibatches, Opening, Wish
from semel.ledger.owners import ROUTING, STAGE_OF, Owners
from semel.ledger.parked import read_parked
from semel.ledger.pruning import REMEMBER_S, Pruning
from semel.ledger.rows import OpenRow
from semel.ledger.sources import UNKNOWN, Sources
from semel.protocol import ParkedState
from semel.sinks.endings import stage_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from semel.events import Identity
    from semel.ledger.finished import Finished
    from semel.ledger.processes import Process
    from semel.ledger.reports import Report
    from semel.ledger.scribe import Scribe
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

    scribe: Scribe
    sinks: Sequence[Sink]
    identity: Identity
    process: Process
    nonce: str
    around: Surroundings = field(default_factory=Surroundings)
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
        self._journal = Journal(self.scribe)
        self._take_partitions()
        self._owners = Owners(self.scribe)
        self.run = self._owners.register(self.describe(), self.process, self.nonce)
        self._minibatches = Minibatches(self.scribe, self.run)
        return self.run

    def withdraw(self) -> None:
        """Take back what `start` wrote, where the run was refused before its first minibatch was
        opened: a start that was refused is not listed as a pipeline, nor its sinks.
        """
        self._owners.withdraw(self.nonce)

    def refuse_changed(self) -> None:
        """Raise `ConfigurationError` where `start` would: the name was used for something else."""
        self._take_partitions()
        Owners(self.scribe).refuse_changed(self.describe())

    def _take_partitions(self) -> None:
        """Where nobody asks for a number of partitions, take the recorded one, else the default."""
        if self.partitions is None and not isinstance(self.identity, Position):
            recorded = Owners(self.scribe).described()
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
        sources: Sources = UNKNOWN,
        inputs: tuple[str, ...] = (),
    ) -> Opening:
        """Open a minibatch; `starts` tells where Spark begins in each source partition, if known,
        `sources` which topics they are of, `inputs` where each input stands after it.

        Where `settled` is set on what it gives, no task is run: `end` takes no reports. Raises
        `Fenced`, `Diverged`, `ConfigurationError`.
        """
        self.drain()
        wish = Wish(
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
        opening = self._minibatches.open(wish)
        generation, lost_before = opening.row.minibatch.generation, opening.lost_before
        if generation != self._closed:
            judged = opening.new_generation and opening.row.continues
            if judged:
                self.drain()  # what was parked of it may have been discarded
            opened = opening.row.minibatch
            concluding.conclude_before(self.scribe, self.sinks, opened, self.around, self._stages())
            if self._close(opening) or judged:
                opening = self._minibatches.open(wish)
            for sink in self._with_stages():
                place = f"pipeline {self.scribe.pipeline!r}, sink {sink.name!r}"
                stop_if_held(self.scribe, sink, place)
            self._closed = generation
        lost = lost_before is not None
        if lost or opening.row.serial % PRUNE_EVERY == 0:
            names = [sink.name for sink in self._with_stages()]
            Pruning(self.scribe, self.remember_s).run(names, lost_before or 0)
        return opening

    def finished(self) -> Mapping[str, Finished] | None:
        """Tell what this batch job delivered, by sink; None while it is not finished."""
        return finishing.finished(self.scribe)

    def finish(self, opening: Opening) -> Mapping[str, Finished]:
        """Leave the permanent row of a batch job whose only minibatch is complete."""
        return finishing.finish(self.scribe, opening)

    def recount(self) -> Opening:
        """Give what the tasks of a finished batch job need to count it again; nothing is opened."""
        row = OpenRow(self.run, Minibatch(1, 0), 1, "", self.partitions)
        return Opening(row, row.dump(), counts=True)

    def compare(self, reports: Sequence[Report]) -> None:
        """Compare what was counted with what was delivered. Raises `Diverged`."""
        finishing.compare(self.scribe, reports, [sink.name for sink in self.sinks])

    def drain(self, *, waits: bool = False) -> int:
        """Send parked events that are free to go now, or also those that soon are; say how many."""
        return sum(
            Resending(self.scribe, sink, self.process, self.around, waits=waits).drain()
            for sink in self._with_stages()
        )

    def parked(self) -> dict[str, int]:
        """Tell how many events wait for a person or for their turn, by sink."""
        return {
            sink.name: sum(not row.state.final for _, row, _ in read_parked(self.scribe, sink.name))
            for sink in self._with_stages()
        }

    def undelivered(self) -> dict[str, Counter[ParkedState]]:
        """Count events that were parked or dropped and not delivered since, by sink and state."""
        return {
            sink.name: Counter(
                row.state
                for _, row, _ in read_parked(self.scribe, sink.name)
                if not row.state.only_marks and row.state is not ParkedState.DELIVERED
            )
            for sink in self._with_stages()
        }

    def end(
        self, opening: Opening, reports: Sequence[Report], ids: Mapping[str, str] = NO_IDS
    ) -> None:
        """Complete the minibatch from the reports that Spark handed over, then let sinks conclude
        it; `ids` are those of topics that were first read in it.
        """
        self._minibatches.complete(opening, reports, [sink.name for sink in self.sinks], ids)
        minibatch = opening.row.minibatch
        concluding.conclude(self.scribe, self.sinks, minibatch, self.around, self._stages())

    def holds(self, opening: Opening) -> bool:
        """Say whether the minibatch is still this run's to complete."""
        return self._minibatches.stands(opening)

    def beat(self, *, ended: bool = False) -> None:
        """Say that the run lives, or that it has ended. Raises `Fenced` when it was replaced."""
        Owners(self.scribe).beat(self.run, self.nonce, ended=ended)

    def _stages(self) -> Stages:
        return Stages(self.scribe, self.run, self.process, self.around)

    def _staged(self) -> Iterator[tuple[Sink, Sink]]:
        """Give each sink that has a second stage, and that."""
        for sink in self.sinks:
            if (stage := stage_after(sink)) is not None:
                yield sink, stage

    def _with_stages(self) -> list[Sink]:
        """Give every destination: the sinks, and the stages after them."""
        return [*self.sinks, *filter(None, map(stage_after, self.sinks))]

    def _close(self, opening: Opening) -> int:
        closing = Closing(
            self.scribe,
            opening,
            self.sinks,
            self.identity,
            self._journal,
            self.process,
            self.around,
        )
        return closing.run()
