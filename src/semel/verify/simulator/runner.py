"""Runs a pipeline from its first start to its end, through the faults of its plan.

Always true:
- Spark keeps its side of the promise: the same batch id has the same rows, and the next one comes
  only after the driver has completed the one before;
- a person decides only when no call can be in flight, and looks at the destination first;
- towards the end there are no faults, so that an event that is missing then is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Attempt
from semel.ledger import read_parked, resolve_parked
from semel.protocol import ParkedState
from semel.verify.simulator.cases import DEADLINE_S, LEASE_S
from semel.verify.simulator.cluster import PipelineBroken, QueryStopped
from semel.verify.simulator.inputs import cut, tail_apart
from semel.verify.simulator.scheduler import Endless
from semel.verify.simulator.start import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from semel.ledger import OpenMinibatch, ParkedRow
    from semel.verify.simulator.cases import Case
    from semel.verify.simulator.changes import Changes
    from semel.verify.simulator.cluster import Cluster, Lead
    from semel.verify.simulator.inputs import Minibatches
    from semel.verify.simulator.start import Ranges

STARTS_MAX = 40
"""A pipeline that must be started more often than this never ends."""
DRAINS = 25
STOPS = 0.4
"""How likely the run is asked to stop in a minibatch, in a world with orderly stops."""
STOPS_AFTER_S = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 5.0)
RESENDS_MOST = 2
"""After so many failed resends of an event, a person discards it."""


@dataclass(eq=False)
class Runner:
    """One pipeline, its input cut into minibatches, and the behaviour of its operators.

    Attributes:
        chance: the source of randomness; None in scripted worlds.
        loses: how likely the checkpoint is lost, or replaced by an older copy, when the query has
            stopped.
        speculates: how likely a partition gets two attempts at the same time.
        deaf: whether parked events are never resolved.
        stops: the source of randomness of orderly stops; None if there are none.
        quiet: stops the faults.
        changes: the changes to the pipeline while it is stopped.
        unmoved: the first batch to which an older copy of the checkpoint may return.
    """

    cluster: Cluster
    minibatches: Minibatches
    chance: Random | None = None
    loses: float = 0.0
    speculates: float = 0.0
    deaf: bool = False
    stops: Random | None = None
    quiet: Callable[[], None] = lambda: None
    changes: Changes | None = None
    unmoved: int = 0
    done: Callable[[int], None] = lambda _: None
    batch: int = 0
    starts: int = 0
    generations: int = 1
    ended: bool = False
    lead: Lead | None = None
    cuts: dict[str, Minibatches] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        """Run to the end. Raises `PipelineBroken` or `Endless` if the pipeline never ends."""
        while not self.ended:
            self.starts += 1
            if self.starts > STARTS_MAX:
                raise Endless("the query was started again and again")
            if self.starts > STARTS_MAX // 2:
                self.quiet()
            try:
                self._start()
            except QueryStopped as stopped:
                if self.changes is not None:
                    self.changes.stopped(self.lead, self.batch, self.minibatches)
                if stopped.person and self.deaf:
                    self.cluster.hub.settle()
                    return
                if stopped.person:
                    self.resolve()
                self._between()

    def play_out(self) -> tuple[str, ...]:
        """Run until the pipeline ends or never will; return what must never happen."""
        notes = []
        try:
            self.run()
        except (PipelineBroken, Endless) as stop:
            notes.append(f"{type(stop).__name__}: {stop}")
        finally:
            self.cluster.hub.end()
        return (*notes, *self.cluster.findings())

    def _start(self) -> None:
        self.lead = None
        lead = self.lead = self.cluster.start()
        while self.batch < len(self.minibatches):
            if self.batch == len(self.minibatches) - 1:
                self.quiet()
                self.resolve()
            elif self._happens(0.2):
                self.resolve()
            self._minibatch(lead)
        self.quiet()
        self.resolve()
        for _ in range(DRAINS):
            self.cluster.drive(lead, lead.driver.drain)
            if not self._on_its_way(lead):
                break
            self.resolve()
            self.cluster.hub.pass_until(self.cluster.hub.now + LEASE_S + DEADLINE_S)
        self.cluster.drive(lead, lead.driver.drain)
        self.ended = True

    def _on_its_way(self, lead: Lead) -> bool:
        """Whether parked events are still to be decided or sent."""
        rows = [row for case in lead.cases for row in self.cluster.parked(case.name)]
        return any(not row.state.final for row in rows)

    def _minibatch(self, lead: Lead) -> None:
        cluster, batch = self.cluster, self.batch
        if self.stops is not None and self.stops.random() < STOPS:
            cluster.hub.later(self.stops.choice(STOPS_AFTER_S), cluster.ask_to_stop)
        opening = self._begin(lead, batch)
        opened = cluster.opened()
        replayed = opened is not None and opened.complete
        stage = Stage(cluster, lead, opening, self.minibatches[batch], self.chance, self.speculates)
        reports = stage.run()
        cluster.drive(lead, lambda: lead.driver.end(opening, reports))
        if self.changes is not None:
            self.changes.completed(lead, self.minibatches[batch], replayed=replayed)
        self.batch = batch + 1
        self.done(self.batch)
        if self.changes is not None and self.changes.is_time():
            self._note("the query was stopped")
            raise QueryStopped(None)

    def _begin(self, lead: Lead, batch: int) -> OpenMinibatch:
        query, ranges = self.cluster.query, self.minibatches[batch]
        self.cuts[query] = self.minibatches

        def begin() -> OpenMinibatch:
            opening = lead.driver.begin(query, batch)
            if self.cluster.lead is not lead:
                self._send_a_task_all_the_same(lead, opening, ranges)
            return opening

        try:
            opening: OpenMinibatch = self.cluster.drive(lead, begin)
        except PipelineBroken as broken:
            if not self._refused_as_it_should(broken):
                raise
            raise QueryStopped(None) from broken
        return opening

    def _send_a_task_all_the_same(self, lead: Lead, opening: OpenMinibatch, ranges: Ranges) -> None:
        """Start a task from a driver that was replaced and does not know it yet."""
        known = [item for item in ranges.items() if item[0] in self.cluster.feed.partitions]
        for partition, rows in known[:1]:
            attempt = Attempt(lead.driver.run, next(lead.tasks))
            title = f"attempt {attempt} of partition {partition}, for a replaced driver"
            lead.machine.wire.title = title
            self.cluster.body(lead, opening, partition, rows, attempt, lead.machine)()

    # -- lost checkpoints

    def _between(self) -> None:
        """Between two starts the pipeline may change, and its checkpoint may be lost or replaced by
        an older copy.
        """
        if self.changes is not None:
            self._change(self.changes)
        if self.batch >= len(self.minibatches) - 1 or not self._happens(self.loses):
            return
        if self.chance is None:
            return
        back = self.chance.choice((0, 0, 1, 2, 3))
        if back:
            self.batch = max(min(self.unmoved, self.batch), self.batch - back)
            self._note(f"an older checkpoint was restored: batch {self.batch} is next")
            return
        starts = {
            name: self.chance.randint(0, reached) for name, reached in self._reached().items()
        }
        self.generations += 1
        if self.changes is not None:
            self.changes.lost_the_checkpoint()
        self.cluster.query = f"query-{self.generations}"
        self.minibatches = tail_apart(
            cut(self.cluster.feed, self.chance.randint(1, 3), self.chance, starts),
            self.cluster.feed,
        )
        self.batch = self.unmoved = 0
        self._note(f"the checkpoint was lost: the input is read again from {starts}")

    def _change(self, changes: Changes) -> None:
        scaled, released = self.cluster.partitions, self.cluster.destination.needs
        self.minibatches = changes.make(self.batch, self.minibatches)
        if self.cluster.partitions != scaled:
            self.cuts[self.cluster.query] = self.minibatches
            self.unmoved = self.floors[self.cluster.query] = self.batch
        if self.cluster.destination.needs != released:
            self.loses = 0.0  # input that is read again would have other content

    def _reached(self) -> dict[str, int]:
        """Return how far Spark has read each partition, in the batches that it has committed."""
        reached = dict.fromkeys(self.cluster.feed.partitions, 0)
        if self.minibatches:
            for name in reached:
                lows = [batch[name][0] for batch in self.minibatches if name in batch]
                reached[name] = min(lows, default=0)
        for batch in self.minibatches[: self.batch]:
            for name, (_, high) in batch.items():
                reached[name] = high
        return reached

    def _refused_as_it_should(self, broken: PipelineBroken) -> bool:
        """Whether a refusal is correct. Counted ids do not survive a lost checkpoint: the old one
        is then restored. Some changes are refused too.
        """
        if self.changes is not None and self.changes.refused(broken):
            return True
        if self.cluster.case.identities.identity.survives_lost_checkpoint:
            return False
        opened = self.cluster.opened()
        if opened is None or "checkpoint was lost" not in str(broken):
            return False
        self.cluster.query = opened.query
        self.unmoved = self.floors.get(opened.query, 0)
        self.batch = max(opened.minibatch.batch, self.unmoved)
        self.minibatches, self.loses = self.cuts[opened.query], 0.0
        self._note("the old checkpoint was restored")
        return True

    # -- people

    def resolve(self) -> None:
        """Wait until no call is in flight, look at the destination, and decide parked events."""
        self.cluster.hub.settle()
        if self.deaf:
            return
        person = self.cluster.person()
        for case in self.cluster.cases:
            for key, row, _ in read_parked(person.client, case.name):
                decision = self._decision(case, row)
                if decision is None:
                    continue
                try:
                    resolve_parked(person.client, case.name, key, decision, "a person", "looked")
                except ConfigurationError as error:
                    self._note(f"resolving failed: {error}")

    def _decision(self, case: Case, row: ParkedRow) -> ParkedState | None:
        """Decide by what the destination has. A dead letter is sent again without looking: nothing
        of it arrived.
        """
        in_vain = row.attempts >= RESENDS_MOST
        if row.state is ParkedState.RESEND and in_vain:
            return ParkedState.DISCARDED
        if row.state not in (ParkedState.HELD, ParkedState.REJECTED):
            return None
        number = self.cluster.feed.numbers[row.scope, row.event]
        destination = self.cluster.destinations[case.name]
        if row.state is ParkedState.REJECTED:
            if self._happens(0.4):
                return None
            if not self._happens(0.3):
                destination.refuses.discard(number)
        elif destination.has(number):
            return ParkedState.DELIVERED
        return ParkedState.DISCARDED if in_vain or self._happens(0.2) else ParkedState.RESEND

    def _note(self, what: str) -> None:
        self.cluster.story.note(self.cluster.hub.now, "the world", (what,))

    def _happens(self, probability: float) -> bool:
        return self.chance is not None and self.chance.random() < probability
