"""Every table of the ledger stops growing, under every identity; only the ids of events that were
discarded or skipped are kept for ever, in a few bytes each.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from semel.delivery import Assignment, PartitionDelivery
from semel.events import Attempt, Identity
from semel.ledger.inspect.ledger import TABLES
from semel.ledger.journal import Journal
from semel.ledger.store.commit import Sweep
from semel.ledger.verbs.pruning import OUTCOMES_TABLE as OUTCOMES
from semel.ledger.verbs.pruning import REMEMBER_S
from support.destinations import (
    Absorber,
    Crash,
    Database,
    Destination,
    Logs,
    Post,
    crash_after,
    lost,
)
from support.pipeline import COUNTER, GIVEN, INCREASING, POSITION, World, events, world_of

MINIBATCHES = 10_000
STEP_S = REMEMBER_S / 300  # a minibatch is forgotten after 300 others
ENTITIES = "abcdef"
TROUBLE_EVERY = 50


def sizes(world: World) -> dict[str, tuple[int, int]]:
    return {table: world.store.size(table) for table in TABLES}


def grow(
    identity: Identity,
    make: Callable[[], Destination],
    count: int,
    plant: Callable[[World], None] = lambda _: None,
) -> None:
    """Run minibatches, some with doubts and dead letters that a person resolves, and watch."""
    world = world_of(make(), identity, chunk_rows=1)
    plant(world)
    journal = Journal(world.client)  # one worker process that lives all the time
    most: list[dict[str, tuple[int, int]]] = [{}, {}]
    for batch in range(count):
        world.clock.move(STEP_S)
        text = f"{ENTITIES[batch % 6]}{2 * batch} {ENTITIES[(batch + 1) % 6]}{2 * batch + 1}"
        if batch % TROUBLE_EVERY == 25:
            trouble(world, text)
        opening = world.open(batch)
        assignment = Assignment(
            "pay",
            opening,
            identity,
            world.partition,
            Attempt(1, batch),
            world.process("worker"),
            0,
        )
        rows: list[pa.RecordBatch] = [events(text)]
        delivery = PartitionDelivery(assignment, world.sinks, world.client, journal, world.runtime)
        world.driver.end(opening, delivery.run(rows))
        tidy(world)
        if batch % 50 == 49:
            half = most[batch >= count // 2]
            for table, (rows_, bytes_) in sizes(world).items():
                known = half.get(table, (0, 0))
                half[table] = (max(known[0], rows_), max(known[1], bytes_))
    first, second = most
    for table in TABLES:
        assert second[table][0] <= first[table][0] * 1.05 + 1, (table, first, second)
        if table == OUTCOMES:  # what became of them stays known, in a few bytes each
            troubles = count // TROUBLE_EVERY
            assert second[table][1] <= 64 * second[table][0] + 16 * troubles, second
        else:
            assert second[table][1] <= first[table][1] * 1.10 + 64, (table, first, second)
    assert first["parked"][0] > 0
    assert world.heads() == []


def trouble(world: World, text: str) -> None:
    """The first event of the next minibatch meets a lost answer, or is refused."""
    if isinstance(world.out, Post):
        world.out.plan(lost)
    else:
        world.out.refuses = {text.split(maxsplit=1)[0]}


def tidy(world: World) -> None:
    """A person resolves what is parked; the witness forgets what it has seen."""
    world.out.effects.clear()
    world.out.calls.clear()
    world.wire.forget()
    world.store.scans.clear()
    if isinstance(world.out, Absorber):
        world.out.keys.at.clear()
    if isinstance(world.out, Database):
        world.out.history.clear()
    for log in getattr(world.out, "logs", {}).values():
        del log.records[:-1]
    if world.out.refuses or world.heads():
        for name, state in (each.split() for each in world.parked()):
            if state in ("held", "rejected"):
                world.resolve(name, "discarded")
        world.out.refuses.clear()


@pytest.mark.rows("S18")
@pytest.mark.parametrize(
    ("identity", "make"),
    [
        pytest.param(POSITION, Database, id="position"),
        pytest.param(INCREASING, Post, id="increasing"),
        pytest.param(COUNTER, Logs, id="counter"),
        pytest.param(GIVEN, Absorber, id="set"),
    ],
)
def test_no_table_grows_in_ten_thousand_minibatches(
    identity: Identity, make: Callable[[], Destination]
) -> None:
    grow(identity, make, MINIBATCHES)


def test_a_table_that_grows_is_found() -> None:
    def never_sweeps(world: World) -> None:
        world.store.forgets = lambda each: isinstance(each, Sweep)

    with pytest.raises(AssertionError, match="streams"):
        grow(POSITION, Database, 400, never_sweeps)


@pytest.mark.rows("S18")
@pytest.mark.parametrize("identity", [POSITION, INCREASING, GIVEN], ids=lambda each: str(each)[:40])
def test_a_checkpoint_lost_again_and_again_leaves_nothing_behind_either(
    identity: Identity,
) -> None:
    world = world_of(Database(), identity, chunk_rows=1)
    counts = []
    for generation in range(600):
        world.clock.move(REMEMBER_S / 100)
        world.start()
        world.out.plan(crash_after)
        opening = world.open(0, f"q{generation}")
        text = " ".join(f"a{at}" for at in range(max(0, generation - 5), generation + 2))
        with pytest.raises(Crash):
            world.task(opening, text, accept_gap=True)
        counts.append(sum(rows for rows, _ in sizes(world).values()))
    assert max(counts[300:]) <= max(counts[:300]) * 1.05
    assert len(world.out.effects) == 600
