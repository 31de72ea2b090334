"""Replies of the ledger that are lost, and processes that know less than they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from semel.errors import LedgerUnavailable
from semel.ledger import open_store
from semel.ledger.store import Key, Payload, Requirement, Store, Update
from semel.streams import Inbox, NewEvent


class LosingStore:
    """A store whose replies to the next commits are lost; `then` happens before the next try."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lose = 0
        self.lost = 0
        self.then: Callable[[], object] = lambda: None
        self.away = False

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self._answer()
        return self.store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        self._answer()
        return self.store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        self._answer()
        self.store.commit(requirements, updates)
        if self.lose:
            self.lose -= 1
            self.lost += 1
            self.then()
            raise LedgerUnavailable("the reply was lost")

    def close(self) -> None:
        self.store.close()

    def _answer(self) -> None:
        if self.away:
            raise LedgerUnavailable("the store is away")


@pytest.fixture
def losing(url: str) -> Iterator[LosingStore]:
    store = LosingStore(open_store(url))
    yield store
    store.close()


def events(count: int, *, ids: bool) -> list[NewEvent]:
    return [
        NewEvent(b"%d" % n, entity=f"e{n % 3}", source="s", id=str(n) if ids else None)
        for n in range(count)
    ]


def stored(inbox: Inbox) -> list[tuple[str, int]]:
    return sorted(
        (row["entity"], row["event"])
        for each in inbox.layout()
        for row in inbox.read(each.partition, each.begin, each.end).to_pylist()
    )


@pytest.mark.rows("S2")
def test_an_append_recognises_its_own_success(losing: LosingStore, url: str) -> None:
    with Inbox(losing, "orders") as inbox, Inbox(url, "orders") as other:
        losing.lose = 1
        inbox.create()
        assert losing.lost == 1
        for ids in (False, True):
            losing.lose = 1
            assert not any(each.repeat for each in inbox.append(events(9, ids=ids)))
            # Another process appends before the first one asks again.
            losing.lose = 1
            losing.then = lambda: other.append(events(9, ids=False))
            assert not any(
                each.repeat
                for each in inbox.append([NewEvent(b"new", entity="e0", id="x" if ids else None)])
            )
            losing.then = lambda: None
        assert losing.lost == 5
        found = stored(inbox)
    assert found == [
        *(("e0", n) for n in range(1, 15)),
        *((f"e{k}", n) for k in (1, 2) for n in range(1, 13)),
    ]


@pytest.mark.rows("S2")
@pytest.mark.parametrize("ids", [False, True])
def test_an_append_whose_events_were_read_and_pruned_recognises_its_own_success(
    losing: LosingStore, url: str, ids: bool
) -> None:
    with Inbox(losing, "orders", partitions=1) as inbox, Inbox(url, "orders") as other:
        inbox.create()
        losing.lose = 1
        losing.then = lambda: other.prune(keep_s=0)
        answers = inbox.append(events(6, ids=ids))
        assert [(each.event, each.repeat) for each in answers] == [
            (n // 3 + 1, False) for n in range(6)
        ]
        assert losing.lost == 1
        assert (other.begins(), other.ends()) == ({0: 6}, {0: 6})


@pytest.mark.rows("S2", "S3")
def test_who_never_got_the_answer_appends_again_and_gets_the_same_ids(
    losing: LosingStore, url: str
) -> None:
    with Inbox(losing, "orders", patience_s=0.1) as inbox:
        inbox.append(events(3, ids=True))
        given = [NewEvent(b"7", entity="e0", source="s", id="seven")]

        def leave() -> None:
            losing.away = True

        losing.lose, losing.then = 1, leave
        with pytest.raises(LedgerUnavailable):
            inbox.append(given)
        losing.away, losing.then = False, lambda: None
        [again] = inbox.append(given)
        assert (again.entity, again.event, again.repeat) == ("e0", 2, True)
        [after] = inbox.append([NewEvent(b"8", entity="e0")])
        assert (after.event, after.offset) == (3, again.offset + 1)
        inbox.register_reader("r")
        for at in (1, 2):
            losing.lose = 1
            inbox.reader_completed("r", {0: at})
        losing.lose = 1
        assert sum(not each.final for each in inbox.repartition(2)) == 2
        losing.lose = 1
        assert len(inbox.repartition(3)) == 9
        assert len(stored(inbox)) == 5


@pytest.mark.rows("S13")
def test_a_process_that_knows_less_than_is_stored_gives_no_number_twice(url: str) -> None:
    with Inbox(url, "orders") as one, Inbox(url, "orders") as other:
        for turn in range(6):
            for inbox in (one, other):
                [new] = inbox.append([NewEvent(b"x", entity="a", source="s", id=f"{turn}")])
                assert (new.event, new.repeat) == (turn + 1, inbox is other)
        one.repartition(2)
        for n, inbox in enumerate((other, one, other), 7):
            [new] = inbox.append([NewEvent(b"x", entity="a")])
            assert (new.event, new.partition in (4, 5)) == (n, True)


def test_the_clean_path_reads_nothing_and_is_one_commit(losing: LosingStore) -> None:
    with Inbox(losing, "orders") as inbox:
        inbox.append(events(30, ids=False))
        calls: list[str] = []
        losing._answer = lambda: calls.append("call")  # type: ignore[method-assign]
        inbox.append([NewEvent(b"x", entity=f"e{n % 3}", id=str(n)) for n in range(30)])
        assert calls == ["call"]
