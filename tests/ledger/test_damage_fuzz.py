"""Damaged rows of every table: every command and the engine work, or name the row."""

from __future__ import annotations

import copy
import os
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from semel.errors import SemelError
from semel.events import IdSet, Minibatch
from semel.events.event import EventID
from semel.ledger import Ledger, LedgerClient, MarkerHead, MarkerRow, make_key, open_store
from semel.ledger.inbox_rows import INBOX_TABLES
from semel.ledger.inspect.check import check_ledger
from semel.ledger.inspect.ledger import TABLES as ALL_TABLES
from semel.ledger.inspect.listing import load_row
from semel.ledger.payloads import DamagedRow
from semel.ledger.store.commit import Key, Put
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.parked import resolve_parked
from semel.ledger.verbs.pruning import REMEMBER_S, OutcomeRow, Pruning, outcome_key
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.ledger.verbs.reset import ResetRow, read_reset_standing
from semel.ledger.verbs.runs import NameRow, name_key
from semel.protocol import Judgement, ParkedState
from semel.verify.simulator.cluster import MemoryStore
from support.command_line import semel
from support.ledger.crashed_pipelines import INPUTS, crash_in_the_middle, load, restored, written
from support.ledger.damage import WAYS
from support.pipeline import World

TABLES = tuple(each for each in ALL_TABLES if each not in INBOX_TABLES)
"""Those of pipelines; tests/cli/test_inbox.py has damage of the others."""

SEED = int(os.environ.get("SEMEL_DAMAGE_SEED", "11"))
EACH = int(os.environ.get("SEMEL_DAMAGE_EACH", "20"))
"""How many damaged rows of each table are tried."""
SECRET = "hunter2"

EVENTS: tuple[EventID, ...] = (1, 6, "x", (1, 2))


@dataclass
class Crashed:
    """A pipeline after its crash: the rows of its ledger, and what its destinations have."""

    name: str
    rows: dict[Key, str]
    states: dict[tuple[str, str], dict[str, Any]]

    @property
    def scope(self) -> str:
        return "t/0" if self.name == "position" else "a"

    def world(self) -> World:
        store = MemoryStore()
        load(store, [Put(at, text) for at, text in self.rows.items()])
        return restored(self.name, store, copy.deepcopy(self.states))


def crash_of(name: str) -> Crashed:
    lines = list(written(crash_in_the_middle(name)))
    rows = {
        Key(each["table"], each["key"]): each["payload"].replace("no reply", SECRET)
        for each in lines
        if "key" in each
    }
    made = Crashed(name, rows, {(name, each["sink"]): each for each in lines if "sink" in each})
    outcome = OutcomeRow(made.scope, IdSet.of([1]), IdSet.of([2]))
    rows[outcome_key(name, "post", made.scope)] = outcome.dump()
    reset = ResetRow(
        number=1,
        at=1.7e9,
        by="ann",
        reason="the input was moved",
        to="positions",
        positions={"t/0": 1},
        before={"t/0": 4},
        repeat=False,
        run=1,
        minibatch=Minibatch(1, 0),
        serial=1,
    )
    rows[make_key("resets", name, 1)] = reset.dump()
    rows[name_key(f"{name}-before")] = NameRow(name, 1.7e9, "ann").dump()
    stream = f"pipeline:{name}"
    marker = MarkerRow({"0": '{"logOffset":1}'}, 1.5, 20.0, "a marker every 1.5 s", 1.7e9, 30)
    rows[make_key("markers", stream)] = MarkerHead(1, {"rate": 20.0}).dump()
    rows[make_key("markers", stream, 1)] = marker.dump()
    return made


@pytest.fixture(scope="module")
def crashes() -> list[Crashed]:
    return [crash_of(name) for name in INPUTS]


@dataclass
class Damage:
    """One row that is not as semel wrote it; the story replays it."""

    crashed: Crashed
    at: Key
    text: str
    story: str

    def world(self) -> World:
        world = self.crashed.world()
        world.store.memory._tables[self.at.table][self.at.key] = self.text
        return world

    @property
    def unreadable(self) -> bool:
        try:
            load_row(self.at, self.text)
        except DamagedRow:
            return True
        return False

    def outcome(self, act: Callable[[], object]) -> None:
        """It must work or raise an error that names the row; nothing else."""
        told: SemelError | None = None
        try:
            act()
        except SemelError as error:
            told = error
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-4:])
            pytest.fail(f"{self.story}: {type(error).__name__}: {error}\n{where}")
        assert SECRET not in str(told), self.story
        if isinstance(told, DamagedRow):
            assert told.table == self.at.table, f"{self.story}: {told}"
            assert self.at.key.startswith(str(told.key)), f"{self.story}: {told}"


def damages(crashes: list[Crashed], table: str, purpose: str, count: int) -> Iterator[Damage]:
    random = Random(f"{SEED} {table} {purpose}")
    for number in range(count):
        crashed = random.choice(crashes)
        keyed = sorted(at for at in crashed.rows if at.table == table)
        if not keyed:
            continue
        at, way = random.choice(keyed), random.choice(WAYS)
        text = way(crashed.rows[at], random)
        if text != crashed.rows[at]:
            story = f"seed {SEED}, {purpose} {number}: {way.__name__} of {at}: {text[:300]}"
            yield Damage(crashed, at, text, story)


def looks(world: World, scope: str) -> Iterator[Callable[[], object]]:
    """Every verb that looks at a ledger, or that a person calls."""
    name = world.name
    ledger, client = Ledger(world.store), LedgerClient(world.store, name, world.clock)
    yield ledger.pipelines
    yield partial(ledger.sinks, name)
    yield partial(ledger.summary, name)
    yield ledger.every_parked
    yield partial(ledger.parked, name)
    for table in TABLES:
        yield partial(ledger.listed, table)
        yield partial(ledger.rows, table)
    for event in EVENTS:
        yield partial(ledger.find, name, scope, event)
    yield partial(ledger.about, name, scope)
    yield partial(check_ledger, world.store)
    parked = [at for at in world.store.memory.rows() if at.table == "parked"]
    for at in parked[:4]:
        yield partial(resolve_parked, client, "post", at, ParkedState.DISCARDED, "ann", "looked")
    yield partial(judge_minibatch, client, Minibatch(1, 2), Judgement.AS_REPLAYED, "ann", "looked")
    yield partial(rescale_pipeline, client, 3)
    yield partial(read_reset_standing, client)
    yield partial(Pruning(client, 1.0).run, ["post", "base", "absorb"])


@pytest.mark.parametrize("table", TABLES)
def test_every_look_works_or_names_the_row(table: str, crashes: list[Crashed]) -> None:
    tried = 0
    for damage in damages(crashes, table, "looks", EACH):
        world = damage.world()
        if damage.unreadable:
            found = [(each.table, each.key) for each in check_ledger(world.store)[1]]
            assert tuple(damage.at) in found, damage.story
        for look in looks(world, damage.crashed.scope):
            damage.outcome(look)
        tried += 1
    assert tried


def deliver(world: World) -> None:
    """The engine: start again, end the minibatch, send parked events, lose the checkpoint."""
    inputs = INPUTS[world.name]
    last = len(inputs) - 1
    world.start()
    world.minibatch(last, inputs[last])
    world.clock.move(3_600)
    world.driver.drain()
    world.minibatch(last + 1, "z1000001")
    world.clock.move(3 * REMEMBER_S)
    Pruning(world.client).run([sink.name for sink in world.sinks])
    world.minibatch(last + 2, "z1000002")


def lose_the_checkpoint(world: World) -> None:
    world.start()
    for batch, text in enumerate(INPUTS[world.name]):
        world.minibatch(batch, text, query="another")


def as_replayed(world: World) -> None:
    """The engine after a judgement: the records of the minibatch are dropped."""
    last = len(INPUTS[world.name]) - 1
    judge_minibatch(world.client, Minibatch(1, last), Judgement.AS_REPLAYED, "ann", "looked")
    world.start()
    world.minibatch(last, INPUTS[world.name][last])


@pytest.mark.parametrize("engine", [deliver, lose_the_checkpoint, as_replayed])
@pytest.mark.parametrize("table", TABLES)
def test_the_engine_works_or_names_the_row_and_repeats_nothing(
    engine: Callable[[World], None], table: str, crashes: list[Crashed]
) -> None:
    tried = 0
    for damage in damages(crashes, table, engine.__name__, EACH // 2):
        world = damage.world()
        damage.outcome(partial(engine, world))
        tried += 1
        if not damage.unreadable or engine is as_replayed:
            continue  # a readable row is believed; and as replayed means: once more
        for sink, destination in world.destinations.items():
            seen = destination.seen.split()
            assert len(seen) == len(set(seen)), f"{damage.story}: {sink}: {seen}"
    assert tried


COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("status", "--watch"),
    ("parked", "ls", "--all"),
    ("parked", "ls", "--json"),
    ("parked", "show", "{name}/post/{scope}/{event}"),
    ("ledger", "ls"),
    ("ledger", "ls", "{table}"),
    ("ledger", "ls", "{table}", "--json"),
    ("ledger", "find", "--pipeline", "{name}", "--entity", "{scope}", "--event", "6"),
    ("ledger", "find", "--pipeline", "{name}", "--entity", "{scope}"),
    ("ledger", "check"),
    ("ledger", "check", "--json"),
    ("resolve", "{name}/post/{scope}/{event}", "discard", "--reason", "not wanted"),
)


@pytest.mark.parametrize("table", TABLES)
def test_every_command_works_or_names_the_row(
    table: str,
    crashes: list[Crashed],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, path = tmp_path / "whole.db", tmp_path / "ledger.db"
    store = open_store(f"sqlite:///{whole}")
    for crashed in crashes:
        load(store, [Put(at, text) for at, text in crashed.rows.items()])
    store.close()
    monkeypatch.setenv("SEMEL_LEDGER", f"sqlite:///{path}")
    monkeypatch.setattr("semel.operate.status.WATCH_S", 0.0)  # no run is watched here
    held = {"given": "30001", "increasing": "4", "position": "3", "counter": "1"}
    for damage in damages(crashes, table, "commands", max(2, EACH // 10)):
        shutil.copy(whole, path)
        with sqlite3.connect(path) as connection:
            content = damage.text.encode(errors="surrogateescape")
            connection.execute(
                "UPDATE semel SET payload = CAST(? AS TEXT) WHERE tbl = ? AND key = ?",
                (content, *damage.at),
            )
        connection.close()
        name, scope = damage.crashed.name, damage.crashed.scope.replace("/", "%2F")
        for command in COMMANDS:
            known = {"name": name, "scope": scope, "event": held[name], "table": table}
            status, _, err = semel(capsys, *(each.format(**known) for each in command))
            story = f"{damage.story}: {command}: {err}"
            assert status in (0, 1, 2), story
            assert "Traceback" not in err, story
            assert SECRET not in err, story
            assert len(err.splitlines()) == (1 if status == 2 else 0), story
            if "damaged" in err:
                assert table in err, story


def test_the_doctor_works_beside_a_damaged_row(
    crashes: list[Crashed], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/ledger.db")
    load(store, [Put(at, "{") for at in crashes[0].rows])
    store.close()
    status, out, err = semel(capsys, "doctor", "--ledger", f"sqlite:///{tmp_path}/ledger.db")
    assert status in (0, 1)
    assert err == ""
    assert "can be written" in out
