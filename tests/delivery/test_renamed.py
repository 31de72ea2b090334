"""A renamed pipeline continues under its new name: nothing is lost or repeated at any sink."""

from __future__ import annotations

import json

import pytest

from semel.errors import ConfigurationError, Diverged, Fenced, NotDelivered
from semel.ledger import Lifecycle, check_ledger
from semel.ledger.store.commit import Key, Put
from semel.ledger.verbs.lifecycle import TABLES_OF_PIPELINE
from semel.ledger.verbs.runs import NAMES_TABLE, Owners
from semel.streams import stream_of_pipeline
from support.destinations import Crash, crash_after, lost
from support.pipeline import (
    EXACT,
    KINDS,
    World,
    crash_everywhere,
    once,
    reply_lost,
    world_like,
)


def rename(world: World, new: str = "charges") -> None:
    lifecycle = Lifecycle(world.client, stream_of_pipeline(world.client.pipeline))
    lifecycle.rename(new, stream_of_pipeline(new), "ann")


def forget(world: World) -> None:
    Lifecycle(world.client, stream_of_pipeline(world.client.pipeline)).forget("ann")


def half_delivered(kind: str) -> World:
    """A minibatch is complete; the call of the next one arrived, and then its process was gone."""
    world = world_like(kind)
    world.minibatch(0, "a1 b2")
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "a3 b4")
    return world


def beside(world: World, name: str) -> World:
    """Another pipeline in the same ledger."""
    other = World(name=name, clock=world.clock)
    other.store, other.sinks = world.store, world.sinks
    other.take_name(name)
    return other


def go_on(world: World) -> None:
    """Start the query under the name that the ledger has."""
    known = [at.key for at, _ in world.store.memory.scan("pipelines", "")]
    assert known in (["pay"], ["charges"])
    world.take_name(known[0])
    world.start()
    world.minibatch(1, "a3 b4")
    world.minibatch(2, "a5 b6")


@pytest.mark.parametrize("kind", KINDS)
def test_a_rename_in_the_middle_of_a_minibatch_loses_and_repeats_nothing(kind: str) -> None:
    """Wherever the rename crashes, the pipeline has one of the two names, with all of its rows."""
    for told, world in crash_everywhere(lambda: half_delivered(kind), rename):
        go_on(world)
        if world.name == "pay":
            rename(world)
            world.take_name("charges")
            world.start()
        world.minibatch(3, "a7 b8")
        for name in world.parked():
            if name.endswith(" held"):
                world.resolve(name.partition(" ")[0], "delivered")
        world.driver.drain()
        assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6 a7 b8", told
        assert check_ledger(world.store.memory)[1] == [], told
        left = [at for table in TABLES_OF_PIPELINE for at, _ in world.store.memory.scan(table, "")]
        assert not [at for at in left if at.key.split("/")[0] != "charges"], told


@pytest.mark.parametrize("kind", EXACT)
def test_without_the_name_that_destinations_know_it_would_be_noticed(kind: str) -> None:
    """The planted violation: the rename forgets under which name the sink was called before."""
    world = half_delivered(kind)
    rename(world)
    at = Key("pipelines", "charges")
    row = json.loads(world.store.memory.read([at])[at])
    assert row.pop("known_as") == "pay"
    world.store.memory.commit([], [Put(at, json.dumps(row, sort_keys=True))])
    try:
        go_on(world)
    except (Diverged, AssertionError):
        return
    assert once(world.out.seen) != "a1 b2 a3 b4 a5 b6"


@pytest.mark.parametrize("kind", ["opaque", "repeatable", "transactional", "sequenced"])
def test_parked_events_are_renamed_and_sent_again_under_their_old_identity(kind: str) -> None:
    world = world_like(kind, on_reject="block")
    world.out.refuses = {"a1"}
    world.minibatch(0, "a1 b2 a3")
    before = world.parked()
    assert before == ["a1 rejected", "a3 waiting"]
    rename(world)
    world.take_name("charges")
    assert world.parked() == before
    world.out.refuses = set()
    world.resolve("a1", "resend")
    world.start()
    world.minibatch(1, "b4")
    assert once(world.out.seen) == "a1 b2 a3 b4"
    assert {name.split()[1] for name in world.parked()} == {"delivered"}


def test_a_lost_reply_of_each_commit_is_recognised() -> None:
    for number in range(2):
        world = half_delivered("opaque")
        world.store.script.extend([lambda act: act()] * number)
        world.store.script.append(reply_lost)
        rename(world)
        go_on(world)
        assert world.name == "charges"


def test_an_attempt_that_is_still_alive_records_nothing_more() -> None:
    world = half_delivered("transactional")
    zombie = world.driver
    opening = zombie.begin("q", 1)
    rename(world)
    with pytest.raises((Fenced, ConfigurationError)):
        world.task(opening, "a3 b4")
    with pytest.raises(Fenced, match="no owner of it any more"):
        zombie.beat()
    with pytest.raises(ConfigurationError, match="was renamed to 'charges' by ann; use that name"):
        world.start()
    go_on(world)
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6"


def test_a_second_rename_and_the_way_back_keep_what_destinations_know() -> None:
    world = half_delivered("repeatable")
    rename(world)
    world.take_name("charges")
    rename(world, "payments")
    world.take_name("payments")
    assert world.known_as == "pay"
    for name, says in (("pay", "renamed to 'payments'"), ("charges", "renamed to 'payments'")):
        world.take_name(name)
        with pytest.raises(ConfigurationError, match=says):
            world.start()
    world.take_name("payments")
    with pytest.raises(ConfigurationError, match="must be another text than 'payments'"):
        rename(world, "payments")
    rename(world, "pay")
    world.take_name("pay")
    assert (world.known_as, Owners(world.client).taken()) == ("", None)
    go_on(world)
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6"


def test_a_name_that_has_a_pipeline_is_refused() -> None:
    world = half_delivered("opaque")
    beside(world, "charges").start()
    with pytest.raises(ConfigurationError, match="there are rows of a pipeline 'charges'"):
        rename(world)
    for wrong in ("", "x" * 600, "charges@1"):  # the last one would be taken for a batch job
        with pytest.raises(ConfigurationError, match="the new name must be another text"):
            rename(world, wrong)


# -- forget


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_forget_that_crashes_refuses_every_start_until_it_is_run_again(kind: str) -> None:
    for told, world in crash_everywhere(lambda: half_delivered(kind), forget):
        taken = Owners(world.client).taken()
        rows = sum(world.store.size(table)[0] for table in TABLES_OF_PIPELINE)
        if taken is not None:  # half forgotten
            with pytest.raises(ConfigurationError, match="`semel forget pay --yes` again"):
                world.start()
            assert [each.table for each in check_ledger(world.store.memory)[1]] == [NAMES_TABLE]
        elif rows:  # it crashed before it began
            go_on(world)
            continue
        forget(world)
        for table in (*TABLES_OF_PIPELINE, NAMES_TABLE, "markers"):
            assert world.store.size(table)[0] == 0, (told, table)


def test_other_pipelines_are_left_alone() -> None:
    world = half_delivered("opaque")
    for name in ("pay2", "pa", "pay/1"):
        other = beside(world, name)
        other.start()
        other.minibatch(0, "c1")
    kept = [
        (at, text)
        for table in TABLES_OF_PIPELINE
        for at, text in world.store.memory.scan(table, "")
        if at.key.split("/")[0] != "pay"
    ]
    forget(world)
    left = [each for table in TABLES_OF_PIPELINE for each in world.store.memory.scan(table, "")]
    assert left == kept


def test_a_pipeline_of_the_same_name_begins_anew_where_the_destination_keeps_nothing() -> None:
    world = half_delivered("opaque")
    rename(world)
    world.take_name("charges")
    forget(world)
    for name in ("charges", "pay"):  # both names are free
        world.take_name(name)
        world.start()
        world.minibatch(0, "c1")


@pytest.mark.parametrize("kind", ["transactional", "sequenced"])
def test_a_destination_with_progress_refuses_a_new_pipeline_of_a_forgotten_name(kind: str) -> None:
    """Its rows name a minibatch that the new ledger does not have: nothing is silently repeated."""
    world = half_delivered(kind)
    seen = world.out.seen
    forget(world)
    world.start()
    with pytest.raises((Diverged, NotDelivered)):
        world.minibatch(0, "a1 b2")
    assert world.out.seen == seen


def test_a_lost_event_counts_as_unsettled() -> None:
    world = world_like("opaque", on_doubt="hold")
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    counted = Lifecycle(world.client, stream_of_pipeline("pay")).count()
    assert (counted.parked, counted.pending, counted.unsettled) == (1, 0, 1)
    opening = world.open(1)
    world.out.plan(crash_after)
    with pytest.raises(Crash):
        world.task(opening, "c3")
    counted = Lifecycle(world.client, stream_of_pipeline("pay")).count()
    assert (counted.parked, counted.pending) == (1, 1)
    tables = {table: world.store.size(table)[0] for table in TABLES_OF_PIPELINE}
    assert counted.tables == {table: count for table, count in tables.items() if count}


def released(kind: str) -> World:
    """Two entities are blocked by dead letters, which a person has released."""
    world = world_like(kind, on_reject="block")
    world.out.refuses = {"a1", "b2"}
    world.minibatch(0, "a1 b2 a3 b4")
    world.out.refuses = set()
    for name in ("a1", "b2"):
        world.resolve(name, "resend")
    return world


def as_it_was_renamed_before(world: World) -> None:
    """Let the slots name events by their old keys, as 0.4.0 left them."""
    store = world.store.memory
    for at, text in store.scan("owners", "charges/resend/"):
        store.commit([], [Put(at, text.replace('"charges/', '"pay/'))])


def send(world: World, batch: int = 1) -> None:
    world.start()
    world.minibatch(batch, {1: "c5", 2: "a6 b7 c8", 3: "c9"}[batch])
    world.driver.drain()


@pytest.mark.parametrize(
    ("kind", "version"), [*((kind, "now") for kind in KINDS), ("transactional", "0.4.0")]
)
def test_a_rename_after_a_crash_while_released_events_are_sent_loses_and_repeats_nothing(
    kind: str, version: str
) -> None:
    """The slot of a sender names the event that it has; under the new name it has another key."""
    for told, world in crash_everywhere(lambda: released(kind), send):
        rename(world)
        if version != "now":
            as_it_was_renamed_before(world)
        world.take_name("charges")
        for batch in (1, 2):
            send(world, batch)
            world.clock.move(10_000.0)
        for name, state in (each.split() for each in world.parked()):
            if state == "held":
                arrived = name in world.out.seen.split()
                world.resolve(name, "delivered" if arrived else "resend")
        send(world, 3)
        world.clock.move(10_000.0)
        world.driver.drain()
        send(world, 3)
        assert once(world.out.seen) == "a1 b2 a3 b4 c5 a6 b7 c8 c9", told
        assert not world.heads(), told
        assert check_ledger(world.store.memory)[1] == [], told
