"""Final rows older than `remember` are pruned, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.events import Given
from semel.ledger.journal import Journal, watermark_of
from semel.ledger.verbs.parked import plan_parking, read_parked
from semel.ledger.verbs.pruning import Pruning
from semel.protocol import ParkedState
from semel.sinks import sink
from support.destinations import after
from support.ledger.one_pipeline import SINK, LedgerWorld, claim_of, parked, request, span
from support.ledger.small_driver import SmallDriver, payments
from support.pipeline import GIVEN, world_like

DAY_S = 86_400.0


@pytest.mark.rows("S18")
def test_remembered_id_sets_are_kept_for_a_while_and_then_dropped(world: LedgerWorld) -> None:
    driver = SmallDriver(
        world,
        Given(entity="c", event=("id",)),
        [sink(window=100, name="w")(lambda _: None)],
    )
    most = []
    for batch in range(120):
        driver.minibatch(batch, {"0": payments(batch * 20, 20)})
        world.clock.move(DAY_S)
        Pruning(world.client).run(["w"])
        most.append(world.tables()["journal"])
    assert max(most) == most[-1] == 7 + 1  # the sets, and the mark that older ones are forgotten
    kept = Journal(world.client).restore(watermark_of("w"), "0", before=10**9).values
    sets = [name for name in kept if name.isdecimal()]
    assert sorted(sets, key=int) == [str(number) for number in range(114, 121)]
    assert kept["forgot"] == 1  # of the first generation


def test_watermarks_of_increasing_ids_are_never_pruned(world: LedgerWorld) -> None:
    driver = SmallDriver(
        world,
        Given(entity="c", event=("id",), increasing=True),
        [sink(window=100, name="w")(lambda _: None)],
    )
    rows = payments(0, 1).to_pylist()
    for batch in range(3):
        serial = driver.open(batch).row.serial
        value = {**rows[0], "c": str(serial), "id": batch}
        batched = type(payments(0, 1)).from_pylist([value])
        driver.minibatch(batch, {"0": batched})
    before = Journal(world.client).restore(watermark_of("w"), "0", before=99).values
    assert before.keys() == {"1", "2", "3"}
    world.clock.move(100 * DAY_S)
    Pruning(world.client).run(["w"])
    assert Journal(world.client).restore(watermark_of("w"), "0", before=99).values == before


@pytest.mark.parametrize("state", ParkedState)
def test_a_parked_event_goes_only_when_it_is_final_and_old(
    world: LedgerWorld, state: ParkedState
) -> None:
    hand = claim_of(world, world.begin().open(request(0)), 1)
    hand.claim(span(0, 0, 3))
    hand.write(parks=plan_parking("pay", SINK, [parked(1, state=state)], {}))
    remember_s = world.clock.wall()
    world.clock.move(1.0)
    assert Pruning(world.client, remember_s).run([SINK]) == 0  # it can still be replayed
    world.clock.move(-1.0)
    world.begin("n2").open(replace(request(0), query="another"))
    assert Pruning(world.client, remember_s).run([SINK]) == 0
    world.clock.move(1.0)
    assert Pruning(world.client, remember_s).run([SINK]) == state.final
    assert len(read_parked(world.client, SINK)) == (not state.final)


def test_sets_are_forgotten_after_a_lost_checkpoint_too_but_those_that_may_come_again() -> None:
    pipeline = world_like("transactional", GIVEN)
    pipeline.minibatch(0, "a1 b2")
    pipeline.start()
    pipeline.minibatch(0, "a1 b2 a3", "q2")
    for batch in range(1, 20):
        pipeline.minibatch(batch, f"a{10 + batch}", "q2")
    pipeline.clock.move(3 * 7 * DAY_S)
    Pruning(pipeline.client).run(["out"])
    assert pipeline.store.size("journal")[0] == 2  # the mark, and the set of before the loss
    pipeline.minibatch(20, "b2 a50", "q2")
    assert pipeline.out.seen.endswith("a29 a50")
    pipeline.start()
    pipeline.minibatch(0, "a50", "q3")  # lost again: the old sets are removed
    assert pipeline.store.size("journal")[0] == 2  # the mark, and the set of a50


def test_a_run_that_was_replaced_while_it_pruned_forgets_nothing_more() -> None:
    pipeline = world_like("transactional", GIVEN)
    pipeline.minibatch(0, "a1 b2")
    pipeline.minibatch(1, "a3 b4")
    pipeline.clock.move(8 * DAY_S)
    pipeline.minibatch(2, "a5 b6")

    def replaced() -> None:
        pipeline.start()
        pipeline.minibatch(0, "a1 b2 c9", "q2")  # the checkpoint was lost; known ids are met

    pipeline.store.script.append(after(replaced))
    Pruning(pipeline.client).run(["out"])
    pipeline.minibatch(1, "a3 b4 a5 b6 a7", "q2")
    assert pipeline.out.seen == "a1 b2 a3 b4 a5 b6 c9 a7"
