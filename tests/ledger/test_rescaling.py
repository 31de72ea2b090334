"""The number of partitions changes only between minibatches, and no entity loses its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from semel.delivery import Assignment, Driver, PartitionDelivery
from semel.errors import ConfigurationError, LedgerUnavailable
from semel.events import (
    Attempt,
    Counter,
    Given,
    Identity,
    bucket,
    bucket_name,
    sort,
)
from semel.ledger.client import LedgerClient
from semel.ledger.inspect.check import check_ledger
from semel.ledger.journal import Journal
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.runtime import Process
from semel.sinks import Function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from semel.events import Event
    from semel.ledger.store.commit import Requirement, Store, Update

CUSTOMERS = [f"customer-{number}" for number in range(40)]
COUNTER = Counter(entity="customer")
ME = Process("here", "boot", 1, "1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/ledger.db")
    yield opened
    opened.close()


class Pipeline:
    """A pipeline that remembers the ids that its sink got."""

    def __init__(self, store: Store, partitions: int, identity: Identity = COUNTER) -> None:
        self.given: list[tuple[str, object]] = []
        self.sink = Function(name="sink", function=self._take, window=10_000)
        self.identity = identity
        self.partitions = partitions
        self.client = LedgerClient(store, "pipeline")
        self.driver = Driver(
            self.client, [self.sink], self.identity, ME, f"run-{partitions}", partitions=partitions
        )
        self.driver.start()

    def _take(self, event: Event) -> None:
        self.given.append((event.entity, event.id))

    def minibatch(self, number: int, *, complete: bool = True) -> None:
        """One event of each customer."""
        rows = pa.RecordBatch.from_pydict({"customer": CUSTOMERS, "minibatch": [number] * 40})
        self.deliver("query", number, rows, complete=complete)

    def deliver(
        self, query: str, number: int, rows: pa.RecordBatch, *, complete: bool = True
    ) -> None:
        opening = self.driver.begin(query, number)
        reports = []
        places = bucket(rows.column("customer"), self.partitions)
        for place in range(self.partitions):
            part = sort(rows.filter(pa.array(places == place)), self.identity)
            assignment = Assignment(
                "pipeline",
                opening,
                self.identity,
                bucket_name(place, self.partitions),
                Attempt(self.driver.run, 100 * number + place),
                ME,
                place,
            )
            delivery = PartitionDelivery(assignment, [self.sink], self.client, Journal(self.client))
            reports += delivery.run([part])
        if complete:
            self.driver.end(opening, reports)


class _Dies:
    """A store that goes away for good after so many commits."""

    def __init__(self, store: Store, commits: int) -> None:
        self._store, self._left = store, commits
        self.read, self.scan, self.close = store.read, store.scan, store.close

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if not self._left:
            raise LedgerUnavailable("gone")
        self._left -= 1
        self._store.commit(requirements, updates)


def test_every_entity_goes_on_counting_in_its_new_partition(store: Store) -> None:
    first = Pipeline(store, 3)
    first.minibatch(0)
    first.minibatch(1)
    rescale_pipeline(first.client, 5)
    second = Pipeline(store, 5)
    second.minibatch(2)
    assert sorted(second.given) == sorted((customer, 3) for customer in CUSTOMERS)


def test_a_pipeline_that_starts_with_another_number_is_refused(store: Store) -> None:
    Pipeline(store, 3).minibatch(0)
    with pytest.raises(
        ConfigurationError,
        match=r"has 3 partitions.*`semel rescale pipeline 5`; or start it with 3",
    ):
        Pipeline(store, 5)


def test_an_open_minibatch_is_not_rescaled(store: Store) -> None:
    pipeline = Pipeline(store, 3)
    pipeline.minibatch(0, complete=False)
    with pytest.raises(ConfigurationError, match="not complete"):
        rescale_pipeline(pipeline.client, 5)


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_crash_before_the_switch_leaves_the_old_number_in_force(
    store: Store, commits: int
) -> None:
    first = Pipeline(store, 3)
    first.minibatch(0)
    dying = LedgerClient(_Dies(store, commits), "pipeline", patience_s=0.0)
    with pytest.raises(LedgerUnavailable):
        rescale_pipeline(dying, 5)
    again = Pipeline(store, 3)
    again.minibatch(1)
    rescale_pipeline(again.client, 5)
    after = Pipeline(store, 5)
    after.minibatch(2)
    assert sorted(after.given) == sorted((customer, 3) for customer in CUSTOMERS)


def test_ids_that_are_remembered_packed_follow_their_entities(store: Store) -> None:
    identity = Given("customer", ("payment",))
    payments = pa.RecordBatch.from_pydict(
        {"customer": [CUSTOMERS[at % 40] for at in range(5_000)], "payment": range(5_000)}
    )
    first = Pipeline(store, 2, identity)
    first.deliver("query", 0, payments)
    assert len(first.given) == 5_000
    rescale_pipeline(first.client, 3)
    second = Pipeline(store, 3, identity)
    second.deliver("another query, because the checkpoint was lost", 0, payments)
    assert second.given == []


@pytest.mark.parametrize("identity", [COUNTER, Given("customer", ("minibatch",))])
@pytest.mark.parametrize("back", [False, True])
def test_nothing_is_wrong_with_a_ledger_that_was_rescaled(
    store: Store, identity: Identity, back: bool
) -> None:
    first = Pipeline(store, 4, identity)
    for number in range(3):
        first.minibatch(number)
    partitions = [4, 3, 4] if back else [4, 3]
    for each in partitions[1:]:
        rescale_pipeline(first.client, each)
        assert check_ledger(store)[1] == []
    again = Pipeline(store, partitions[-1], identity)
    for number in range(3, 7):
        again.minibatch(number)
        assert check_ledger(store)[1] == []
