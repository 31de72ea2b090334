"""Changes to a stopped pipeline: sinks, columns, partitions.

Always true:
- only changes that the documentation allows are made; a change that the product refuses is undone;
- a sink must get the events of every minibatch that was completed, or half delivered, with it:
  removing it, adding another sink or rescaling does not change that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, Fenced
from semel.ledger import rescale_pipeline
from semel.protocol import Capability
from semel.verify.simulator.inputs import EXTRA, cut, tail_apart

if TYPE_CHECKING:
    from random import Random

    from semel.ledger import OpenRow
    from semel.verify.simulator.cluster import Cluster, Lead, PipelineBroken
    from semel.verify.simulator.inputs import Minibatches
    from semel.verify.simulator.start import Ranges

SCALES = (1, 2, 3)


@dataclass(eq=False)
class Changes:
    """The planned changes of one world, and the events that each sink must get.

    Attributes:
        joins: a sink that is added at a later start.
        leaves: a sink that is removed at a later start.
        releases: whether query and sinks get one more column.
        rescales: how often the number of partitions may change.
        due: the events that a sink which joined or left must get.
        earlier: events that were committed before a sink was added: whether it gets them when they
            are read again depends on the identity.
        begun: as `due`, for minibatches that are not complete, with their generation: a later one,
            after a lost or older checkpoint, closes them, and a sink that is removed then does not
            get their rest.
    """

    cluster: Cluster
    chance: Random
    joins: str | None = None
    leaves: str | None = None
    releases: bool = False
    rescales: int = 0
    left: str | None = None
    due: dict[str, set[int]] = field(default_factory=dict)
    begun: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    earlier: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for sink in (self.joins, self.leaves):
            if sink is not None:
                self.due[sink], self.begun[sink] = set(), set()
        if self.joins is not None:
            self.cluster.active.discard(self.joins)

    def stopped(self, lead: Lead | None, batch: int, minibatches: Minibatches) -> None:
        """Record, for a query that has stopped, which events its sinks must get."""
        opened = self.cluster.opened()
        if lead is None or opened is None or batch >= len(minibatches):
            return
        if (opened.query, opened.minibatch.batch) != (self.cluster.query, batch):
            return
        for case in lead.cases:
            if case.name in self.due:
                self._owe(case.name, minibatches[batch], opened)

    def _owe(self, sink: str, ranges: Ranges, opened: OpenRow) -> None:
        if opened.complete:
            self.due[sink] |= self.cluster.feed.numbers_in(ranges)
            return
        pending = self.cluster.pending(sink, opened.minibatch)
        half = {name: rows for name, rows in ranges.items() if name in pending}
        generation = opened.minibatch.generation
        self.begun[sink] |= {(generation, each) for each in self.cluster.feed.numbers_in(half)}

    def lost_the_checkpoint(self) -> None:
        """Begin a new generation."""
        for begun in self.begun.values():
            begun.clear()

    def owed(self, sink: str) -> frozenset[int] | None:
        """Return the events that a sink must get; None for all."""
        if sink not in self.due:
            return None
        now = self.cluster.generation()
        begun = {number for generation, number in self.begun[sink] if generation == now}
        return frozenset(self.due[sink] | begun) - self.earlier

    def completed(self, lead: Lead, ranges: Ranges, *, replayed: bool) -> None:
        """Record a minibatch that was completed with these sinks; a replay of a complete one owes
        nothing to a sink that joined later.
        """
        for case in lead.cases:
            if case.name in self.due and not replayed:
                self.due[case.name] |= self.cluster.feed.numbers_in(ranges)

    def make(self, batch: int, minibatches: Minibatches) -> Minibatches:
        """Make a change, or none; return the minibatches from now on."""
        self._change_sinks(batch, minibatches)
        if not self._between_minibatches(batch) or self.chance.random() < 0.4:
            return minibatches
        if self.releases and self.cluster.newest().generation == 1:
            self._release()  # after a lost checkpoint, old events with a new column are `Diverged`
        elif self.rescales:
            return self._rescale(batch, minibatches)
        return minibatches

    def is_time(self) -> bool:
        """Whether the query is stopped now, between two minibatches, for a change."""
        left = self.joins or self.leaves or self.releases or self.rescales
        return bool(left) and self.chance.random() < 0.4

    def refused(self, broken: PipelineBroken) -> bool:
        """Whether the product correctly refused a change, which is then undone."""
        if self.left is None or "was removed" not in str(broken):
            return False
        self.cluster.active.add(self.left)
        self._note(f"sink {self.left} is back: leaving it out was refused")
        self.leaves, self.left = self.left, None
        return True

    def _change_sinks(self, batch: int, minibatches: Minibatches) -> None:
        if self.joins is not None and self.chance.random() < 0.6:
            self.cluster.active.add(self.joins)
            self.earlier = self._committed(batch, minibatches)
            self._note(f"sink {self.joins} is added")
            self.joins = None
        elif self.leaves is not None and self.chance.random() < 0.6:
            self.cluster.active.discard(self.leaves)
            self._note(f"sink {self.leaves} is left out")
            self.leaves, self.left = None, self.leaves

    def _between_minibatches(self, batch: int) -> bool:
        """Whether the newest minibatch is complete, and Spark has committed it."""
        opened = self.cluster.opened()
        if opened is None:
            return False
        mine = opened.query == self.cluster.query and opened.newest is None
        return mine and opened.complete and opened.minibatch.batch == batch - 1

    def _release(self) -> None:
        self.releases = False
        self.cluster.feed = self.cluster.feed.released()
        for destination in self.cluster.destinations.values():
            destination.needs = EXTRA
        self._note(f"a release adds column {EXTRA!r}")

    def _rescale(self, batch: int, minibatches: Minibatches) -> Minibatches:
        """Spread entities and the rest of the input over another number of partitions."""
        cluster = self.cluster
        self.rescales -= 1
        to = self.chance.choice([each for each in SCALES if each != cluster.partitions])
        try:
            rescale_pipeline(cluster.person().client, to)
        except (ConfigurationError, Fenced) as error:
            self._note(f"rescaling failed: {error}")
            return minibatches
        done = self._committed(batch, minibatches)
        cluster.feed, starts = cluster.feed.rescaled(to, done)
        cluster.partitions = to
        newest = cluster.newest()
        for destination in cluster.destinations.values():
            destination.rescaled.append(newest)
        self._note(f"the pipeline was rescaled to {to} partitions")
        pieces = cut(cluster.feed, self.chance.randint(1, 3), self.chance, starts)
        return (*({} for _ in range(batch)), *tail_apart(pieces, cluster.feed, starts))

    def _committed(self, batch: int, minibatches: Minibatches) -> frozenset[int]:
        """Return the events that Spark has committed, according to its checkpoint."""
        feed = self.cluster.feed
        left = frozenset[int]().union(*map(feed.numbers_in, minibatches[batch:]))
        return frozenset(fact.number for fact in feed.facts) - left

    def _note(self, what: str) -> None:
        self.cluster.story.note(self.cluster.hub.now, "the world", (what,))


def rescales_most(capabilities: set[Capability]) -> int:
    """Return how often a pipeline may be rescaled: a log cannot return to an earlier number."""
    return 1 if Capability.SEQUENCED in capabilities else 2
