"""A pipeline that delivers the events of an inbox with the real driver and tasks, and no Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from semel import sink
from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.events import Attempt, Event, Given, Identity, Position
from semel.ledger import Journal, LedgerClient, open_store
from semel.runtime import Process
from semel.streams import Inbox

GIVEN = Given(entity="entity", event=("event",))
POSITION = Position()


def takes(event: Event) -> None:
    """Take every event."""
    del event


@dataclass
class InboxPipeline:
    """Delivers what the inbox has, one minibatch for each call of `deliver`."""

    ledger: str
    stream: str = "orders"
    name: str = "charges"
    identity: Identity = POSITION
    take: Callable[[Event], None] = takes
    _done: dict[int, int] = field(default_factory=dict)
    _batch: int = 0

    def __post_init__(self) -> None:
        me = Process.here()
        self._store = open_store(self.ledger)
        self._client = LedgerClient(self._store, self.name)
        self._sink = sink(name="charge")(self.take)
        self._driver = Driver(self._client, [self._sink], self.identity, me, f"n-{self.name}")
        self._driver.start()

    def deliver(self) -> None:
        """Deliver the events that came since the last call."""
        opening = self._driver.begin("query", self._batch)
        reports = []
        with Inbox(self.ledger, self.stream) as inbox:
            for task, (partition, end) in enumerate(inbox.ends().items(), 1):
                table = inbox.read(partition, self._done.get(partition, 0), end)
                self._done[partition] = end
                if not table.num_rows:
                    continue
                table = table.drop_columns(["attributes"])
                named = f"{self.stream}/{partition}"
                if self.identity is not POSITION:
                    named = str(partition)
                    table = table.sort_by([("event", "ascending"), ("entity", "ascending")])
                assignment = Assignment(
                    self.name,
                    opening,
                    self.identity,
                    named,
                    Attempt(self._driver.run, self._batch * 100 + task),
                    Process.here(),
                    0,
                )
                delivery = PartitionDelivery(
                    assignment, [self._sink], self._client, Journal(self._client)
                )
                reports += delivery.run(table.combine_chunks().to_batches())
        self._driver.end(opening, reports)
        self._batch += 1

    def close(self) -> None:
        self._store.close()
