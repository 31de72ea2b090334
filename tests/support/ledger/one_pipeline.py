"""Support of the ledger's tests: a clock, a store that loses replies, and makers of rows."""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semel.errors import LedgerUnavailable
from semel.events import EntityIds, IdSet
from semel.events.event import Attempt, EventID, Minibatch
from semel.ledger.client import LedgerClient
from semel.ledger.journal import JournalEntry
from semel.ledger.rows import ParkedRow, PartitionRow, SpanRow
from semel.ledger.store.commit import Conflict, Key, Payload, Requirement, Store, Update
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.complete import PositionMark, Report
from semel.ledger.verbs.open import Minibatches, OpenMinibatch, OpenRequest
from semel.ledger.verbs.partitions import Claimant, PartitionClaim
from semel.ledger.verbs.runs import Owners
from semel.protocol import ParkedState, SpanState
from semel.runtime import Process

PIPELINE = "pay"
SINK = "charge"
ELSEWHERE = Process("another-host", "another-boot", 7, "42")
DESCRIPTION: dict[str, Any] = {
    "identity": {"kind": "given", "entity": "c", "event": ["id"]},
    "sinks": {SINK: {"capability": "opaque"}},
}

Commit = tuple[tuple[Requirement, ...], tuple[Update, ...]]


class PlannedClock:
    """A clock that moves only when `sleep` is called; what happens meanwhile can be planned."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._wall = wall
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] | None = None

    def monotonic(self) -> float:
        return sum(self.slept)

    def wall(self) -> float:
        return self._wall

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if self.meanwhile is not None:
            self.meanwhile()

    def move(self, seconds: float) -> None:
        self._wall += seconds


class WitnessStore:
    """A real store that records its calls, and loses replies on request."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[Commit] = []
        self.landed: list[Commit] = []
        self.reads: Counter[str] = Counter()
        self.scans: Counter[str] = Counter()
        self._plans: deque[str] = deque()
        self._between: deque[Callable[[], object]] = deque()

    # -- faults

    def lose_replies(self, count: int = 1) -> None:
        """The next commits happen, and their replies are lost."""
        self._plans.extend(["reply"] * count)

    def lose_requests(self, count: int = 1) -> None:
        """The next commits do not happen, and the caller gets no reply."""
        self._plans.extend(["request"] * count)

    def pass_one(self) -> None:
        """The commit after those that are lost goes through."""
        self._plans.append("")

    def let_in(self, act: Callable[[], object]) -> None:
        """Another writer gets in just before the next commit."""
        self._between.append(act)

    def lose_reply_and_let_in(self, act: Callable[[], object]) -> None:
        """The next commit happens unheard, and another writer is faster than its repeat."""
        self._plans.append("reply")
        self._between.extend([lambda: None, act])

    # -- what it saw

    def forget(self) -> None:
        """Count from here on."""
        self.asked.clear()
        self.landed.clear()
        self.reads.clear()
        self.scans.clear()

    def looks(self, table: str) -> int:
        """How often rows of a table were looked at."""
        return self.reads[table] + self.scans[table]

    def contents(self) -> dict[Key, Payload]:
        """Everything that stands in the ledger."""
        tables = "pipelines owners open streams events sequences parked heads journal"
        return {at: text for table in tables.split() for at, text in self._store.scan(table, "")}

    def late_twins(self) -> list[Commit]:
        """Repeat every commit that landed; return those that changed anything."""
        changed = []
        for requirements, updates in list(self.landed):
            before = self.contents()
            try:
                self._store.commit(requirements, updates)
            except Conflict:
                continue
            if self.contents() != before:
                changed.append((requirements, updates))
        return changed

    # -- the store

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self.reads.update(each.table for each in keys)
        return self._store.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        self.scans[table] += 1
        return self._store.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        if self._between:
            self._between.popleft()()
        asked = (tuple(requirements), tuple(updates))
        self.asked.append(asked)
        if self._plans and self._plans[0] == "request":
            self._plans.popleft()
            raise LedgerUnavailable("the request was lost")
        self._store.commit(requirements, updates)  # a conflict leaves the plan as it is
        plan = self._plans.popleft() if self._plans else ""
        self.landed.append(asked)
        if plan == "reply":
            raise LedgerUnavailable("the reply was lost")

    def close(self) -> None:
        self._store.close()


@dataclass
class LedgerWorld:
    """One pipeline in one SQLite file, seen through a witness."""

    path: Path
    pipeline: str = PIPELINE
    clock: PlannedClock = field(default_factory=PlannedClock)

    def __post_init__(self) -> None:
        self.store = WitnessStore(open_store(f"sqlite:///{self.path}"))
        self.client = LedgerClient(self.store, self.pipeline, self.clock)
        self.owners = Owners(self.client)

    def another(self) -> LedgerWorld:
        """The same ledger, as another process has it."""
        return LedgerWorld(self.path, self.pipeline)

    def close(self) -> None:
        self.store.close()

    def begin(self, nonce: str = "n1", process: Process = ELSEWHERE) -> Minibatches:
        """Register a run."""
        run = self.owners.register(DESCRIPTION, process, nonce)
        return Minibatches(self.client, run)

    def size(self) -> int:
        """How many bytes all payloads and keys have."""
        with sqlite3.connect(self.path) as connection:
            query = "select coalesce(sum(length(key) + length(payload)), 0) from semel"
            size: int = connection.execute(query).fetchone()[0]
        connection.close()
        return size

    def tables(self) -> Counter[str]:
        """How many rows each table has."""
        return Counter(at.table for at in self.store.contents())


def request(batch: int, *sinks: str, query: str = "q", **others: Any) -> OpenRequest:
    return OpenRequest(query, batch, sinks or (SINK,), **others)


def claim_of(
    world: LedgerWorld,
    opening: OpenMinibatch,
    task: int,
    *,
    run: int | None = None,
    partition: str = "0",
    sink: str = SINK,
    spark_task: int = 0,
    process: Process = ELSEWHERE,
) -> PartitionClaim:
    """The hand of one attempt on one partition, before it claims."""
    attempt = Attempt(opening.row.run if run is None else run, task)
    who = Claimant(attempt, process, spark_task, lease_s=10.0, deadline_s=30.0)
    return PartitionClaim(world.client, opening, sink, partition, who)


def span(
    number: int,
    start: int,
    stop: int,
    *,
    entity: str = "e",
    ids: Iterable[EventID] | None = None,
    attempt: Attempt | None = None,
) -> SpanRow:
    """An intent for the events [start, stop), whose ids are their positions by default."""
    chosen = EntityIds.of({entity: IdSet.of(range(start, stop) if ids is None else ids)})
    return SpanRow(
        number=number,
        chunks=((start, stop),),
        state=SpanState.INTENDED,
        running=f"digest-{stop}",
        ids=(chosen,),
        attempt=attempt or Attempt(1, 1),
        at=0.0,
        osn=(start + 1, stop),
    )


def settled(row: SpanRow) -> SpanRow:
    from dataclasses import replace

    return replace(row, state=SpanState.SETTLED)


def report(
    task: int = 1,
    *,
    run: int = 1,
    count: int = 3,
    digest: str = "d",
    osn: int = 3,
    partition: str = "0",
    sink: str = SINK,
    short: bool = False,
    mark: PositionMark | None = None,
    entries: tuple[JournalEntry, ...] = (),
) -> Report:
    return Report(
        sink,
        partition,
        Attempt(run, task),
        count,
        digest,
        osn,
        first=["e", 0],
        last=["e", count - 1],
        short=short,
        mark=mark,
        entries=entries,
    )


def parked(
    event: EventID,
    *,
    state: ParkedState = ParkedState.HELD,
    entity: str = "e",
    scope: str | None = None,
    blocks: bool = True,
    minibatch: Minibatch = Minibatch(1, 0),  # noqa: B008 - frozen
    value: dict[str, Any] | None = None,
) -> ParkedRow:
    return ParkedRow(
        entity=entity,
        scope=entity if scope is None else scope,
        event=event,
        minibatch=minibatch,
        partition="0",
        position=event if isinstance(event, int) else 0,
        osn=1,
        state=state,
        why="the reply was lost",
        at=0.0,
        blocks=blocks,
        doubted=state is ParkedState.HELD,
        value={"id": event, "v": 1.5} if value is None else value,
    )


def stream_row(
    world: LedgerWorld, opening: OpenMinibatch, partition: str = "0", sink: str = SINK
) -> PartitionRow:
    """The row of a partition as it stands."""
    from semel.ledger.keys import make_key

    minibatch = opening.row.minibatch
    at = make_key("streams", world.pipeline, sink, minibatch.generation, minibatch.batch, partition)
    return PartitionRow.load(world.store.contents()[at])


def claim_of_one_process(path: str, opening: OpenMinibatch, task: int) -> tuple[int, str]:
    """Claim partition 0 from another process or thread; return what was found."""
    from semel.errors import Fenced

    world = LedgerWorld(Path(path))
    try:
        found = claim_of(world, opening, task).claim(span(0, 0, 3, attempt=Attempt(1, task)))
    except Fenced:
        return task, "fenced"
    finally:
        world.close()
    return task, found.value


def run_of_one_process(path: str, nonce: str) -> int:
    """Register a run from another process or thread; return its number."""
    world = LedgerWorld(Path(path))
    try:
        return world.owners.register(DESCRIPTION, Process.here(), nonce)
    finally:
        world.close()
