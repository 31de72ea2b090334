"""Pipelines in five states, how the ledger of each was written down, and how it is gone on with.

`python -m support.ledger.pinned_ledgers`, run in `tests`, writes files beside `ledger-0.1.jsonl`
with the code at hand. What is committed was written once, and a later version has to continue it:
only names and inputs stand here, no row of a ledger.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from semel.errors import Diverged
from semel.events import Identity
from semel.ledger import open_store
from semel.ledger.rows import ParkedRow
from semel.ledger.store.commit import Put, Store
from semel.ledger.verbs.complete import Report
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.open import OpenMinibatch
from semel.ledger.verbs.parked import resolve_parked
from semel.protocol import Judgement, OnReject, ParkedState
from semel.verify.servers.postgres import PostgresServer
from support.destinations import (
    Absorber,
    Crash,
    Database,
    Logs,
    Post,
    Register,
    crash,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
)
from support.ledger.crashed_pipelines import MANY, PEOPLE, load, read, restored, written
from support.pipeline import COUNTER, GIVEN, INCREASING, ORDERED_POSITION, POSITION, World

FOLDER = Path(__file__).parents[2] / "ledger" / "fixtures"
VERSION = "6193669"
"""The commit whose code wrote the fixture."""

IDENTITIES: dict[str, Identity] = {
    "given": GIVEN,
    "increasing": INCREASING,
    "position": POSITION,
    "position-entity": ORDERED_POSITION,
    "counter": COUNTER,
}
FILED = ("given", "increasing", "position", "counter")
SURVIVES = tuple(name for name in IDENTITIES if name != "counter")
SINKS = ("absorb", "register", "base", "log", "post")

LATER: tuple[str, ...] = ("a b c d e f", "g a h d b i", "c e a f d b")
"""Of whom the events are that come when the open minibatch is over."""
OTHERS = str.maketrans("abcdefghi", "klmnopghi")


def words(entities: str, first: int) -> str:
    """Return one event of each entity, numbered on from `first`: `a4 b5 a6`."""
    return " ".join(f"{who}{first + at}" for at, who in enumerate(entities.split()))


def number(name: str) -> int:
    return int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))


def file_of(state: str, ending: str = "jsonl") -> Path:
    return FOLDER / f"ledger-{VERSION}-{state}.{ending}"


# -- the batches of Spark


@dataclass(frozen=True)
class Inputs:
    """The batches of Spark: several complete minibatches, one with a fault, and the open one."""

    older: list[str]
    before: str
    last: str

    @property
    def recent(self) -> list[str]:
        return f"{self.before} {self.last}".split()

    @property
    def batch(self) -> int:
        """The number of the open minibatch."""
        return len(self.older) + 1


def inputs_of(state: str, name: str) -> Inputs:
    """Return few events; or so many in one partition that sets of ids are packed, and counters
    written as snapshots and deltas.
    """
    older, first = [words("a b d e", 0), words("c f a d", 4)], 8
    if state == "pending" and name == "given":
        many = MANY.translate(str.maketrans("abc", "bdf")).split()
        older, first = [" ".join(many[:1_040])], 30_001
    if state == "pending" and name == "counter":
        older = [
            " ".join(f"b{who}{at * 1000 + batch}" for at, who in enumerate(PEOPLE))
            for batch in range(1, 4)
        ]
        first = 900_001
    return Inputs(older, words("a b c d e f", first), words("a b c d e f a d", first + 6))


def parted(world: World, text: str) -> dict[str, str]:
    """Return the events of each partition: two by entity, or the one of the source."""
    if world.partition == "t/0":
        return {"t/0": text}
    parts: dict[str, list[str]] = {"0of2": [], "1of2": []}
    for name in text.split():
        parts[f"{ord(name[0]) % 2}of2"].append(name)
    return {partition: " ".join(names) for partition, names in parts.items()}


# -- how it is delivered


def world_of(name: str) -> World:
    """A pipeline with a destination of every capability; no event overtakes one of its entity."""
    world = World(IDENTITIES[name], name=name)
    if world.partition != "t/0":
        world.partitions = 2
    for destination, sink in ((Absorber(), "absorb"), (Register(), "register")):
        world.add(destination, sink, chunk_rows=2, span_chunks=2, on_reject=OnReject.BLOCK)
    world.add(Database(), "base", chunk_rows=2, on_reject=OnReject.BLOCK)
    world.add(Logs(), "log", chunk_rows=2, on_reject=OnReject.BLOCK)
    world.add(Post(), "post", window=2, on_reject=OnReject.BLOCK)
    return world


def world_of_many(name: str) -> World:
    """The same with larger chunks, where there are many events."""
    if name not in ("given", "counter"):
        return world_of(name)
    world = World(IDENTITIES[name], name=name, partitions=2)
    for destination, sink in ((Absorber(), "absorb"), (Register(), "register")):
        world.add(destination, sink, chunk_rows=700, span_chunks=1, on_reject=OnReject.BLOCK)
    world.add(Database(), "base", chunk_rows=700, on_reject=OnReject.BLOCK)
    world.add(Logs(), "log", chunk_rows=700, on_reject=OnReject.BLOCK)
    world.add(Post(), "post", window=64, on_reject=OnReject.BLOCK)
    return world


def tasks(world: World, opening: OpenMinibatch, text: str) -> list[Report]:
    """Deliver each partition, one after the other."""
    reports: list[Report] = []
    for at, (partition, events) in enumerate(parted(world, text).items()):
        reports += world.task(opening, events, partition=partition, spark_task=at)
    return reports


def deliver(world: World, batch: int, text: str, query: str = "q") -> None:
    """Open a minibatch, deliver it and complete it."""
    opening = world.open(batch, query)
    world.driver.end(opening, tasks(world, opening, text))
    world.clock.move(1)


def die(act: Callable[[], object]) -> None:
    """The process is gone before this is over."""
    try:
        act()
    except Crash:
        return
    raise AssertionError("nothing crashed")


# -- the states


def clean(name: str) -> World:
    """Every minibatch is complete at every sink, and the query was stopped."""
    world, inputs = world_of(name), inputs_of("clean", name)
    world.start()
    for batch, text in enumerate([*inputs.older, inputs.before, inputs.last]):
        deliver(world, batch, text)
    world.driver.beat(ended=True)
    return world


def _trouble(world: World, inputs: Inputs) -> None:
    """The minibatch before the open one: two in doubt of which one arrived, dead letters."""
    world.start()
    for batch, text in enumerate(inputs.older):
        deliver(world, batch, text)
    third, fourth = inputs.before.split()[2:4]
    world.destinations["post"].plan(lost, lost_on_the_way)
    for sink in ("absorb", "base"):
        world.destinations[sink].refuses.add(third)
    world.destinations["log"].refuses.add(fourth)
    deliver(world, len(inputs.older), inputs.before)


def _half(world: World, inputs: Inputs) -> None:
    """The query dies within the open minibatch, is started again, and dies further on."""
    for sink, replies in (("base", (fine, crash_after)), ("post", (crash_after,))):
        opening = world.open(inputs.batch)
        world.destinations[sink].plan(*replies)
        die(partial(tasks, world, opening, inputs.last))
        world.start()


def _half_again(world: World, opening: OpenMinibatch, text: str) -> None:
    """So does the generation that follows."""
    world.destinations["log"].plan(fine, crash_after)
    world.destinations["post"].plan(crash_after)
    die(partial(tasks, world, opening, text))


def pending(name: str) -> World:
    """Pending partitions, intended spans, events parked in every way, and a resend under way."""
    world, inputs = world_of_many(name), inputs_of("pending", name)
    _trouble(world, inputs)
    post = world.destinations["post"]
    held = [each.split()[0] for each in world.parked("post") if each.endswith("held")]
    world.resolve(held[1], "resend", "post")
    post.plan(crash_after)
    world.clock.move(60)
    die(world.driver.drain)  # it was just being sent
    world.start()
    opening = world.open(inputs.batch)
    third, fourth = inputs.before.split()[2:4]
    world.resolve(third, "resend", "base")
    world.resolve(fourth, "resend", "log")
    post.plan(fine, crash)
    die(partial(tasks, world, opening, inputs.last))
    return world


def lost_checkpoint(name: str) -> World:
    """The checkpoint was lost within a minibatch; a new generation reads again, and dies too."""
    world, inputs = world_of(name), inputs_of("lost", name)
    _trouble(world, inputs)
    _half(world, inputs)
    world.clock.move(100)
    again = rest_of("lost", name)
    deliver(world, 0, " ".join(inputs.older), "another")
    _half_again(world, world.open(1, "another"), again[0].text)
    return world


def _judged(state: str, name: str, decision: Judgement) -> World:
    """A replay diverged; a person judged it, and the generation that followed dies half way."""
    world, inputs = world_of(name), inputs_of(state, name)
    _trouble(world, inputs)
    _half(world, inputs)
    world.clock.move(100)
    replay = rest_of(state, name)[0].text
    opening = world.open(inputs.batch)
    try:
        world.driver.end(opening, tasks(world, opening, replay))
    except Diverged:
        judge_minibatch(world.client, world.opened().minibatch, decision, "ann", "looked")
    else:
        raise AssertionError("nothing diverged")
    world.start()
    _half_again(world, world.open(inputs.batch), replay)
    return world


def recorded(name: str) -> World:
    """Judged as recorded: delivered events stay, the replay's other events are delivered."""
    return _judged("recorded", name, Judgement.AS_RECORDED)


def replayed(name: str) -> World:
    """Judged as replayed: all events of the replay are delivered, here other ones."""
    return _judged("replayed", name, Judgement.AS_REPLAYED)


STATES: dict[str, Callable[[str], World]] = {
    "clean": clean,
    "pending": pending,
    "lost": lost_checkpoint,
    "recorded": recorded,
    "replayed": replayed,
}
CASES = [
    (state, name)
    for state in STATES
    for name in IDENTITIES
    if name in SURVIVES or state not in ("lost", "recorded")
]
"""Ids that semel counts outlive no checkpoint, and can only be judged as replayed."""


# -- how it goes on


@dataclass(frozen=True)
class ReplayStep:
    """A minibatch that Spark runs when the query is started again."""

    batch: int
    text: str
    query: str = "q"


def rest_of(state: str, name: str) -> list[ReplayStep]:
    """Return the minibatches to come: first the open one, then later ones."""
    inputs = inputs_of(state, name)
    last = inputs.last.split()
    query = "another" if state == "lost" else "q"
    batch, texts = inputs.batch, [inputs.last]
    if state == "clean":
        batch, texts = inputs.batch + 1, []
    elif state == "lost":
        batch, texts = 1, [" ".join([inputs.before, *last[:5]]), " ".join(last[5:])]
    elif state == "recorded":
        more = words("g h", number(last[-1]) + 1)
        texts = [" ".join([*(f"{each}=9" for each in last), more])]
    elif state == "replayed":
        texts = [words("g h i j g h i j", number(last[-1]) + 20)]
    after = number(" ".join([*inputs.recent, *texts]).split()[-1].partition("=")[0]) + 1
    later = LATER
    if (state, name) == ("replayed", "counter"):  # under the counts of what was dropped,
        later = tuple(each.translate(OTHERS) for each in LATER)  # keys are absorbed
    texts += [words(each, after + 6 * at) for at, each in enumerate(later)]
    return [ReplayStep(batch + at, text, query) for at, text in enumerate(texts)]


def expected(state: str, name: str, had: Iterable[str]) -> list[str]:
    """Return what a destination has to have in the end, in order; `had` is what it had before.

    Under `replayed` what was delivered of the minibatch that is dropped stays where it is.
    """
    inputs = inputs_of(state, name)
    given = list(inputs.recent)
    if state == "replayed":
        gone = set(inputs.last.split()) - set(had)
        given = [each for each in given if each not in gone]
    for step in rest_of(state, name):
        given += [each.partition("=")[0] for each in step.text.split()]
    return list(dict.fromkeys(given))


def read_state(state: str) -> tuple[list[Put], dict[tuple[str, str], dict[str, Any]]]:
    """Return the rows of a state, and what each destination had."""
    return read(file_of(state))


def left(state: str, name: str, store: Store) -> World:
    """Return the world as it was left, with this ledger."""
    make = world_of_many if state == "pending" else world_of
    return restored(name, store, read_state(state)[1], make)


def go_on(world: World, steps: Iterable[ReplayStep]) -> None:
    """Start the query again and deliver all there is; a person decides whatever is parked."""
    world.start()
    for step in steps:
        deliver(world, step.batch, step.text, step.query)
        decide(world)


def decide(world: World) -> None:
    """A person looks at each destination and resolves every parked event."""
    for sink, destination in world.destinations.items():
        for at, row in world.parked_rows(sink):
            if row.state in (ParkedState.HELD, ParkedState.REJECTED):
                arrived = _has(destination, row)
                said = ParkedState.DELIVERED if arrived else ParkedState.RESEND
                resolve_parked(world.client, sink, at, said, "ann", "looked")
    world.clock.move(3_600)
    world.driver.drain()


def _has(destination: Any, row: ParkedRow) -> bool:
    """Whether an event took effect; one without payload is known by its id."""
    if row.value is not None:
        return f"{row.value['c']}{row.value['id']}" in destination.seen.split()
    entities = {each.entity for each in destination.effects if each.event == row.event}
    return bool(entities) if row.scope == "t/0" else row.entity in entities


def complaints(world: World, state: str, had: dict[str, list[str]]) -> list[str]:
    """Return what was lost, repeated or reordered at a destination; empty if nothing was."""
    found: list[str] = []
    for sink, destination in world.destinations.items():
        names = expected(state, world.name, had[sink])
        wanted, seen = Counter(names), Counter(destination.seen.split())
        found += [f"{sink}: {name} was lost" for name in sorted(wanted - seen)]
        found += [f"{sink}: {name} was repeated" for name in sorted(seen - wanted)]
        found += [f"{sink}: {who} was reordered" for who in _reordered(world, sink, names)]
    return found


def _reordered(world: World, sink: str, names: list[str]) -> list[str]:
    """Name the entities whose events did not arrive as they came.

    By position alone events have no entity, and a parked one holds no event up; with an entity that
    is so for what was in doubt when a generation ended.
    """
    seen = list(dict.fromkeys(world.destinations[sink].seen.split()))
    alone = world.identity == POSITION
    free = {
        world._name(row)
        for _, row in world.parked_rows(sink)
        if alone or (world.identity == ORDERED_POSITION and row.shown is not None)
    }
    wanted, came = _by_entity(names, free, alone=alone), _by_entity(seen, free, alone=alone)
    both = {who: (set(wanted[who]), set(came.get(who, ()))) for who in wanted}
    return [
        who
        for who, (should, did) in sorted(both.items())
        if [each for each in wanted[who] if each in did]
        != [each for each in came.get(who, ()) if each in should]
    ]


def _by_entity(names: Iterable[str], free: set[str], *, alone: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if name not in free:
            found.setdefault("t/0" if alone else name.rstrip("0123456789"), []).append(name)
    return found


# -- as files


def rows_and_states(state: str) -> list[dict[str, Any]]:
    """Run every pipeline of a state and return the rows it leaves."""
    lines: list[dict[str, Any]] = []
    for name in [name for each, name in CASES if each == state]:
        recent = set(inputs_of(state, name).recent)
        recent.update(each.partition("=")[0] for each in rest_of(state, name)[0].text.split())
        lines += written(STATES[state](name), recent)
    return lines


def without_places(text: str) -> str:
    """Leave out of tracebacks where on a machine the code was."""
    return re.sub(r'(File \\*")/[^"]*?/(src|tests|site-packages|python3\.\d+)/', r"\1\2/", text)


def filed() -> list[Put]:
    """Return the rows that are also there as a SQLite file and as a dump."""
    return [row for row in read_state("pending")[0] if row.key.key.split("/")[0] in FILED]


def write_sqlite(path: Path, rows: Iterable[Put]) -> None:
    """Write a ledger as semel itself does, in one file with nothing beside it."""
    path.unlink(missing_ok=True)
    store = open_store(f"sqlite:///{path}")
    load(store, rows)
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def write_dump(path: Path, rows: Iterable[Put]) -> None:
    """Write the `pg_dump` of a ledger that semel made, without any settings."""
    server = PostgresServer(durable=False)
    try:
        store = open_store(server.url())
        load(store, rows)
        store.close()
        dump = ("pg_dump", "--no-owner", "--no-privileges", "--inserts", server.url())
        done = subprocess.run(
            [server._binaries / dump[0], *dump[1:]], capture_output=True, text=True, check=True
        )
    finally:
        server.close()
    left_out = ("--", "\\", "SET ", "SELECT pg_catalog.set_config")
    kept = [line for line in done.stdout.splitlines() if line and not line.startswith(left_out)]
    path.write_text("".join(f"{line}\n" for line in kept))


def main() -> None:
    logging.getLogger("semel").disabled = True  # its faults are planned
    for state in STATES:
        lines = [json.dumps(each, separators=(",", ":")) for each in rows_and_states(state)]
        file_of(state).write_text("".join(f"{without_places(line)}\n" for line in lines))
    rows = filed()
    write_sqlite(file_of("pending", "db"), rows)
    write_dump(file_of("pending", "sql"), rows)


if __name__ == "__main__":
    main()
