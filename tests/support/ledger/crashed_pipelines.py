"""Four pipelines that crash, and how their ledger and destinations are written down and read back.

`python -m support.ledger.crashed_pipelines > FILE`, run in `tests` with an older version of semel,
writes what that version leaves behind in the middle of a crash. Only names and inputs stand here,
no row of a ledger: the file is what a later version has to continue.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semel.events import EventID, Identity, Minibatch
from semel.ledger.store.commit import Key, Put, Store
from semel.sinks import Progress
from semel.verify.models import LogRecord, SeenKeys, SequencedLog
from support.destinations import (
    Absorber,
    Crash,
    Database,
    Destination,
    Effect,
    Logs,
    Post,
    Register,
    crash,
    crash_after,
    fine,
    lost,
    lost_on_the_way,
)
from support.pipeline import COUNTER, GIVEN, INCREASING, POSITION, World

FILE = Path(__file__).parents[2] / "ledger" / "fixtures" / "ledger-0.1.jsonl"

IDENTITIES: dict[str, Identity] = {
    "given": GIVEN,
    "increasing": INCREASING,
    "position": POSITION,
    "counter": COUNTER,
}
MANY = " ".join(f"{'abc'[at % 3]}{at * 7 % 20_011}" for at in range(1, 1_201))
PEOPLE = [f"{first}{second}" for first in "abcdefghijk" for second in "abcdefghijklmnopqrst"]

INPUTS: dict[str, list[str]] = {
    "given": [MANY, "a30001 b30002 c30003 d30004", "a30011 b30012 c30013 d30014 e30015 f30016"],
    "increasing": ["a1 b2 c3", "a4 b5 c6", "a7 b8 c9 d10 e11 f12"],
    "position": ["a0 b1 c2", "a3 b4 c5", "a6 b7 c8 d9 e10 f11"],
    "counter": [
        " ".join(f"{who}{at * 1000 + batch}" for at, who in enumerate(PEOPLE))
        for batch in range(1, 6)
    ]
    + ["a900001 b900002 c900003 d900004 e900005"],
}
"""The rows of each batch of Spark; the last one is open when the pipeline crashes."""


def world_of(name: str) -> World:
    """A pipeline with a destination of every capability, before it starts."""
    world = World(IDENTITIES[name], name=name)
    rows = {"given": 1_500, "counter": 64}.get(name, 2)
    world.add(Absorber(), "absorb", chunk_rows=rows, span_chunks=2)
    world.add(Register(), "register", chunk_rows=rows, span_chunks=1)
    world.add(Database(), "base", chunk_rows=rows)
    world.add(Logs(), "log", chunk_rows=rows)
    world.add(Post(), "post", window=2 if rows == 2 else 64)
    return world


def crash_in_the_middle(name: str) -> World:
    """Deliver all batches but the last, park events in every way, and die within the last."""
    world = world_of(name)
    post, absorb, base = (world.destinations[each] for each in ("post", "absorb", "base"))
    world.start()
    older, before, last = INPUTS[name][:-2], INPUTS[name][-2], INPUTS[name][-1]
    for batch, text in enumerate(older):
        world.minibatch(batch, text)
        world.clock.move(1)
    first, second, third = before.split()[:3]
    post.plan(lost, lost_on_the_way)  # in doubt, one of them arrived
    base.refuses.add(third)  # dead letters
    absorb.refuses.add(third)
    world.minibatch(len(older), before)
    del first
    world.resolve(second, "resend", "post")
    post.plan(crash_after)
    with suppress(Crash):  # a resend that is just being sent
        world.clock.move(60)
        world.driver.drain()
    opening = world.open(len(older) + 1)
    post.plan(fine, fine, crash)
    with suppress(Crash):
        world.task(opening, last)
    return world


# -- as text


def written(world: World, recent: set[str] | None = None) -> Iterator[dict[str, Any]]:
    """Return the destinations and then the rows of one pipeline, each as a JSON object.

    Of the destinations only what became of the `recent` events is kept; by default those of the
    last two minibatches.
    """
    if recent is None:
        recent = set(" ".join(INPUTS[world.name][-2:]).split())
    for sink, destination in world.destinations.items():
        state = _state(destination, recent)
        yield {"pipeline": world.name, "sink": sink, "now": world.clock.now} | state
    for at, payload in world.store.memory.rows().items():
        yield {"table": at.table, "key": at.key, "payload": payload}


def read(path: Path = FILE) -> tuple[list[Put], dict[tuple[str, str], dict[str, Any]]]:
    """Return the rows of the ledger, and what each destination has, by pipeline and sink."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [
        Put(Key(each["table"], each["key"]), each["payload"]) for each in lines if "key" in each
    ]
    states = {(each["pipeline"], each["sink"]): each for each in lines if "sink" in each}
    return rows, states


def load(store: Store, rows: Iterable[Put]) -> None:
    """Put the rows into a store."""
    store.commit([], list(rows))


def restored(
    name: str,
    store: Store,
    states: dict[tuple[str, str], dict[str, Any]],
    make: Callable[[str], World] = world_of,
) -> World:
    """The world after the crash: the same destinations, with what they had, and this ledger."""
    world = make(name)
    world.store.memory = store  # type: ignore[assignment]
    world.clock.now = states[name, "post"]["now"] + 100
    world._starts = 100
    world._tasks = 1_000
    for sink, destination in world.destinations.items():
        _restore(destination, states[name, sink])
    return world


def _state(destination: Destination, recent: set[str]) -> dict[str, Any]:
    """Return the recent events that a destination has; no other may arrive again."""
    effects = [each for each in destination.effects if each.name in recent]
    state: dict[str, Any] = {"effects": [_effect(each) for each in effects]}
    match destination:
        case Absorber():
            state["keys"] = [each.key for each in effects]
        case Register():
            state["arrived"] = sorted(destination.arrived)
        case Database():
            state["rows"] = [
                [list(place), row.to_json()] for place, row in destination.progress.rows.items()
            ]
        case Logs():
            numbers = {(each.osn, each.entity, each.event): at for at, each in enumerate(effects)}
            state["logs"] = [
                [
                    list(place),
                    [_record(each, numbers) for each in log.records if _named(each) in numbers],
                ]
                for place, log in destination.logs.items()
            ]
    return state


def _restore(destination: Destination, state: dict[str, Any]) -> None:
    destination.effects = [_effect_of(each) for each in state["effects"]]
    match destination:
        case Absorber():
            destination.keys = SeenKeys(at=dict.fromkeys(state["keys"], state["now"]))
        case Register():
            destination.arrived = set(state["arrived"])
        case Database():
            destination.progress.rows = {
                tuple(place): Progress.from_json(row) for place, row in state["rows"]
            }
        case Logs():
            destination.logs = {
                tuple(place): SequencedLog([_record_of(each, destination) for each in log])
                for place, log in state["logs"]
            }


def _effect(effect: Effect) -> list[Any]:
    return [effect.name, effect.entity, effect.event, effect.osn]


def _effect_of(kept: list[Any]) -> Effect:
    name, entity, event, osn = kept
    return Effect(name, entity, event, osn, key="", value={}, at=0.0)


def _named(record: LogRecord) -> tuple[int, str, EventID]:
    return record.osn, record.entity, record.event


def _record(record: LogRecord, numbers: Mapping[tuple[int, str, EventID], int]) -> list[Any]:
    stamp = None if record.stamp is None else record.stamp.to_json()
    minibatch = list(asdict(record.minibatch).values())
    return [numbers[_named(record)], minibatch, record.sort_key, stamp, record.resend]


def _record_of(kept: list[Any], logs: Logs) -> LogRecord:
    at, minibatch, sort_key, stamp, resend = kept
    effect = logs.effects[at]
    progress = None if stamp is None else Progress.from_json(stamp)
    return LogRecord(
        effect.osn,
        effect.entity,
        effect.event,
        Minibatch(*minibatch),
        sort_key,
        progress,
        resend,
    )


def main() -> None:
    for name in INPUTS:
        for line in written(crash_in_the_middle(name)):
            sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
