"""What is kept and what is removed: age, readers, remembered ids; and other partitions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from semel.errors import ConfigurationError, RangeUnavailable
from semel.ledger import INBOX_TABLE, Ledger, check_ledger, open_store
from semel.ledger.store import Key, Payload, Requirement, Store, Update
from semel.runtime import SystemClock
from semel.streams import Inbox, InboxReader, NewEvent, Pruned


class Later(SystemClock):
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead_s


@pytest.fixture
def clock() -> Later:
    return Later()


def event(number: int) -> NewEvent:
    return NewEvent(b"%d" % number, entity=f"e{number % 3}", source="s", id=str(number))


def check(url: str) -> None:
    store = open_store(url)
    assert check_ledger(store)[1] == []
    store.close()


def test_events_are_removed_when_they_are_old_and_every_reader_has_completed_them(
    url: str, clock: Later
) -> None:
    with Inbox(url, "orders", partitions=1, remember_s=1000, clock=clock) as inbox:
        for number in range(10):
            inbox.append([event(number), event(number + 100)])
        assert inbox.prune(keep_s=100) == Pruned(0, 0)
        with pytest.raises(ConfigurationError, match="keep_s must be 0 or greater, got -1"):
            inbox.prune(keep_s=-1)
        assert inbox.register_reader("charges") == inbox.register_reader("charges")
        inbox.register_reader("archive")
        clock.ahead_s += 200
        assert inbox.prune(keep_s=100) == Pruned(0, 0)
        inbox.reader_completed("charges", {0: 20})
        assert inbox.prune(keep_s=100) == Pruned(0, 0)
        inbox.reader_completed("archive", {0: 7})
        inbox.reader_completed("archive", {0: 3})
        assert {each.reader: dict(each.completed) for each in inbox.readers()} == {
            "archive": {0: 7},
            "charges": {0: 20},
        }
        check(url)
        assert inbox.prune(keep_s=100) == Pruned(6, 0)
        assert (inbox.begins(), inbox.ends()) == ({0: 6}, {0: 20})
        with pytest.raises(RangeUnavailable, match=r"offsets 5 to 7 was pruned.*begins at 6"):
            inbox.read(0, 5, 7)
        assert inbox.read(0, 6, 20).num_rows == 14
        check(url)
        # What is pruned is still recognised as a repeat, until its id is forgotten.
        with Inbox(url, "orders", remember_s=1000, clock=clock) as other:
            [again] = other.append([event(0)])
            assert (again.repeat, again.event, again.offset) == (True, 1, 0)
        inbox.append([event(50)])
        assert inbox.forget_reader("archive")
        assert not inbox.forget_reader("archive")
        clock.ahead_s += 900
        assert inbox.prune(keep_s=100) == Pruned(14, 20)
        assert (inbox.begins(), inbox.ends()) == ({0: 20}, {0: 21})
        check(url)
        with Inbox(url, "orders", remember_s=1000, clock=clock) as other:
            [new] = other.append([event(0)])
            assert (new.repeat, new.entity, new.event) == (False, "e0", 8)
        assert inbox.read(0, 20, 22)["id"].to_pylist() == ["50", "0"]
    with Ledger(url) as ledger:
        assert dict(ledger.rows("producers")).keys() == {"orders/s/50", "orders/s/0"}
        assert len(ledger.rows("inbox")) == 2
        assert len(ledger.rows("counters")) == 3


class Busy:
    """A store in which another process appends whenever groups of events are read."""

    def __init__(self, store: Store, append: Callable[[], object]) -> None:
        self._store = store
        self._append = append
        self.read, self.commit, self.close = store.read, store.commit, store.close

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        if table == INBOX_TABLE:
            self._append()
        return self._store.scan(table, prefix, after=after, limit=limit)


def test_events_are_removed_while_others_append_without_a_pause(url: str) -> None:
    numbers = iter(range(10**6))
    with Inbox(url, "orders", partitions=1) as producer:

        def append() -> None:
            producer.append([event(next(numbers))])

        for _ in range(10):
            append()
        producer.register_reader("charges")
        producer.reader_completed("charges", {0: 7})
        with Inbox(Busy(open_store(url), append), "orders") as inbox:
            assert inbox.prune(keep_s=0) == Pruned(7, 0)
        begin, end = producer.begins()[0], producer.ends()[0]
        assert (begin, end) == (7, next(numbers))
        assert producer.read(0, begin, end).column("id").to_pylist() == [
            str(number) for number in range(begin, end)
        ]
    check(url)


def test_ids_are_forgotten_while_their_events_are_kept(url: str, clock: Later) -> None:
    with Inbox(url, "orders", partitions=1, remember_s=10, clock=clock) as inbox:
        inbox.append([event(1)])
        clock.ahead_s += 20
        assert inbox.prune(keep_s=100) == Pruned(0, 1)
        assert inbox.prune(keep_s=100) == Pruned(0, 0)
        check(url)
        assert inbox.read(0, 0, 1)["id"].to_pylist() == ["1"]
        clock.ahead_s += 100
        assert inbox.prune(keep_s=100) == Pruned(1, 0)
        with Ledger(url) as ledger:
            assert ledger.rows("inbox") == []
        check(url)


def test_times_of_a_partition_do_not_go_back_with_the_clock_of_a_process(
    url: str, clock: Later
) -> None:
    behind = Later()
    behind.ahead_s = -1_000_000.0
    with (
        Inbox(url, "orders", partitions=1, remember_s=1000, clock=clock) as inbox,
        Inbox(url, "orders", remember_s=1000, clock=behind) as other,
    ):
        inbox.append([event(1)])
        other.append([event(2)])
        clock.ahead_s += 500
        assert inbox.prune(keep_s=600) == Pruned(0, 0)
        assert other.prune(keep_s=0) == Pruned(0, 0)
        found = inbox.read(0, 0, 2)
        assert found["id"].to_pylist() == ["1", "2"]
        first, second = found["timestamp"].to_pylist()
        assert first == second
        assert inbox.append([event(2)])[0].repeat
        clock.ahead_s += 600
        assert inbox.prune(keep_s=600) == Pruned(2, 2)


def test_what_is_there_when_a_reader_is_registered_is_kept_for_it(url: str) -> None:
    """Also if `prune` has just seen that there was no reader."""
    store = Registering(open_store(url))
    with Inbox(store, "orders", partitions=1) as inbox, Inbox(url, "orders") as other:
        inbox.append([event(1)])
        store.then = lambda: other.register_reader("late")
        assert inbox.prune(keep_s=0) == Pruned(0, 0)
        assert store.then is None, "it had decided to remove the event"
        assert other.read(0, 0, 1).num_rows == 1
        other.reader_completed("late", {0: 1})
        assert inbox.prune(keep_s=0) == Pruned(1, 0)


class Registering:
    """A store that does something, once, just before a commit."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.then: Callable[[], object] | None = None
        self.read, self.scan, self.close = store.read, store.scan, store.close

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if self.then is not None:
            then, self.then = self.then, None
            then()
        self.store.commit(requirements, updates)


def test_readers_are_named_and_known(inbox: Inbox) -> None:
    with pytest.raises(ConfigurationError, match="has no reader 'x'; register it first"):
        inbox.reader_completed("x", {0: 1})
    with pytest.raises(ConfigurationError, match="got '0': 1"):
        inbox.reader_completed("x", {"0": 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="has no inbox 'orders'"):
        inbox.register_reader("x")
    inbox.create()
    with pytest.raises(ConfigurationError, match="reader must be a non-empty string, got ''"):
        inbox.register_reader("")
    registered = inbox.register_reader("x")
    assert isinstance(registered, InboxReader)
    assert inbox.readers() == [registered]


@pytest.mark.rows("A21")
def test_other_partitions_lose_and_reorder_nothing_while_producers_append(url: str) -> None:
    stopped = threading.Event()
    count = 0

    def produce() -> None:
        nonlocal count
        with Inbox(url, "orders") as inbox:
            while not stopped.is_set():
                inbox.append(
                    [
                        NewEvent(b"%d" % (count + n), entity=f"e{(count + n) % 40}")
                        for n in range(20)
                    ]
                )
                count += 20

    with Inbox(url, "orders", partitions=2) as inbox:
        inbox.create()
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for partitions in (4, 3, 1, 2):
                before = inbox.ends()
                wanted = sum(before.values()) + 60
                while sum(inbox.ends().values()) < wanted and producer.is_alive():
                    stopped.wait(0.01)
                layout = inbox.repartition(partitions)
                assert sum(not each.final for each in layout) == partitions
        finally:
            stopped.set()
            producer.join()
        layout = inbox.layout()
        check(url)
        assert {each.partition: each.parents for each in layout} == {
            0: (), 1: (),
            2: (0,), 3: (0,), 4: (1,), 5: (1,),
            6: (2, 3), 7: (3, 4), 8: (4, 5),
            9: (6, 7, 8),
            10: (9,), 11: (9,),
        }  # fmt: skip
        assert [each.final for each in layout] == [True] * 10 + [False] * 2
        numbers: dict[str, list[int]] = {}
        values: list[int] = []
        for each in layout:  # parents before children
            for row in inbox.read(each.partition, 0, each.end).to_pylist():
                values.append(int(row["value"]))
                of = numbers.setdefault(row["entity"], [])
                assert row["event"] == len(of) + 1
                of.append(int(row["value"]))
                assert of == sorted(of)
        assert sorted(values) == list(range(count))


def test_the_number_of_partitions_is_recorded(url: str) -> None:
    with Inbox(url, "orders", partitions=3) as inbox:
        inbox.create()
        inbox.create()
    with (
        Inbox(url, "orders", partitions=4) as other,
        pytest.raises(ConfigurationError, match=r"has 3 partitions, got partitions=4.*repartition"),
    ):
        other.append([event(1)])
    with Inbox(url, "orders") as other:
        other.append([event(1)])
        assert len(other.repartition(4)) == 7
        assert other.repartition(4) == other.layout()
    with Inbox(url, "orders", partitions=4) as other:
        assert other.append([event(1)])[0].repeat
    with (
        Inbox(url, "refunds") as unknown,
        pytest.raises(ConfigurationError, match="has no inbox 'refunds'"),
    ):
        unknown.ends()
    for bad in (0, 1025, True, "4"):
        with pytest.raises(ConfigurationError, match="partitions must be an integer from 1"):
            Inbox(url, "orders", partitions=bad)  # type: ignore[arg-type]
    for name in ("", "a\n", "x" * 101, None, "pipeline:charges"):
        with pytest.raises(ConfigurationError, match="stream must"):
            Inbox(url, name)  # type: ignore[arg-type]
