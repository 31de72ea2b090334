"""Opening minibatches: which one it is, which runs it fences, and what it sweeps."""

from __future__ import annotations

import pytest

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events.event import Minibatch
from semel.ledger.verbs.open import Minibatches, OpenMinibatch
from semel.ledger.verbs.parked import plan_parking
from semel.protocol import Found
from support.ledger.one_pipeline import (
    SINK,
    LedgerWorld,
    claim_of,
    parked,
    report,
    request,
    settled,
    span,
)


def deliver(
    world: LedgerWorld, minibatches: Minibatches, batch: int, task: int = 1
) -> OpenMinibatch:
    """One minibatch from open to complete, with one partition of three events."""
    opening = minibatches.open(request(batch))
    hand = claim_of(world, opening, task)
    hand.claim(span(0, 0, 3))
    osn = opening.standing(SINK, "0").osn + 3
    run = opening.row.run
    minibatches.complete(opening, [report(task, run=run, osn=osn)], [SINK])
    return opening


# --- which minibatch it is ------------------------------------------------------------------------


@pytest.mark.rows("S5")
def test_the_same_batch_opened_again_is_the_same_minibatch(world: LedgerWorld) -> None:
    first = world.begin("n1").open(request(0))
    world.store.forget()
    again = world.begin("n2").open(request(0))
    assert (again.row.minibatch, again.row.serial) == (first.row.minibatch, first.row.serial)
    assert (first.row.run, again.row.run) == (1, 2)
    assert not again.new_generation


def test_the_same_batch_opened_again_by_the_same_run_costs_no_commit(world: LedgerWorld) -> None:
    minibatches = world.begin()
    first = minibatches.open(request(0))
    world.store.forget()
    again = minibatches.open(request(0))
    assert again.text == first.text
    assert not world.store.asked


@pytest.mark.rows("S5")
def test_the_next_batch_is_the_next_minibatch(world: LedgerWorld) -> None:
    minibatches = world.begin()
    first = deliver(world, minibatches, 0)
    second = minibatches.open(request(1))
    assert second.row.minibatch == Minibatch(1, 1)
    assert second.row.serial == first.row.serial + 1
    assert not second.new_generation


@pytest.mark.parametrize(("query", "batch"), [("other", 0), ("other", 4), ("q", 9), ("q", 0)])
def test_another_query_or_a_gap_in_batch_ids_begins_a_generation(
    world: LedgerWorld, query: str, batch: int
) -> None:
    minibatches = world.begin()
    last = [deliver(world, minibatches, each) for each in range(4)][-1]
    fresh = world.begin("n2").open(request(batch, query=query))
    assert fresh.row.minibatch == Minibatch(2, batch)
    assert fresh.row.serial == last.row.serial + 1
    assert fresh.new_generation


@pytest.mark.parametrize("query", ["q", "other"])
def test_counted_ids_refuse_a_lost_checkpoint(world: LedgerWorld, query: str) -> None:
    minibatches = world.begin()
    for each in range(4):
        deliver(world, minibatches, each)
    before = world.store.contents()
    with pytest.raises(ConfigurationError, match=r"'pay'.*checkpoint.*Restore"):
        minibatches.open(request(0, query=query, survives_lost_checkpoint=False))
    assert world.store.contents() == before
    assert minibatches.open(request(4, survives_lost_checkpoint=False)).row.minibatch.batch == 4


def test_going_on_past_an_incomplete_minibatch_is_diverged(world: LedgerWorld) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0)
    minibatches.open(request(1))
    before = world.store.contents()
    with pytest.raises(Diverged, match=r"batch 2.*the minibatch before it is not complete"):
        minibatches.open(request(2))
    assert world.store.contents() == before


def test_an_opening_says_for_which_sinks_an_entity_is_blocked(world: LedgerWorld) -> None:
    minibatches = world.begin()
    opening = minibatches.open(request(0, SINK, "mail"))
    parks = plan_parking("pay", SINK, [parked(1)], {})
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    hand.write(settled=settled(span(0, 0, 3)), parks=parks)
    assert opening.row.blocked == ()
    again = world.begin("n2").open(request(0, SINK, "mail"))
    assert again.row.blocked == (SINK,)


# --- fenced runs ---------------------------------------------------------------------------------


@pytest.mark.rows("A17")
def test_an_older_run_cannot_open_what_a_later_run_has(world: LedgerWorld) -> None:
    old = world.begin("n1")
    deliver(world, old, 0)
    world.begin("n2").open(request(1))
    before = world.store.contents()
    with pytest.raises(Fenced, match="run 1 was replaced by run 2"):
        old.open(request(1))
    assert world.store.contents() == before


@pytest.mark.rows("A17")
def test_an_older_run_that_is_overtaken_while_it_opens_is_fenced(world: LedgerWorld) -> None:
    other = world.another()
    old = world.begin("n1")
    world.store.let_in(lambda: other.begin("n2").open(request(0)))
    with pytest.raises(Fenced):
        old.open(request(0))


@pytest.mark.rows("A17", "S19")
def test_the_first_open_of_a_run_fences_every_task_of_the_run_before(world: LedgerWorld) -> None:
    opening = world.begin("n1").open(request(0))
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    world.begin("n2").open(request(0))
    before = world.store.contents()
    with pytest.raises(Fenced, match="the driver opened another minibatch"):
        hand.write(settled=settled(span(0, 0, 3)))
    with pytest.raises(Fenced, match="the driver opened another minibatch"):
        hand.check()
    with pytest.raises(Fenced, match="the driver opened another minibatch"):
        claim_of(world, opening, 9).claim(None)
    assert world.store.contents() == before


@pytest.mark.rows("A17")
def test_a_task_is_fenced_also_when_the_rows_it_would_look_for_were_swept(
    world: LedgerWorld,
) -> None:
    minibatches = world.begin()
    opening = minibatches.open(request(0))
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    minibatches.complete(opening, [report()], [SINK])
    for batch in (1, 2, 3):
        deliver(world, minibatches, batch)
    assert not [at for at in world.store.contents() if "/a0/" in at.key and at.table == "streams"]
    before = world.store.contents()
    for act in (
        lambda: hand.write(settled=settled(span(0, 0, 3))),
        lambda: hand.write(withdrawn=True),
        hand.check,
        lambda: claim_of(world, opening, 1).claim(span(0, 0, 3)),
        lambda: claim_of(world, opening, 5, partition="never seen").claim(None),
    ):
        with pytest.raises(Fenced):
            act()
    assert world.store.contents() == before


@pytest.mark.rows("A7")
def test_no_task_can_act_on_a_minibatch_once_it_is_complete(world: LedgerWorld) -> None:
    minibatches = world.begin()
    opening = minibatches.open(request(0))
    hand = claim_of(world, opening, 1)
    hand.claim(span(0, 0, 3))
    minibatches.complete(opening, [report()], [SINK])
    with pytest.raises(Fenced):
        hand.write(settled=settled(span(0, 0, 3)))
    with pytest.raises(Fenced):
        claim_of(world, opening, 2).claim(None)


# --- sweeping -------------------------------------------------------------------------------------


def kept(world: LedgerWorld) -> dict[str, set[str]]:
    """Which batches still have rows in streams and events."""
    found: dict[str, set[str]] = {"streams": set(), "events": set()}
    for at in world.store.contents():
        if at.table in found:
            found[at.table].add(at.key.split("/")[3])
    return found


@pytest.mark.rows("S18")
def test_rows_of_a_minibatch_are_swept_when_the_next_but_one_opens(world: LedgerWorld) -> None:
    minibatches = world.begin()
    deliver(world, minibatches, 0)
    deliver(world, minibatches, 1)
    assert kept(world) == {"streams": {"a0", "a1"}, "events": {"a0", "a1"}}
    world.store.forget()
    minibatches.open(request(2))
    assert kept(world) == {"streams": {"a1"}, "events": {"a1"}}
    assert len(world.store.asked) == 1


@pytest.mark.rows("S18")
def test_nothing_is_swept_while_the_same_minibatch_is_opened_again(world: LedgerWorld) -> None:
    minibatches = world.begin()
    for batch in (0, 1):
        deliver(world, minibatches, batch)
    opening = minibatches.open(request(2))
    claim_of(world, opening, 1).claim(span(0, 0, 3))
    before = kept(world)
    for nonce in ("n2", "n3", "n4"):
        world.begin(nonce).open(request(2))
    assert kept(world) == before == {"streams": {"a1", "a2"}, "events": {"a1", "a2"}}


@pytest.mark.rows("S18", "S20")
def test_sweeping_leaves_other_pipelines_and_their_batches_alone(world: LedgerWorld) -> None:
    other = LedgerWorld(world.path, "payroll")
    theirs = other.begin()
    deliver(other, theirs, 0)
    minibatches = world.begin()
    for batch in range(4):
        deliver(world, minibatches, batch)
    assert [at.key for at in other.store.contents() if at.key.startswith("payroll/charge/a1/a0")]
    assert claim_of(other, other.begin("n2").open(request(0)), 1).claim(None) is Found.COMPLETE
    other.close()
