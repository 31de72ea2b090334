"""Ids that are forgotten: what was delivered is never taken for new, and nothing stops in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delivery.test_rescaled import deliver
from semel.errors import Diverged, HeldInDoubt
from semel.ledger import payloads
from semel.ledger.journal import JOURNAL_TABLE as JOURNAL
from semel.ledger.keys import OPEN_TABLE, make_key
from semel.ledger.rows import OpenRow
from semel.ledger.store.commit import Put
from semel.ledger.verbs.divergence import judge_minibatch
from semel.ledger.verbs.pruning import REMEMBER_S, Pruning
from semel.ledger.verbs.rescale import rescale_pipeline
from semel.protocol import Judgement
from support.destinations import Database
from support.pipeline import GIVEN, World, once, world_like

DOUBT = "is either new or older than the ids that are remembered"


def forgotten() -> World:
    """a1 and b2 were delivered so long ago that they are forgotten; a3 and b4 are remembered."""
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.clock.move(2 * REMEMBER_S)
    world.minibatch(1, "a3 b4")
    Pruning(world.client).run(["out"])
    return world


def lost(world: World, *, accept_gap: bool = False) -> None:
    world.start().accept_gap = accept_gap


def test_a_gap_is_accepted_for_one_start_and_the_next_one_needs_it_no_more() -> None:
    world = forgotten()
    lost(world)
    with pytest.raises(HeldInDoubt, match=DOUBT):
        world.minibatch(0, "a5", "q2")
    lost(world, accept_gap=True)
    world.minibatch(0, "a5", "q2", accept_gap=True)  # it begins after what was delivered
    world.start()
    world.minibatch(1, "a6", "q2")
    world.minibatch(2, "c7", "q2", partition="1")  # a partition that got nothing until now
    assert world.out.seen == "a1 b2 a3 b4 a5 a6 c7"


def test_the_next_lost_checkpoint_is_not_accepted_with_the_one_before() -> None:
    world = forgotten()
    lost(world, accept_gap=True)
    world.minibatch(0, "a5", "q2", accept_gap=True)
    world.start()
    with pytest.raises(HeldInDoubt, match=DOUBT):
        world.minibatch(0, "a1", "q3")
    assert world.out.seen == "a1 b2 a3 b4 a5"


def test_a_remembered_id_that_is_met_does_not_end_the_caution_by_itself() -> None:
    world = forgotten()
    lost(world)
    world.minibatch(0, "a3 b4", "q2")  # of one source partition, and all of it is known
    with pytest.raises(HeldInDoubt, match=DOUBT):
        world.minibatch(1, "a1 a5", "q2")  # another one is behind
    assert world.out.seen == "a1 b2 a3 b4"


def test_a_remembered_id_in_the_same_minibatch_does_not_end_the_caution_either() -> None:
    world = forgotten()
    lost(world)
    for rows in ("a1 a3", "a3 b4 c5"):
        with pytest.raises(HeldInDoubt, match=DOUBT):
            world.minibatch(0, rows, "q2")
    assert world.out.seen == "a1 b2 a3 b4"


def test_what_a_generation_forgets_of_its_own_does_not_stop_it() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.start()
    world.minibatch(0, "a3", "q2")  # nothing is forgotten, and nothing comes again
    for batch in range(1, 4):
        world.clock.move(REMEMBER_S)
        world.minibatch(batch, f"a{batch + 3}", "q2")
        Pruning(world.client).run(["out"])
    world.minibatch(4, "a7", "q2")
    assert world.out.seen == "a1 b2 a3 a4 a5 a6 a7"
    world.start()
    with pytest.raises(HeldInDoubt, match=DOUBT):
        world.minibatch(0, "a3 a7 a8", "q3")  # the next one may have lost it: a3 is forgotten


def re_reading(*, met: bool) -> World:
    """A re-read that takes longer than ids are remembered, with a look for old ones on its way."""
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.start()
    world.minibatch(0, "a1 b2 c9" if met else "c9", "q2")
    for _ in range(3):
        world.clock.move(REMEMBER_S)
        Pruning(world.client).run(["out"])
    return world


@pytest.mark.parametrize("met", [True, False])
def test_what_a_re_read_may_still_need_is_not_forgotten_however_long_it_takes(met: bool) -> None:
    world = re_reading(met=met)
    world.minibatch(1, "a3 b4 a5", "q2")
    assert world.out.seen.split().count("a3") == 1
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 c9"


@pytest.mark.parametrize("met", [True, False])
def test_a_minibatch_of_a_long_re_read_that_is_judged_as_recorded_repeats_nothing(
    met: bool,
) -> None:
    world = re_reading(met=met)
    world.minibatch(1, "a3 a5", "q2")
    world.start()
    opening = world.open(1, "q2")
    with pytest.raises(Diverged, match="as-recorded"):
        world.driver.end(opening, world.task(opening, "a3 b4 a5 b6"))
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "looked")
    world.start()
    for _ in range(3):
        world.clock.move(REMEMBER_S)
        Pruning(world.client).run(["out"])
    world.minibatch(1, "a3 b4 a5 b6", "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 b6 c9"


def test_what_a_minibatch_delivered_is_known_however_late_it_is_judged() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3")
    world.minibatch(2, "a5")
    world.start()
    opening = world.open(1)  # of a copy of the checkpoint that is one batch older
    with pytest.raises(Diverged, match="as-recorded"):
        world.driver.end(opening, world.task(opening, "a3 b4"))
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "looked")
    for _ in range(2):
        world.clock.move(2 * REMEMBER_S)
        Pruning(world.client).run(["out"])
        world.start()
        opening = world.open(1)
    world.driver.end(opening, world.task(opening, "a3 b4"))
    world.minibatch(2, "a5 a6")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 a6"


def test_a_judgement_does_not_end_the_caution_after_a_lost_checkpoint() -> None:
    world = forgotten()
    lost(world, accept_gap=True)
    world.minibatch(0, "a5", "q2", accept_gap=True)
    world.start()
    world.minibatch(0, "a5", "q3", accept_gap=True)  # lost again: only the task accepts it
    judge_minibatch(world.client, world.opened().minibatch, Judgement.AS_RECORDED, "ann", "looked")
    world.start()
    with pytest.raises(HeldInDoubt, match=DOUBT):
        world.minibatch(0, "a1 a5", "q3")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5"


def test_a_rescaling_keeps_the_age_of_what_a_re_read_may_still_need() -> None:
    world = World(GIVEN, partitions=1)
    world.add(Database())
    world.start()
    deliver(world, 0, ["a1", "b2"])
    deliver(world, 1, ["a3", "b4"])
    world.start()
    deliver(world, 0, ["a1", "c9"], "q2")
    world.clock.move(1.0)
    rescale_pipeline(world.client, 2)
    world.partitions = 2
    world.start()
    for _ in range(3):
        world.clock.move(REMEMBER_S)
        Pruning(world.client).run(["out"])
    deliver(world, 1, ["b2", "a3", "b4", "a5"], "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 c9"


def marked(world: World, partition: str, state: dict[str, object]) -> None:
    """Put the mark of a partition there, as an older version has written it."""
    row = {"number": 0, "full": False, "state": state, "at": 0.0}
    at = make_key(JOURNAL, "pay", "watermark:out", partition, 0)
    world.store.memory.commit([], [Put(at, payloads.dump_payload(row))])


@pytest.mark.parametrize(
    ("met", "goes_on"), [((2, 2), True), ((2, None), False), ((None, 2), False), ((2, 1), False)]
)
def test_a_rescaling_does_not_say_of_all_partitions_what_one_of_them_has_met(
    met: tuple[int | None, int | None], goes_on: bool
) -> None:
    world = World(GIVEN, partitions=2)
    world.add(Database())
    world.start()
    deliver(world, 0, ["a1", "b2"])
    world.start()
    deliver(world, 0, ["a1", "b2"], "q2")
    for number, generation in enumerate(met):
        state: dict[str, object] = {"forgot": True}
        marked(world, f"{number}of2", state if generation is None else {**state, "met": generation})
    rescale_pipeline(world.client, 1)
    world.partitions = 1
    world.start()
    if goes_on:
        deliver(world, 1, ["a3", "b4"], "q2")
        assert once(world.out.seen) == "a1 b2 a3 b4"
        return
    with pytest.raises(HeldInDoubt, match=DOUBT):
        deliver(world, 1, ["a3", "b4"], "q2")


def test_a_partition_that_forgot_nothing_does_not_take_from_another_what_it_has_met() -> None:
    world = World(GIVEN, partitions=2)
    world.add(Database())
    world.start()
    deliver(world, 0, ["a1", "b2"])
    world.start()
    deliver(world, 0, ["a1", "b2"], "q2")
    marked(world, "0of2", {"forgot": True, "met": 2})
    rescale_pipeline(world.client, 1)
    world.partitions = 1
    world.start()
    deliver(world, 1, ["a3", "b4"], "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4"


def test_the_open_row_of_an_older_version_is_read_and_written_as_it_was() -> None:
    text = (
        '{"again":false,"batch":3,"blocked":[],"compared":false,"complete":true,"continues":false,'
        '"generation":2,"judged":null,"newest":null,"partitions":1,"query":"q2","run":4,'
        '"serial":9,"settled":false,"since":1000.0,"version":12}'
    )
    row = OpenRow.load(text)
    assert row.dump() == text
    assert (row.began, row.accepted, row.first) == (2, False, 0)
    assert replace(row, continues=True).began == 1, "it did not say which one it continues"


def test_a_re_read_that_an_older_version_began_keeps_what_it_may_need() -> None:
    world = world_like("transactional", GIVEN)
    world.minibatch(0, "a1 b2")
    world.minibatch(1, "a3 b4")
    world.clock.move(1.0)
    world.start()
    world.minibatch(0, "a1 b2 c9", "q2")
    row = world.opened()
    older = replace(row, first=0)
    world.store.memory.commit([], [Put(make_key(OPEN_TABLE, "pay"), older.dump())])
    world.clock.move(2 * REMEMBER_S)
    Pruning(world.client).run(["out"])
    world.start()
    world.minibatch(1, "a3 b4 a5", "q2")
    assert once(world.out.seen) == "a1 b2 a3 b4 a5 c9"
