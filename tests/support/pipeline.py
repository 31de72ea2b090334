"""One pipeline without Spark: a ledger in memory, a clock that stands still, a driver and tasks."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from semel.delivery import (
    Assignment,
    Driver,
    LogObserver,
    Observer,
    PartitionDelivery,
    Runtime,
)
from semel.errors import LedgerUnavailable
from semel.events import Attempt, Counter, Given, Identity, Position
from semel.ledger.client import LedgerClient
from semel.ledger.journal import Journal
from semel.ledger.rows import OpenRow, ParkedRow, PartitionRow, SpanRow
from semel.ledger.store.commit import Key, Payload, Put, Requirement, Update
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.open import OpenMinibatch
from semel.ledger.verbs.parked import read_heads, read_parked, resolve_parked
from semel.ledger.verbs.runs import Owners
from semel.protocol import ParkedState
from semel.runtime import Process
from semel.sinks import AuditLog, Sink
from semel.verify.simulator.cluster import MemoryStore
from support.destinations import (
    Absorber,
    Crash,
    Database,
    Destination,
    Logs,
    NumberedWire,
    Post,
    Register,
    Reply,
    fine,
)

GIVEN = Given(entity="c", event=("id",))
INCREASING = Given(entity="c", event=("id",), increasing=True)
POSITION = Position()
ORDERED_POSITION = Position(entity="c")
COUNTER = Counter(entity="c", order_by=("id",))

_EVENT = re.compile(r"([a-z]+)(\d+)(?:=(\d+))?")


def events(text: str) -> pa.RecordBatch:
    """Make rows of `a1 b2 a3`: entity, id (also the offset), and after `=` another content."""
    found = [_EVENT.fullmatch(word) for word in text.split()]
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": int(each[2]),
            "c": each[1],
            "id": int(each[2]),
            "v": int(each[3] or 0),
        }
        for each in found
        if each is not None
    ]
    assert len(rows) == len(found), text
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("c", pa.string()),
            ("id", pa.int64()),
            ("v", pa.int64()),
        ]
    )
    return pa.RecordBatch.from_pylist(rows, schema=schema)


class StillClock:
    """Time passes when `sleep` is called or a test moves it; what was put off happens then."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        self._later: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.move(seconds)

    def move(self, seconds: float) -> None:
        end = self.now + seconds
        while self._later and self._later[0][0] <= end:
            at, act = self._later.pop(0)
            self.now = max(self.now, at)
            act()
        self.now = end

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        self._later.append((self.now + seconds, act))
        self._later.sort(key=lambda each: each[0])


@dataclass
class ScriptedStore:
    """A ledger in memory behind the wire; the script says what happens to the next commits.

    Two planted faults: what `forgets` says is left out of every commit, and rows of the table that
    `keeps_late` names are acknowledged at once and kept only when a minibatch is completed.
    """

    wire: NumberedWire
    memory: MemoryStore = field(default_factory=MemoryStore)
    script: deque[Reply] = field(default_factory=deque)
    scans: list[tuple[str, str]] = field(default_factory=list)
    reads: int = 0
    forgets: Callable[[Requirement | Update], bool] | None = None
    keeps_late: str = ""
    _aside: list[Put] = field(default_factory=list)

    def read(self, keys: Sequence[Key]) -> Mapping[Key, Payload]:
        self.reads += 1
        return self.memory.read(keys)

    def scan(
        self, table: str, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[tuple[Key, Payload]]:
        self.scans.append((table, prefix))
        return self.memory.scan(table, prefix, after=after, limit=limit)

    def commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        reply = self.script.popleft() if self.script else fine
        tables = sorted({each.key.table for each in updates if isinstance(each, Put)})
        self.wire.cross(
            f"commit {' '.join(tables)}",
            lambda: reply(lambda: self._commit(requirements, updates)),
        )

    def _commit(self, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        forgets = self.forgets or (lambda _: False)
        required = [each for each in requirements if not forgets(each)]
        done = [each for each in updates if not forgets(each)]
        if self.keeps_late:
            late = self.keeps_late
            required = [each for each in required if each.key.table != late]
            self._aside += [
                each for each in done if isinstance(each, Put) and each.key.table == late
            ]
            done = [each for each in done if not (isinstance(each, Put) and each.key.table == late)]
            if any(isinstance(each, Put) and each.key.table == "sequences" for each in done):
                done += self._aside
                self.lose_what_was_not_kept()
        self.memory.commit(required, done)

    def lose_what_was_not_kept(self) -> None:
        """The machine went down."""
        self._aside = []

    def close(self) -> None:
        return

    def size(self, table: str) -> tuple[int, int]:
        """How many rows a table has, and how many bytes."""
        rows = list(self.memory.scan(table, ""))
        return len(rows), sum(len(at.key) + len(text) for at, text in rows)


def reply_lost(act: Callable[[], Any]) -> Any:
    """The commit happened, and its reply is lost."""
    act()
    raise LedgerUnavailable("the reply was lost")


@dataclass
class World:
    """A pipeline with its sinks, and everything that can happen to it."""

    identity: Identity = GIVEN
    partition: str = ""
    wire: NumberedWire = field(default_factory=NumberedWire)
    clock: StillClock = field(default_factory=StillClock)
    sinks: list[Sink] = field(default_factory=list)
    gone: set[Process] = field(default_factory=set)
    destinations: dict[str, Any] = field(default_factory=dict)
    partitions: int | None = None
    name: str = "pay"
    known_as: str = ""
    routing: dict[str, Any] | None = None
    observer: Observer = field(default_factory=LogObserver)
    audit: AuditLog | None = None

    def __post_init__(self) -> None:
        if not self.partition:
            self.partition = "t/0" if self.identity.uses_source_partitions else "0"
        self.store = ScriptedStore(self.wire)
        self.client = LedgerClient(self.store, self.name, self.clock)
        self.runtime = Runtime(self.clock, Random(7), self.gone.__contains__)
        self._tasks = 0
        self._starts = 0
        self.driver: Driver
        self.inputs: list[int] = []

    # -- destinations and runs

    def add(self, destination: Destination, name: str = "out", **settings: Any) -> Sink:
        """Let a destination be part of this world, and the pipeline deliver to it."""
        destination.wire = self.wire
        destination.now = self.clock.wall
        made: Sink = destination.sink(name, **settings)  # type: ignore[attr-defined]
        self.sinks.append(made)
        self.destinations[name] = destination
        return made

    @property
    def out(self) -> Any:
        """The destination, where there is one."""
        return self.destinations["out"]

    def start(self) -> Driver:
        """Start the query: a run of its own, in a process of its own."""
        self._starts += 1
        self.driver = Driver(
            self.client,
            list(self.sinks),
            self.identity,
            self.process(f"driver-{self._starts}"),
            f"nonce-{self._starts}",
            self.runtime,
            self.partitions,
            routing=self.routing,
            observer=self.observer,
            audit=self.audit,
        )
        self.driver.start()
        return self.driver

    def process(self, name: str) -> Process:
        return Process("host", "boot", 1, name)

    def take_name(self, name: str) -> None:
        """Let the next start have another name, and learn from the ledger what it is known as."""
        self.name = name
        plain = LedgerClient(self.store, name, self.clock)
        self.known_as = Owners(plain).known_as()
        self.client = replace(plain, known_as=self.known_as)

    # -- one minibatch

    def open(self, batch: int, query: str = "q") -> OpenMinibatch:
        return self.driver.begin(query, batch)

    def task(
        self,
        opening: OpenMinibatch,
        text: str | Iterable[pa.RecordBatch],
        *,
        number: int | None = None,
        sinks: Sequence[Sink] | None = None,
        clock: StillClock | None = None,
        **others: Any,
    ) -> list[Report]:
        """Run one attempt at the partition, in a process of its own by default."""
        self._tasks += 1
        task = self._tasks if number is None else number
        assignment = Assignment(
            self.name,
            opening,
            self.identity,
            others.pop("partition", self.partition),
            Attempt(opening.row.run, task),
            others.pop("process", self.process(f"task-{task}")),
            others.pop("spark_task", 0),
            known_as=self.known_as,
            **others,
        )
        clock = clock or self.clock
        hidden = self.client.hidden
        client = LedgerClient(self.store, self.name, clock, known_as=self.known_as, hidden=hidden)
        delivery = PartitionDelivery(
            assignment,
            self.sinks if sinks is None else sinks,
            client,
            Journal(client),
            Runtime(clock, self.runtime.random, self.runtime.gone),
            self.observer,
            self.audit,
        )
        return delivery.run([events(text)] if isinstance(text, str) else text)

    def minibatch(self, batch: int, text: str, query: str = "q", **others: Any) -> list[Report]:
        """Open a minibatch, deliver it in one task, and complete it."""
        opening = self.open(batch, query)
        reports = self.task(opening, text, **others)
        self.driver.end(opening, reports)
        return reports

    # -- what stands in the ledger

    def parked_rows(self, sink: str = "out") -> list[tuple[Key, ParkedRow]]:
        return [(at, row) for at, row, _ in read_parked(self.client, sink)]

    def parked(self, sink: str = "out") -> list[str]:
        """What is parked, in the order it came: `["a1 held", "a3 waiting"]`."""
        return [f"{self._name(row)} {row.state.value}" for _, row in self.parked_rows(sink)]

    def _name(self, row: ParkedRow) -> str:
        entity = row.entity if row.value is None else row.value["c"]
        return f"{entity}{row.event if row.value is None else row.value['id']}"

    def heads(self, sink: str = "out") -> list[str]:
        return sorted(entity for entity, _ in read_heads(self.client, sink))

    def resolve(self, name: str, decision: str, sink: str = "out") -> ParkedRow:
        """A person says what became of an event."""
        [at] = [at for at, row in self.parked_rows(sink) if self._name(row) == name]
        return resolve_parked(self.client, sink, at, ParkedState(decision), "ann", "looked")

    def streams(self) -> list[PartitionRow]:
        return [PartitionRow.load(text) for _, text in self.store.memory.scan("streams", "")]

    def spans(self) -> list[SpanRow]:
        return [SpanRow.load(text) for _, text in self.store.memory.scan("events", "")]

    def opened(self) -> OpenRow:
        [(_, text)] = self.store.memory.scan("open", "")
        return OpenRow.load(text)


def world_of(destination: Destination, identity: Identity = GIVEN, **settings: Any) -> World:
    """A started pipeline with one sink."""
    world = World(identity)
    world.add(destination, **settings)
    world.start()
    return world


KINDS: dict[str, Callable[[], tuple[Destination, dict[str, Any]]]] = {
    "opaque": lambda: (Post(), {}),
    "opaque batches": lambda: (Post(), {"batches": True}),
    "repeatable": lambda: (Absorber(), {}),
    "repeatable by chunk": lambda: (Absorber(), {"keyed_by_event": False}),
    "probing": lambda: (Register(), {}),
    "transactional": lambda: (Database(), {}),
    "transactional script": lambda: (Database(one_script=True), {}),
    "sequenced": lambda: (Logs(), {}),
    "sequenced by opener": lambda: (Logs(whole_chunks=True), {"last_opener_wins": True}),
}
"""Every capability, and how it comes."""

EXACT = tuple(kind for kind in KINDS if not kind.startswith("opaque"))
"""Those that are never in doubt within a generation."""


def world_like(kind: str, identity: Identity = GIVEN, **settings: Any) -> World:
    """A started pipeline to one destination of a kind."""
    destination, own = KINDS[kind]()
    return world_of(destination, identity, **{**own, **settings})


def crash_everywhere(
    make: Callable[[], World], act: Callable[[World], object]
) -> Iterator[tuple[str, World]]:
    """Give a world for every call of `act`: crashed just before it, or just after it."""
    for moment in ("before", "after"):
        number, crashed = 0, True
        while crashed:
            number += 1
            world = make()
            world.wire.forget()
            setattr(world.wire, f"crash_{moment}", number)
            try:
                act(world)
            except Crash:
                what = f"crashed {moment} call {number}, after {world.wire.log}"
            else:
                crashed, what = False, "nothing crashed"
            world.wire.forget()
            if crashed:
                world.store.lose_what_was_not_kept()
            yield what, world


def once(seen: str) -> str:
    """Sort what was seen by its ids, so that every repeat and every loss shows."""
    return " ".join(sorted(seen.split(), key=lambda name: (int(name.lstrip("abcdef")), name)))
