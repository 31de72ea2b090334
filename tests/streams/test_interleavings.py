"""Everything at once, by chance: repeated appends, lost replies, and in the middle of a commit
other processes with other clocks, which append, read, prune, or change the partitions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random, randrange

import pytest

from semel.errors import LedgerUnavailable, RepeatDiffers
from semel.ledger import check_ledger, open_store
from semel.ledger.store import Key, Payload, Requirement, Store, Update
from semel.runtime import SystemClock
from semel.streams import Inbox, NewEvent, Stored

WORLDS = 12
STEPS = 40
ENTITIES = 4
DAY_S = 24 * 3600.0


class Skewed(SystemClock):
    """A clock that is ahead or behind, and does not wait."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def wall(self) -> float:
        return super().wall() + self.ahead_s

    sleep = staticmethod(lambda _: None)


class Interrupted:
    """A store before each of whose commits others may act, and whose replies may be lost."""

    def __init__(self, store: Store, chance: Random) -> None:
        self.store = store
        self.chance = chance
        self.others: Callable[[], object] = lambda: None
        self.lost = 0

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        return self.store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        return self.store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if self.chance.random() < 0.3:
            self.others()
        if self.chance.random() < 0.1:
            raise LedgerUnavailable("the request was lost")
        self.store.commit(requirements, updates)
        if self.chance.random() < 0.2:
            self.lost += 1
            if self.chance.random() < 0.5:
                self.others()
            raise LedgerUnavailable("the reply was lost")

    def close(self) -> None:
        self.store.close()


class World:
    """Three processes of one stream, and a reader that has seen every event before it is pruned."""

    def __init__(self, url: str, seed: int) -> None:
        self.chance = Random(seed)
        self.store = Interrupted(open_store(url), self.chance)
        self.inboxes = [
            Inbox(self.store, "orders", clock=Skewed(ahead_s), patience_s=patience_s)
            for ahead_s, patience_s in ((0.0, 30.0), (DAY_S, 0.0), (-DAY_S, 30.0))
        ]
        self.busy: list[Inbox] = []
        self.given: list[list[NewEvent]] = []
        self.acknowledged: dict[str, Stored] = {}
        self.anonymous = 0
        self.unsure = 0
        self.repeats = 0
        self.seen: defaultdict[int, list[dict[str, object]]] = defaultdict(list)
        self.inboxes[0].create()
        self.inboxes[0].register_reader("r")
        self.store.others = self.other

    def run(self) -> None:
        for _ in range(STEPS):
            self.act()
        self.store.others = lambda: None
        self.read(self.inboxes[0])

    def other(self) -> None:
        """Other processes act in the middle of a commit; a third one may interrupt them."""
        for _ in range(self.chance.randint(1, 4)):
            self.act()

    def act(self) -> None:
        free = [each for each in self.inboxes if each not in self.busy]
        if not free:
            return
        inbox = self.chance.choice(free)
        self.busy.append(inbox)
        try:
            self.act_with(inbox)
        finally:
            self.busy.remove(inbox)

    def act_with(self, inbox: Inbox) -> None:
        kind = self.chance.random()
        try:
            if kind < 0.7:
                self.append(inbox)
            elif kind < 0.8:
                self.read(inbox)
            elif kind < 0.95:
                inbox.prune(keep_s=0)
            else:
                inbox.repartition(self.chance.randint(1, 3))
        except LedgerUnavailable:
            pass

    def append(self, inbox: Inbox) -> None:
        if self.given and self.chance.random() < 0.4:
            events = self.chance.choice(self.given)
            if self.chance.random() < 0.3:  # with an event that is changed: nothing is stored
                wrong = NewEvent(b"other", entity="a", source="s", id=events[0].id)
                if events[0].id in self.acknowledged:
                    with pytest.raises((RepeatDiffers, LedgerUnavailable)):
                        inbox.append([NewEvent(b"", entity="never"), wrong])
                    return
        else:
            begin = sum(map(len, self.given))
            events = [
                NewEvent(b"%d" % n, entity=f"e{n % ENTITIES}", source="s", id=str(n))
                for n in range(begin, begin + self.chance.randint(1, 5))
            ]
            self.given.append(events)
        known = dict(self.acknowledged)
        sent = [*events, events[0]]
        if self.chance.random() < 0.2:
            sent.append(NewEvent(b"x", entity="without id"))
        try:
            answers = inbox.append(sent)
        except LedgerUnavailable:
            self.unsure += len(sent) > len(events) + 1
            raise
        self.anonymous += len(sent) > len(events) + 1
        for event, answer in zip(sent, answers, strict=False):
            if event.id is not None:
                before = self.acknowledged.setdefault(event.id, answer)
                assert place(before) == place(answer)
                assert answer.repeat or event.id not in known
                self.repeats += answer.repeat
        assert answers[len(events)].repeat

    def read(self, inbox: Inbox) -> None:
        """Read what is new, and complete it."""
        for each in inbox.layout():
            seen = self.seen[each.partition]
            assert each.begin <= len(seen), "an event was pruned that the reader has not seen"
            seen += inbox.read(each.partition, len(seen), each.end).to_pylist()
        inbox.reader_completed("r", {at: len(seen) for at, seen in self.seen.items()})

    def check(self) -> None:
        ids: dict[object, dict[str, object]] = {}
        numbers: defaultdict[object, list[object]] = defaultdict(list)
        anonymous = 0
        for _, rows in sorted(self.seen.items()):  # parents before children
            for row in rows:
                numbers[row["entity"]].append(row["event"])
                anonymous += row["id"] is None
                if row["id"] is not None:
                    assert row["id"] not in ids, "stored twice"
                    ids[row["id"]] = row
        for found in numbers.values():
            assert found == list(range(1, len(found) + 1))
        assert "never" not in numbers
        assert self.anonymous <= anonymous <= self.anonymous + self.unsure
        for id_, answer in self.acknowledged.items():
            row = ids[id_]
            assert (row["entity"], row["event"]) == (answer.entity, answer.event)
            assert (row["partition"], row["offset"]) == (answer.partition, answer.offset)
        assert check_ledger(self.store.store)[1] == []


def place(stored: Stored) -> tuple[str, int, int, int]:
    return stored.entity, stored.event, stored.partition, stored.offset


@pytest.mark.rows("S1", "S2", "S3", "A1")
def test_whatever_happens_between_two_calls_of_the_store_each_event_is_stored_once(
    tmp_path: Path,
) -> None:
    first = int(os.environ.get("SEMEL_SEED") or randrange(2**32))
    print(f"SEMEL_SEED={first}")  # noqa: T201 - it repeats the run
    lost = repeats = 0
    for seed in range(first, first + WORLDS):
        world = World(f"sqlite:///{tmp_path / str(seed)}.db", seed)
        try:
            world.run()
            world.check()
        except BaseException:
            print(f"seed {seed}")  # noqa: T201
            raise
        finally:
            world.store.close()
        lost, repeats = lost + world.store.lost, repeats + world.repeats
    assert lost > WORLDS
    assert repeats > WORLDS
