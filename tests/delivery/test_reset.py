"""Reset: a person lets a stopped pipeline begin elsewhere, and says what is repeated."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import Identity, Position
from semel.ledger import Ledger, check_ledger, pending_reset, read_reset_standing, reset_pipeline
from semel.ledger.rows import OpenRow
from semel.ledger.verbs.rescale import rescale_pipeline
from support.destinations import Crash, Database, Post, crash, lost
from support.pipeline import (
    COUNTER,
    GIVEN,
    INCREASING,
    KINDS,
    ORDERED_POSITION,
    POSITION,
    World,
    crash_everywhere,
    once,
    reply_lost,
    world_like,
    world_of,
)

pytestmark = pytest.mark.rows("O22")

BY_POSITION = {"position": POSITION, "position with entity": ORDERED_POSITION}
BY_ID = {"given": GIVEN, "increasing": INCREASING}
AGAIN = [kind for kind in KINDS if not kind.startswith("repeatable")]
"""Destinations that take an event again; REPEATABLE ones absorb it by its key."""


def world_with(kind: str, identity: Identity) -> World:
    """Two minibatches are delivered."""
    world = world_like(kind, identity)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    return world


def reset(world: World, to: str, *, repeat: bool = False, **positions: int) -> Any:
    named = {f"t/{name[1:]}": at for name, at in positions.items()}
    standing = read_reset_standing(world.client)
    return reset_pipeline(
        world.client, standing, to, named, "ann", "the bank lost the night", repeat=repeat
    )


def begin_again(world: World, text: str, starts: dict[str, int] | None = None) -> None:
    """Start the query with a new checkpoint; it reads `text` first."""
    world.start()
    query = f"q{world._starts}"
    opening = world.driver.begin(query, 0, starts)
    world.driver.end(opening, world.task(opening, text))
    world.minibatch(1, "a8 b9", query)


@pytest.mark.parametrize("identity", BY_POSITION.values(), ids=BY_POSITION)
@pytest.mark.parametrize("kind", AGAIN)
def test_by_position_what_lies_behind_the_new_position_is_delivered_again(
    kind: str, identity: Identity
) -> None:
    world = world_with(kind, identity)
    made = reset(world, "positions", repeat=True, p0=3)
    assert (made.before, made.positions) == ({"t/0": 5}, {"t/0": 3})
    begin_again(world, "a1 b2 a3 b4 a5")  # Spark may begin earlier: the rest is suppressed
    assert once(world.out.seen) == "a1 b2 a3 a3 b4 b4 a5 a8 b9"
    assert pending_reset(world.client) is None
    assert not check_ledger(world.store)[1]


@pytest.mark.parametrize("identity", BY_POSITION.values(), ids=BY_POSITION)
@pytest.mark.parametrize("kind", AGAIN)
def test_by_position_the_earliest_delivers_all_of_it_again(kind: str, identity: Identity) -> None:
    world = world_with(kind, identity)
    reset(world, "earliest", repeat=True)
    begin_again(world, "a1 b2 a3 b4 a5", {"t/0": 1})
    assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a5 a8 b9"
    assert not check_ledger(world.store)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_by_position_a_later_position_skips_and_repeats_nothing(kind: str) -> None:
    world = world_with(kind, POSITION)
    reset(world, "positions", p0=7)
    begin_again(world, "b4 a5 b6 a7", {"t/0": 7})
    assert once(world.out.seen) == "a1 b2 a3 b4 a7 a8 b9"


@pytest.mark.parametrize("starts", [{"t/0": 7}, None], ids=["known", "not known"])
def test_the_latest_accepts_that_input_is_skipped_and_a_lost_checkpoint_does_not(
    starts: dict[str, int] | None,
) -> None:
    world = world_with("transactional", POSITION)
    world.start()

    def lost_checkpoint() -> None:
        world.task(world.driver.begin("lost", 0, starts), "a7")

    with pytest.raises(Diverged, match="skipped"):
        lost_checkpoint()
    world = world_with("transactional", POSITION)
    reset(world, "latest")
    begin_again(world, "a7", starts)
    assert once(world.out.seen) == "a1 b2 a3 b4 a7 a8 b9"


def test_with_ordinals_whole_offsets_are_repeated() -> None:
    identity = Position(ordinals=("id",))
    world = world_of(Post(), identity)
    world.minibatch(0, "a1 b2 a3")
    reset(world, "positions", repeat=True, p0=2)
    assert read_reset_standing(world.client).known == {"t/0": 2}
    begin_again(world, "a1 b2 a3", {"t/0": 2})
    assert once(world.out.seen) == "a1 b2 b2 a3 a3 a8 b9"


@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
@pytest.mark.parametrize("kind", KINDS)
def test_by_id_a_reset_reads_again_and_delivers_only_what_never_was(
    kind: str, identity: Identity
) -> None:
    """A backfill."""
    world = world_with(kind, identity)
    reset(world, "earliest")
    begin_again(world, "a1 b2 c2 a3 b4 a5")
    assert once(world.out.seen) == "a1 b2 c2 a3 b4 a5 a8 b9"


@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
@pytest.mark.parametrize("kind", AGAIN)
def test_by_id_events_are_repeated_only_where_the_person_said_so(
    kind: str, identity: Identity
) -> None:
    world = world_with(kind, identity)
    reset(world, "earliest", repeat=True)
    begin_again(world, "a1 b2 a3 b4 a5")
    assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a5 a8 b9"
    assert not check_ledger(world.store)[1]
    world.start()  # a checkpoint that is lost after it repeats nothing
    world.minibatch(0, "a1 b2 a3 b4 a5 a8 b9 c10", "lost")
    assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a5 a8 b9 c10"


@pytest.mark.parametrize("kind", ["repeatable", "repeatable by chunk"])
def test_a_destination_that_remembers_keys_absorbs_a_repeat_or_takes_it_by_a_new_key(
    kind: str,
) -> None:
    world = world_with(kind, POSITION)
    reset(world, "earliest", repeat=True)
    begin_again(world, "a1 b2 a3 b4")
    again = "a1 b2 a3 b4 a8 b9" if kind == "repeatable" else "a1 a1 b2 b2 a3 a3 b4 b4 a8 b9"
    assert once(world.out.seen) == again


# -- what is refused


@pytest.mark.parametrize("identity", [POSITION, GIVEN], ids=["position", "given"])
def test_the_checkpoint_from_before_is_refused(identity: Identity) -> None:
    world = world_with("opaque", identity)
    reset(world, "earliest", repeat=True)
    world.start()
    with pytest.raises(ConfigurationError, match=r"was reset .* continues the checkpoint from bef"):
        world.open(2)
    assert pending_reset(world.client) is not None
    begin_again(world, "a1 b2")
    assert once(world.out.seen) == "a1 a1 b2 b2 a3 b4 a8 b9"


@pytest.mark.parametrize("identity", [POSITION, GIVEN], ids=["position", "given"])
def test_a_query_that_begins_elsewhere_is_refused_with_the_option_to_set(
    identity: Identity,
) -> None:
    world = world_with("opaque", identity)
    reset(world, "positions", repeat=True, p0=3)
    world.start()
    with pytest.raises(ConfigurationError) as refused:
        world.driver.begin("q2", 0, {"t/0": 1})
    assert "t/0 begins at 1 and not at 3" in str(refused.value)
    assert """.option('startingOffsets', '{"t": {"0": 3}}')""" in str(refused.value)
    begin_again(world, "a3 b4 a5", {"t/0": 3})
    assert once(world.out.seen) == "a1 b2 a3 a3 b4 b4 a5 a8 b9"


def test_counted_ids_are_refused() -> None:
    world = world_with("opaque", COUNTER)
    with pytest.raises(ConfigurationError, match="counts the ids"):
        reset(world, "earliest")


def test_in_the_middle_of_a_minibatch_it_is_refused() -> None:
    world = world_with("opaque", GIVEN)
    opening = world.open(2)
    world.out.plan(crash)
    with pytest.raises(Crash):
        world.task(opening, "a5 b6")
    with pytest.raises(ConfigurationError, match=r"minibatch 1\.2 is not complete"):
        reset(world, "earliest")


def test_a_repeat_is_refused_while_events_are_parked_and_a_re_read_is_not() -> None:
    world = world_of(Post(), GIVEN)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    with pytest.raises(ConfigurationError, match="1 events are parked, and would be sent a second"):
        reset(world, "earliest", repeat=True)
    reset(world, "earliest")
    begin_again(world, "a1 b2 c3")
    assert once(world.out.seen) == "a1 b2 c3 b9", "a waits behind the event in doubt"
    assert world.parked() == ["a1 held", "a8 waiting"]


def test_a_pipeline_that_ran_meanwhile_is_not_reset() -> None:
    world = world_with("opaque", GIVEN)
    standing = read_reset_standing(world.client)
    world.minibatch(2, "a5")
    with pytest.raises(Fenced, match="ran while it was reset; nothing was changed"):
        reset_pipeline(world.client, standing, "earliest", {}, "ann", "x", repeat=True)
    assert pending_reset(world.client) is None


def test_a_later_reset_replaces_one_that_no_start_has_acted_on() -> None:
    world = world_with("opaque", POSITION)
    reset(world, "positions", repeat=True, p0=1)
    made = reset(world, "positions", p0=5)
    assert (made.number, made.before) == (2, {"t/0": 1})
    begin_again(world, "a1 b2 a3 b4 a5", {"t/0": 5})
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 a8 b9"
    rows = [row for _, row in world.store.memory.scan("resets", "")]
    assert len(rows) == 2
    assert '"reason":"the bank lost the night"' in rows[0]


# -- crashes


@pytest.mark.parametrize("identity", [POSITION, GIVEN], ids=["position", "given"])
def test_after_a_crash_at_any_call_it_is_reset_as_a_whole_or_not_at_all(
    identity: Identity,
) -> None:
    def act(world: World) -> None:
        reset(world, "earliest", repeat=True)

    for what, world in crash_everywhere(lambda: world_with("opaque", identity), act):
        if pending_reset(world.client) is None:
            world.start()
            world.minibatch(2, "a5")
            assert once(world.out.seen) == "a1 b2 a3 b4 a5", what
        else:
            begin_again(world, "a1 b2 a3 b4", None)
            assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a8 b9", what


@pytest.mark.parametrize("identity", [POSITION, GIVEN], ids=["position", "given"])
def test_a_lost_reply_is_recognised(identity: Identity) -> None:
    world = world_with("opaque", identity)
    world.store.script.append(reply_lost)
    assert reset(world, "earliest", repeat=True).number == 1
    begin_again(world, "a1 b2 a3 b4")
    assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a8 b9"
    assert len(list(world.store.memory.scan("resets", ""))) == 1


@pytest.mark.parametrize("identity", [POSITION, GIVEN, INCREASING])
def test_after_a_crash_at_any_call_of_the_first_start_it_is_repeated_once(
    identity: Identity,
) -> None:
    """The new checkpoint has its first batch, or the start moves it aside again."""

    def make() -> World:
        world = world_with("transactional", identity)
        reset(world, "earliest", repeat=True)
        return world

    def act(world: World) -> None:
        world.start()
        opening = world.driver.begin("again", 0)
        world.driver.end(opening, world.task(opening, "a1 b2 a3 b4 a5"))

    for what, world in crash_everywhere(make, act):
        act(world)
        world.minibatch(1, "a8", "again")
        assert once(world.out.seen) == "a1 a1 b2 b2 a3 a3 b4 b4 a5 a8", what


def test_a_row_of_an_older_version_has_no_reset() -> None:
    world = world_with("opaque", GIVEN)
    [(_, text)] = world.store.memory.scan("open", "")
    assert '"reset"' not in text
    assert OpenRow.load(text).dump() == text


# -- what the ledger answers afterwards


def found(world: World, entity: str, event: int) -> tuple[str, str]:
    """What the ledger knows of an event, and why."""
    [trace] = Ledger(world.store).find("pay", entity, event)
    return trace.state, trace.why or ""


def test_an_event_that_was_skipped_is_not_found_as_delivered() -> None:
    world = world_with("opaque", POSITION)
    reset(world, "positions", p0=7)
    begin_again(world, "a7", {"t/0": 7})
    state, why = found(world, "t/0", 6)
    assert state == "handled"
    assert "reset 1 to positions, by ann): events that it skipped count as handled too" in why


def test_ids_that_were_forgotten_are_not_seen_because_of_the_reset() -> None:
    world = world_with("opaque", GIVEN)
    assert found(world, "a", 1)[0] in ("handled", "delivered")
    reset(world, "earliest", repeat=True)
    begin_again(world, "c2")
    state, why = found(world, "a", 1)
    assert state == "not seen"
    assert "what was delivered before it may not be remembered" in why


def test_an_event_that_was_discarded_and_delivered_by_a_repeat_is_found_as_delivered() -> None:
    world = world_of(Post(), GIVEN)
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    world.resolve("a1", "discarded")
    assert found(world, "a", 1)[0] == "discarded"
    reset(world, "earliest", repeat=True)
    begin_again(world, "a1 b2")
    assert found(world, "a", 1)[0] == "delivered"
    assert world.out.seen.split().count("a1") == 2, "the lost call had arrived"


# -- and a rescaling


@pytest.mark.parametrize("minibatches", [1, 2, 3])
@pytest.mark.parametrize("identity", BY_ID.values(), ids=BY_ID)
def test_a_rescaling_after_it_brings_no_forgotten_id_back(
    identity: Identity, minibatches: int
) -> None:
    world = World(identity, partition="0of1", partitions=1)
    world.add(Database())
    world.start()
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    reset(world, "earliest", repeat=True)
    with pytest.raises(ConfigurationError, match=r"was reset \(reset 1\) and has not begun there"):
        rescale_pipeline(world.client, 2)
    world.start()
    for batch, text in enumerate(["c5", "c6", "c7"][:minibatches]):
        world.minibatch(batch, text, "q2")
    rescale_pipeline(world.client, 2)
    rescale_pipeline(world.client, 1)
    assert not check_ledger(world.store)[1]
    world.start()
    world.minibatch(minibatches, "a1 b2 c8", "q2")
    world.start()  # what came since the reset is remembered
    world.minibatch(0, "a1 b2 a3 b4 c5 c8", "lost")
    told = ["a1", "a1", "b2", "b2", "a3", "a3", "b4", "b4", "c5", "c6", "c7", "c8"]
    left_out = {"c6", "c7"} if minibatches == 1 else {"c7"} if minibatches == 2 else set()
    assert once(world.out.seen).split() == [name for name in told if name not in left_out]
    assert not check_ledger(world.store)[1]
