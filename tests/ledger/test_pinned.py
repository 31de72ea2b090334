"""Ledgers in every state, as one commit left them, are continued: nothing lost, repeated or
reordered.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.ledger import open_store
from semel.ledger.inspect.check import check_ledger
from semel.ledger.store.commit import Store
from semel.verify.simulator.cluster import MemoryStore
from support.ledger.crashed_pipelines import load
from support.ledger.pinned_ledgers import (
    CASES,
    FILED,
    IDENTITIES,
    SINKS,
    STATES,
    SURVIVES,
    ReplayStep,
    complaints,
    file_of,
    filed,
    go_on,
    inputs_of,
    left,
    read_state,
    rest_of,
    rows_and_states,
    without_places,
)
from support.pipeline import World


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if postgres else f"sqlite:///{tmp_path}/left.db"
    opened = open_store(url)
    yield opened
    opened.close()


def had(world: World) -> dict[str, list[str]]:
    return {sink: each.seen.split() for sink, each in world.destinations.items()}


def continued(
    state: str, name: str, store: Store, steps: list[ReplayStep] | None = None
) -> list[str]:
    """Start the query again, deliver all that follows, and return what is wrong then."""
    world = left(state, name, store)
    before = had(world)
    go_on(world, rest_of(state, name) if steps is None else steps)
    found = complaints(world, state, before)
    for sink in SINKS:
        found += [
            f"{sink}: {each} stays parked"
            for each in world.parked(sink)
            if not each.endswith(("delivered", "discarded"))
        ]
        found += [f"{sink}: {each} stays blocked" for each in world.heads(sink)]
    return found


def kept(state: str) -> Store:
    store = MemoryStore()
    load(store, read_state(state)[0])
    return store


# -- the fixture


def words_of(state: str) -> set[str]:
    """Return every state that a row is in, with its table."""
    found = set()
    for row in read_state(state)[0]:
        payload = json.loads(row.payload)
        if isinstance(payload.get("state"), str):
            found.add(f"{row.key.table} {payload['state']}")
        if row.key.table == "open":
            complete = "complete" if payload["complete"] else "open"
            found.add(f"generation {payload['generation']} {complete}")
    return found


def test_the_clean_ledger_has_nothing_open_and_nothing_parked() -> None:
    assert words_of("clean") == {
        "generation 1 complete",
        "streams complete",
        "events settled",
        "events intended",  # the last span of a partition is settled by its completion
    }
    tables = {row.key.table for row in read_state("clean")[0]}
    assert not tables & {"parked", "heads"}


def test_the_pending_ledger_was_left_in_the_middle_of_everything() -> None:
    parked = {f"parked {each}" for each in ("held", "rejected", "waiting", "resend", "sending")}
    spans = {"events settled", "events intended"}
    streams = {"streams complete", "streams pending"}
    assert words_of("pending") == parked | spans | streams | {"generation 1 open"}
    rows = read_state("pending")[0]
    heads = {row.key.key.split("/")[0] for row in rows if row.key.table == "heads"}
    assert heads == set(IDENTITIES)
    texts = [row.payload for row in rows]
    for word in ('"packed":', '"full":true', '"full":false', '"trace":', '"0of2"', '"1of2"'):
        assert any(word in text for text in texts), word


@pytest.mark.parametrize("state", ["lost", "recorded", "replayed"])
def test_the_other_ledgers_were_left_within_their_second_generation(state: str) -> None:
    assert {"generation 2 open", "streams pending", "events intended"} <= words_of(state)
    names = {name for each, name in CASES if each == state}
    assert {key for key, _ in read_state(state)[1]} == names


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_wrong_with_what_was_left(state: str) -> None:
    assert check_ledger(kept(state)) == (len(read_state(state)[0]), [])


@pytest.mark.parametrize("state", STATES)
def test_no_place_of_a_machine_is_in_what_was_left(state: str) -> None:
    for path in file_of(state).parent.glob(f"{file_of(state).stem}.*"):
        content = path.read_text("latin-1")
        assert without_places(content) == content, path.name


# -- going on with it


@pytest.mark.parametrize(("state", "name"), CASES)
def test_nothing_is_lost_repeated_or_reordered_when_it_is_continued(
    state: str, name: str, store: Store
) -> None:
    load(store, read_state(state)[0])
    assert continued(state, name, store) == []


@pytest.mark.parametrize("name", FILED)
def test_a_sqlite_file_is_continued(name: str, tmp_path: Path) -> None:
    path = tmp_path / "left.db"
    shutil.copyfile(file_of("pending", "db"), path)
    store = open_store(f"sqlite:///{path}")
    assert continued("pending", name, store) == []
    store.close()


@pytest.mark.parametrize("name", FILED)
def test_a_dump_of_postgresql_is_continued(name: str, postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(file_of("pending", "sql").read_bytes())
    store = open_store(postgres_url)
    assert continued("pending", name, store) == []
    store.close()


def test_file_dump_and_lines_have_the_same_rows(postgres_url: str) -> None:
    query = "from {} where tbl <> 'semel' order by tbl, key"
    place = f"{file_of('pending', 'db').as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(place, uri=True)) as file:
        of_file = file.execute(f"select tbl, key, payload {query.format('semel')}").fetchall()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(file_of("pending", "sql").read_bytes())
        dumped = f"select tbl, key, payload {query.format('public.semel_ledger')}"
        of_dump = connection.execute(dumped.encode()).fetchall()
    of_lines = sorted((*row.key, row.payload) for row in filed())
    assert of_file == of_lines
    assert of_dump == of_lines


def test_a_complete_minibatch_that_spark_gives_again_repeats_nothing(store: Store) -> None:
    load(store, read_state("clean")[0])
    for name in IDENTITIES:
        inputs = inputs_of("clean", name)
        again = ReplayStep(inputs.batch, inputs.last)
        assert continued("clean", name, store, [again, *rest_of("clean", name)]) == [], name


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (state, name)
        for state, name in CASES
        if name in SURVIVES and (state, name[:8]) != ("replayed", "position")  # offsets have a gap
    ],
)
def test_a_checkpoint_that_is_lost_then_repeats_nothing_either(state: str, name: str) -> None:
    inputs = inputs_of(state, name)
    rest = [step.text for step in rest_of(state, name)]
    done = {"clean": [inputs.before, inputs.last], "lost": []}.get(state, [inputs.before])
    texts = [*inputs.older, *done, *rest]
    steps = [ReplayStep(batch, text, "a third") for batch, text in enumerate(texts)]
    assert continued(state, name, kept(state), steps) == []


# -- planted violations are found


def planted(state: str, table: str, start: str) -> Store:
    """Return a ledger that has lost the rows of a table that begin so."""
    rows = read_state(state)[0]
    stay = [row for row in rows if row.key.table != table or not row.key.key.startswith(start)]
    assert len(stay) < len(rows)
    store = MemoryStore()
    load(store, stay)
    return store


def whats(found: list[str]) -> Counter[str]:
    return Counter(each.rpartition(" ")[2] for each in found)


@pytest.mark.parametrize("sink", ["register", "post"])
@pytest.mark.parametrize("name", ["given", "increasing", "position"])
def test_spans_that_are_dropped_are_found_as_repeats(name: str, sink: str) -> None:
    found = continued("pending", name, planted("pending", "events", f"{name}/{sink}/"))
    assert whats(found)["repeated"] > 0
    assert {each.partition(":")[0] for each in found} == {sink}


@pytest.mark.parametrize("name", ["given", "increasing"])
def test_a_watermark_that_is_reset_is_found_as_repeats(name: str) -> None:
    store = planted("lost", "journal", f"{name}/watermark:register/")
    assert whats(continued("lost", name, store)) == {"repeated": 10}


@pytest.mark.parametrize("sink", ["absorb", "base", "log", "post"])
def test_parked_rows_that_are_dropped_are_found_as_losses(sink: str) -> None:
    store = planted("pending", "parked", f"increasing/{sink}/")
    found = continued("pending", "increasing", store)
    assert whats(found)["lost"] > 0
    assert {each.partition(":")[0] for each in found} == {sink}


@pytest.mark.parametrize("name", ["given", "position", "counter"])
def test_two_effects_that_change_places_are_found(name: str) -> None:
    world = left("clean", name, kept("clean"))
    before, effects = had(world), world.destinations["log"].effects
    go_on(world, rest_of("clean", name))
    entity = [at for at, effect in enumerate(effects) if effect.name.startswith("a")]
    first, second = entity[0], entity[-1]
    effects[first], effects[second] = effects[second], effects[first]
    who = "t/0" if name == "position" else "a"
    assert complaints(world, "clean", before) == [f"log: {who} was reordered"]


# -- the same is written now


ADDED = {"absorbed_by": {"event", "chunk", "place"}}
"""Fields that were added to rows since, and their values; older rows do not have them."""


def substance(line: str) -> dict[str, Any]:
    """A line without sentences, tracebacks, new fields and what depends on Arrow's version."""
    kept: dict[str, Any] = json.loads(line)
    if "payload" in kept:
        payload = json.loads(kept["payload"])
        left_out = ("why", "reason", "trace", "schema", "types", "figures")
        for name in ADDED.keys() & payload.keys():
            assert payload.pop(name) in ADDED[name]
        kept["payload"] = {name: each for name, each in payload.items() if name not in left_out}
    return kept


@pytest.mark.parametrize("state", STATES)
def test_the_same_story_leaves_the_same_rows_and_effects(state: str) -> None:
    now = [substance(json.dumps(line)) for line in rows_and_states(state)]
    then = [substance(line) for line in file_of(state).read_text().splitlines()]
    for ours, theirs in zip(now, then, strict=True):
        assert ours == theirs
