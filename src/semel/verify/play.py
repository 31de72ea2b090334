"""Playing a pipeline from its first start to its end, through whatever its plan has in store.

Always true:
- Spark's side of the promise is kept: the same batch id brings the same rows, and the next one
  comes only after the driver has completed the one before;
- a person decides only when no call can be on its way any more, and looks at the destination first;
- towards the end nothing goes wrong any more, so that what is missing then is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Attempt
from semel.ledger.parked import read_parked, resolve
from semel.protocol import ParkedState
from semel.verify.cases import SINK
from semel.verify.cluster import Broken, Stopped
from semel.verify.inputs import cut
from semel.verify.scheduler import Endless
from semel.verify.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from semel.ledger.minibatches import Opening
    from semel.ledger.rows import ParkedRow
    from semel.verify.cluster import Cluster, Lead
    from semel.verify.inputs import Minibatches
    from semel.verify.stage import Ranges

STARTS_MAX = 40
"""A pipeline that has to be started more often than this does not come to its end."""
DRAINS = 4


@dataclass(eq=False)
class Play:
    """One pipeline, its input cut into minibatches, and how its people behave.

    Attributes:
        chance: what is left to chance; None in worlds where a script decides.
        loses: how likely the checkpoint is lost, or an older copy of it restored, when the query
            has stopped.
        speculates: how likely a partition gets a second attempt at once.
        deaf: whether nobody ever answers for what is parked.
        peace: what makes an end of the faults.
    """

    cluster: Cluster
    minibatches: Minibatches
    chance: Random | None = None
    loses: float = 0.0
    speculates: float = 0.0
    deaf: bool = False
    peace: Callable[[], None] = lambda: None
    done: Callable[[int], None] = lambda _: None
    batch: int = 0
    starts: int = 0
    generations: int = 1
    ended: bool = False
    cuts: dict[str, Minibatches] = field(default_factory=dict)

    def run(self) -> None:
        """Play to the end. Raises `Broken` or `Endless` when the pipeline does not come there."""
        while not self.ended:
            self.starts += 1
            if self.starts > STARTS_MAX:
                raise Endless("the query was started again and again")
            if self.starts > STARTS_MAX // 2:
                self.peace()
            try:
                self._start()
            except Stopped as stopped:
                if stopped.person and self.deaf:
                    self.cluster.hub.settle()
                    return
                if stopped.person:
                    self.resolve()
                self._between()

    def play_out(self) -> tuple[str, ...]:
        """Play until it comes to its end or never will; say what happened that never may."""
        notes = []
        try:
            self.run()
        except (Broken, Endless) as stop:
            notes.append(f"{type(stop).__name__}: {stop}")
        finally:
            self.cluster.hub.end()
        return (*notes, *self.cluster.findings())

    def _start(self) -> None:
        lead = self.cluster.start()
        while self.batch < len(self.minibatches):
            if self.batch == len(self.minibatches) - 1:
                self.peace()
                self.resolve()
            elif self._happens(0.2):
                self.resolve()
            self._minibatch(lead)
        self.peace()
        self.resolve()
        for _ in range(DRAINS):
            self.cluster.drive(lead, lead.driver.drain)
        self.ended = True

    def _minibatch(self, lead: Lead) -> None:
        cluster, batch = self.cluster, self.batch
        opening = self._begin(lead, batch)
        stage = Stage(cluster, lead, opening, self.minibatches[batch], self.chance, self.speculates)
        reports = stage.run()
        cluster.drive(lead, lambda: lead.driver.end(opening, reports))
        self.batch = batch + 1
        self.done(self.batch)

    def _begin(self, lead: Lead, batch: int) -> Opening:
        query, ranges = self.cluster.query, self.minibatches[batch]
        self.cuts[query] = self.minibatches

        def begin() -> Opening:
            opening = lead.driver.begin(query, batch)
            if self.cluster.lead is not lead:
                self._send_a_task_all_the_same(lead, opening, ranges)
            return opening

        try:
            opening: Opening = self.cluster.drive(lead, begin)
        except Broken as broken:
            if not self._refused_as_it_should(broken):
                raise
            raise Stopped(None) from broken
        return opening

    def _send_a_task_all_the_same(self, lead: Lead, opening: Opening, ranges: Ranges) -> None:
        """A driver that was replaced and does not know it yet starts a task."""
        for partition, rows in list(ranges.items())[:1]:
            attempt = Attempt(lead.driver.run, next(lead.tasks))
            title = f"attempt {attempt} of partition {partition}, for a replaced driver"
            lead.machine.wire.title = title
            self.cluster.body(lead, opening, partition, rows, attempt, lead.machine)()

    # -- lost checkpoints

    def _between(self) -> None:
        """The query has stopped: its checkpoint may get lost, or an older copy of it come back."""
        if self.batch >= len(self.minibatches) - 1 or not self._happens(self.loses):
            return
        if self.chance is None:
            return
        back = self.chance.choice((0, 0, 1, 2, 3))
        if back:
            self.batch = max(0, self.batch - back)
            self._tell(f"an older checkpoint was restored: batch {self.batch} is next")
            return
        starts = {
            name: self.chance.randint(0, reached) for name, reached in self._reached().items()
        }
        self.generations += 1
        self.cluster.query = f"query-{self.generations}"
        self.minibatches = tail_apart(
            cut(self.cluster.feed, self.chance.randint(1, 3), self.chance, starts), self.cluster
        )
        self.batch = 0
        self._tell(f"the checkpoint was lost: the input is read again from {starts}")

    def _reached(self) -> dict[str, int]:
        """How far Spark has come with each partition, by the batches it has committed."""
        reached = dict.fromkeys(self.cluster.feed.partitions, 0)
        if self.minibatches:
            for name in reached:
                lows = [batch[name][0] for batch in self.minibatches if name in batch]
                reached[name] = min(lows, default=0)
        for batch in self.minibatches[: self.batch]:
            for name, (_, high) in batch.items():
                reached[name] = high
        return reached

    def _refused_as_it_should(self, broken: Broken) -> bool:
        """Counted ids do not outlive a checkpoint: then the old one has to be found again."""
        if self.cluster.case.identities.identity.survives_lost_checkpoint:
            return False
        opened = self.cluster.opened()
        if opened is None or "checkpoint was lost" not in str(broken):
            return False
        self.cluster.query, self.batch = opened.query, opened.minibatch.batch
        self.minibatches, self.loses = self.cuts[opened.query], 0.0
        self._tell("the old checkpoint was found again")
        return True

    # -- people

    def resolve(self) -> None:
        """Wait until no call can be on its way, look at the destination, and decide what is
        parked.
        """
        self.cluster.hub.settle()
        if self.deaf:
            return
        person = self.cluster.person()
        for key, row, _ in read_parked(person.scribe, SINK):
            if row.state in (ParkedState.HELD, ParkedState.REJECTED):
                decision = self._decision(row)
                if decision is None:
                    continue
                try:
                    resolve(person.scribe, SINK, key, decision, "a person", "looked")
                except ConfigurationError as error:
                    self._tell(f"it could not be resolved: {error}")

    def _decision(self, row: ParkedRow) -> ParkedState | None:
        number = self.cluster.feed.numbers[row.scope, row.event]
        destination = self.cluster.destination
        if destination.has(number):
            return ParkedState.DELIVERED
        if row.state is ParkedState.REJECTED:
            if self._happens(0.4):
                return None
            if not self._happens(0.3):
                destination.refuses.discard(number)
        if row.value is None:
            return None
        return ParkedState.DISCARDED if self._happens(0.2) else ParkedState.RESEND

    def _tell(self, what: str) -> None:
        self.cluster.story.note(self.cluster.hub.now, "the world", (what,))

    def _happens(self, probability: float) -> bool:
        return self.chance is not None and self.chance.random() < probability


def tail_apart(minibatches: Minibatches, cluster: Cluster) -> Minibatches:
    """Keep the last event of every partition for a minibatch at the end, in which nothing goes
    wrong.
    """
    last = {
        name: (cluster.feed.count(name) - 1, cluster.feed.count(name))
        for name in cluster.feed.partitions
        if cluster.feed.count(name)
    }
    cut_short = []
    for batch in minibatches:
        kept = {
            name: (low, min(high, last[name][0]))
            for name, (low, high) in batch.items()
            if low < last[name][0]
        }
        cut_short.append(kept)
    return (*cut_short, last)
