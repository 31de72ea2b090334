"""Sinks of every capability whose destination is a SQLite file: honest ones, to be lied about.

What happened stands in the table `effects`, in the order of arrival.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import semel
from semel.events import Chunk, EntityIds, Event, IdSet, Minibatch
from semel.protocol import Capability
from semel.sinks import DELIVERED, AnySession, Function, Progress, Receipt, Sink, Tail, Target
from semel.verify.contract.rows import REFUSE

TABLES = """
create table if not exists effects (n integer primary key, entity text, event text, place text);
create table if not exists progress (place text primary key, row text not null);
create table if not exists keys (key text primary key);
create table if not exists logs (place text primary key, epoch text not null);
create table if not exists entries (
    n integer primary key, place text, osn integer, minibatch text, scope text, event text,
    sort_key text, stamp text, resend integer
);
"""


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("pragma synchronous = off")  # processes are killed, the machine is not
    connection.executescript(TABLES)
    return connection


def arrived(path: str) -> list[tuple[str, str]]:
    with closing(connect(path)) as connection:
        return connection.execute("select entity, event from effects order by n").fetchall()


@dataclass(frozen=True, kw_only=True)
class Box(Sink):
    """A SQLite file."""

    path: str
    can: Capability = Capability.OPAQUE
    session: type[HonestSession] | None = None
    whole: bool = False

    @property
    def capability(self) -> Capability:
        return self.can

    def open(self, target: Target) -> AnySession:
        kind: Any = self.session or (Whole if self.whole else SESSIONS[self.can])
        session: AnySession = kind(self, target)
        return session


class HonestSession:
    """One connection."""

    def __init__(self, sink: Box, target: Target) -> None:
        self.sink = sink
        self.target = target
        self.connection = connect(sink.path)
        self.place = json.dumps([target.pipeline, target.sink, target.partition])

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        try:
            self.connection.execute("begin immediate")
        except sqlite3.OperationalError as error:
            raise semel.NotDelivered(str(error)) from error
        try:
            yield
            self.connection.execute("commit")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("rollback")
            raise

    def effect(self, chunk: Chunk) -> None:
        for event in chunk.events():
            self.take(event)

    def take_epoch(self) -> None:
        """Take the place for this attempt; those before it are refused from then on."""
        self.refuse_replaced()
        attempt = json.dumps([self.target.attempt.run, self.target.attempt.task])
        self.connection.execute("insert or replace into logs values (?, ?)", (self.place, attempt))

    def refuse_replaced(self) -> None:
        query = "select epoch from logs where place = ?"
        found = self.connection.execute(query, (self.place,)).fetchone()
        attempt = [self.target.attempt.run, self.target.attempt.task]
        if found is not None and json.loads(found[0]) > attempt:
            raise semel.Fenced(f"attempt {found[0]} has it")

    def take(self, event: Event) -> None:
        if event.value.get("note") == REFUSE:
            raise semel.Rejected("refused")
        self.connection.execute(
            "insert into effects (entity, event) values (?, ?)", (event.entity, str(event.id))
        )


class Opaque(HonestSession):
    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            self.effect(chunk)
        return DELIVERED


class HonestProbing(HonestSession):
    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            self.connection.execute("insert or ignore into keys values (?)", (chunk.key,))
            self.effect(chunk)
        return DELIVERED

    def arrived(self, key: str) -> bool:
        found = self.connection.execute("select 1 from keys where key = ?", (key,))
        return found.fetchone() is not None


class HonestRepeatable(HonestSession):
    """Absorbs by the event's key, or by the chunk's; refuses single events."""

    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            if not self.sink.keyed_by_event:
                if self.is_new(chunk.key):
                    self.effect(chunk)
                return DELIVERED
            failed: dict[int, semel.DeliveryError] = {}
            entities: set[str] = set()
            for place, event in enumerate(chunk.events()):
                if event.entity in entities:
                    failed[place] = semel.NotDelivered("one before it failed")
                elif event.value.get("note") == REFUSE:
                    failed[place] = semel.Rejected("refused")
                    entities.add(event.entity)
                elif self.is_new(self.key(event)):
                    self.take(event)
        return Receipt(failed)

    def key(self, event: Event) -> str:
        return event.key

    def is_new(self, key: str) -> bool:
        done = self.connection.execute("insert or ignore into keys values (?)", (key,))
        return done.rowcount == 1


class HonestTransactional(HonestSession):
    def take_over(self) -> Progress | None:
        minibatch, attempt = self.target.minibatch, self.target.attempt
        with self.transaction():
            stood = self.read()
            before = stood or Progress(minibatch, attempt)
            self.write(before.taken_by(minibatch, attempt))
        return stood

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        with self.transaction():
            self.write(self.moved(progress))
            self.effect(chunk)
        return DELIVERED

    def moved(self, progress: Progress) -> Progress:
        stood = self.read()
        progress.require_kept(stood, self.place)
        if stood is not None and stood.minibatch == progress.minibatch:
            if stood.done > progress.start:
                raise semel.Fenced("a call of this attempt has arrived after all")
            return replace(progress, ids=stood.ids | progress.ids)
        return progress

    def read(self) -> Progress | None:
        query = "select row from progress where place = ?"
        found = self.connection.execute(query, (self.place,)).fetchone()
        if found is None:
            return None
        stood = Progress.from_json(json.loads(found[0]))
        self.refuse_late(stood)
        return stood

    def refuse_late(self, stood: Progress) -> None:
        if stood.attempt > self.target.attempt or stood.minibatch > self.target.minibatch:
            raise semel.Fenced(f"the progress row names attempt {stood.attempt}")

    def write(self, progress: Progress) -> None:
        row = json.dumps(progress.to_json())
        self.connection.execute("insert or replace into progress values (?, ?)", (self.place, row))


class HonestSequenced(HonestSession):
    def take_over(self) -> Tail:
        with self.transaction():
            self.take_epoch()
            return self.tail()

    def tail(self) -> Tail:
        live = "from entries where place = ? and resend = 0"
        last = self.connection.execute(
            f"select osn, minibatch, sort_key {live} order by osn desc limit 1", (self.place,)
        ).fetchone()
        stamp = self.connection.execute(
            f"select stamp {live} and stamp is not null order by n desc limit 1", (self.place,)
        ).fetchone()
        resent = self.connection.execute(
            "select coalesce(max(resend), 0) from entries where place = ?", (self.place,)
        ).fetchone()[0]
        if last is None:
            return Tail(resent=resent)
        return Tail(
            osn=last[0],
            minibatch=Minibatch(*json.loads(last[1])),
            sort_key=json.loads(last[2]),
            stamp=Progress.from_json(json.loads(stamp[0])) if stamp else None,
            resent=resent,
        )

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        return self.append(chunk, progress, 0)

    def deliver_again(self, chunk: Chunk, number: int) -> Receipt:
        return self.append(chunk, None, number)

    def append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        with self.transaction():
            self.refuse_replaced()
            osns = chunk.osns().tolist()
            if progress is not None and osns[0] <= self.stands_at():
                raise semel.Fenced("the log stands beyond it")
            self.effect(chunk)
            minibatch = json.dumps([self.target.minibatch.generation, self.target.minibatch.batch])
            for place, event in enumerate(chunk.events()):
                last = progress is not None and place == len(chunk) - 1
                key = None if resend else json.dumps(chunk.rows.sort_key(place))
                stamp = json.dumps(progress.to_json()) if progress is not None and last else None
                row = (osns[place], minibatch, event.entity, json.dumps(event.id), key, stamp)
                self.connection.execute(
                    "insert into entries (place, osn, minibatch, scope, event, sort_key, stamp,"
                    " resend) values (?, ?, ?, ?, ?, ?, ?, ?)",
                    (self.place, *row, resend),
                )
        return DELIVERED

    def stands_at(self) -> int:
        return self.tail().osn

    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        text = json.dumps([minibatch.generation, minibatch.batch])
        found: dict[str, list[Any]] = {}
        for scope, event in self.connection.execute(
            "select scope, event from entries where place = ? and minibatch = ?", (self.place, text)
        ):
            found.setdefault(scope, []).append(json.loads(event))
        return EntityIds.of({scope: IdSet.of(ids) for scope, ids in found.items()})


class Whole(HonestSession):
    """Writes a partition of a minibatch to a place of its own, over whatever stands there."""

    def __init__(self, sink: Box, target: Target) -> None:
        super().__init__(sink, target)
        minibatch = [target.minibatch.generation, target.minibatch.batch]
        self.place = json.dumps([target.pipeline, target.sink, target.partition, minibatch])
        self.written: list[tuple[str, str, str]] = []
        with self.transaction():
            self.take_epoch()

    def write(self, chunk: Chunk) -> None:
        self.written += [(event.entity, str(event.id), self.place) for event in chunk.events()]

    def finish(self) -> None:
        with self.transaction():
            self.refuse_replaced()
            self.empty()
            self.connection.executemany(
                "insert into effects (entity, event, place) values (?, ?, ?)", self.written
            )

    def empty(self) -> None:
        self.connection.execute("delete from effects where place = ?", (self.place,))


SESSIONS: dict[Capability, type[HonestSession]] = {
    Capability.OPAQUE: Opaque,
    Capability.PROBING: HonestProbing,
    Capability.REPEATABLE: HonestRepeatable,
    Capability.TRANSACTIONAL: HonestTransactional,
    Capability.SEQUENCED: HonestSequenced,
}


@dataclass(frozen=True)
class WritingFunction:
    """A function that writes one event into the file: what a user has."""

    path: str

    def __call__(self, event: Event) -> None:
        with closing(connect(self.path)) as connection:
            connection.execute(
                "insert into effects (entity, event) values (?, ?)", (event.entity, str(event.id))
            )


@dataclass(frozen=True)
class Asking:
    """Says whether an event is in the file."""

    path: str

    def __call__(self, event: Event) -> bool:
        return (event.entity, str(event.id)) in arrived(self.path)


def function(path: str, **settings: Any) -> Function:
    return Function(name="box", function=WritingFunction(path), **settings)
