"""Parked events and heads: parked once, in order, and resolved by a person once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.errors import ConfigurationError, Fenced
from semel.events.event import Minibatch
from semel.ledger.rows import ParkedRow
from semel.ledger.store.commit import Absent, Equals
from semel.ledger.verbs.parked import (
    HeadMoved,
    Heads,
    head_key,
    next_parked,
    parked_key,
    plan_parking,
    read_heads,
    read_parked,
    resolve_parked,
)
from semel.ledger.verbs.partitions import PartitionClaim
from semel.ledger.verbs.resends import Resends
from semel.protocol import ParkedState
from support.ledger.one_pipeline import (
    ELSEWHERE,
    SINK,
    LedgerWorld,
    claim_of,
    parked,
    request,
    settled,
    span,
)

WAITING, HELD, REJECTED = ParkedState.WAITING, ParkedState.HELD, ParkedState.REJECTED


@pytest.fixture
def hand(world: LedgerWorld) -> PartitionClaim:
    """An attempt that holds a partition, with its first span sent."""
    opening = world.begin().open(request(0))
    made = claim_of(world, opening, 1)
    made.claim(span(0, 0, 3))
    return made


def park(hand: PartitionClaim, *rows: ParkedRow, heads: Heads | None = None) -> Heads:
    """Park rows in a commit of their own, and return the heads after it."""
    known: Heads = {} if heads is None else heads
    parks = plan_parking("pay", SINK, rows, known)
    hand.write(parks=parks)
    parks.apply_to(known)
    return known


def state_of(world: LedgerWorld, row: ParkedRow) -> ParkedState:
    return ParkedRow.load(world.store.contents()[parked_key("pay", SINK, row)]).state


# --- parking --------------------------------------------------------------------------------------


def test_the_first_blocking_event_of_an_entity_makes_its_head(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    parks = plan_parking("pay", SINK, [parked(1), parked(2, state=WAITING)], {})
    assert Absent(head_key("pay", SINK, ("e", "e"))) in parks.requirements
    hand.write(parks=parks)
    [(head, _)] = read_heads(world.client, SINK).values()
    assert (head.entity, head.version, head.waiting) == ("e", 1, 1)


def test_parking_behind_requires_the_head_as_it_was_seen(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    seen = heads["e", "e"][1]
    parks = plan_parking("pay", SINK, [parked(2, state=WAITING), parked(3, state=WAITING)], heads)
    assert Equals(head_key("pay", SINK, ("e", "e")), seen) in parks.requirements
    hand.write(parks=parks)
    [(head, _)] = read_heads(world.client, SINK).values()
    assert (head.version, head.waiting) == (2, 2)


def test_heads_as_a_commit_left_them_are_the_heads_that_stand(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    park(hand, parked(2, state=WAITING), heads=heads)
    assert heads == read_heads(world.client, SINK)


def test_an_event_that_blocks_nobody_makes_no_head(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1, state=REJECTED, blocks=False))
    assert read_heads(world.client, SINK) == {}
    assert world.tables()["parked"] == 1


def test_whoever_parks_behind_a_head_that_moved_meanwhile_writes_nothing(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    other = world.another()
    at = parked_key("pay", SINK, parked(1))
    resolve_parked(other.client, SINK, at, ParkedState.DELIVERED, "ann", "seen there")
    before = world.store.contents()
    with pytest.raises(HeadMoved):
        park(hand, parked(2, state=WAITING), heads=dict(heads))
    assert world.store.contents() == before
    heads = read_heads(world.client, SINK)
    park(hand, parked(2, state=WAITING), heads=heads)
    assert state_of(world, parked(2)) is WAITING


def test_an_event_is_parked_at_most_once_for_its_minibatch(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    before = world.store.contents()
    with pytest.raises(HeadMoved):
        park(hand, parked(1, state=REJECTED), heads=heads)
    assert world.store.contents() == before


def test_parked_rows_come_in_the_order_in_which_their_events_came(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    later, earlier = Minibatch(1, 1), Minibatch(1, 0)
    rows = [parked(9, minibatch=later), parked(10, minibatch=earlier), parked(2, minibatch=earlier)]
    other = parked(1, entity="other", minibatch=later)
    park(hand, *rows, other)
    found = [row.event for _, row, _ in read_parked(world.client, SINK, "e")]
    assert found == [2, 10, 9]
    found = [row.event for _, row, _ in read_parked(world.client, SINK, minibatch=later)]
    assert found == [1, 9]


def test_the_next_of_an_entity_is_its_first_that_is_not_final(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    rows = [parked(1, state=ParkedState.DELIVERED), parked(2), parked(3, state=WAITING)]
    park(hand, *rows, parked(0, entity="other"))
    item = next_parked(read_parked(world.client, SINK), ("e", "e"))
    assert item is not None
    assert item[1].event == 2
    assert next_parked(read_parked(world.client, SINK), ("nobody", "nobody")) is None


@pytest.mark.rows("S20")
def test_heads_and_parked_rows_of_sinks_do_not_mix(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1))
    assert read_heads(world.client, "charge2") == {}
    assert read_parked(world.client, "mail") == []


def test_with_position_identity_events_of_one_entity_are_told_apart_by_their_source(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    rows = [parked(7, scope="topic/0"), parked(7, scope="topic/1"), parked((7, "x"), scope="t/2")]
    assert len({parked_key("pay", SINK, row) for row in rows}) == 3
    park(hand, *rows)
    assert read_heads(world.client, SINK).keys() == {
        ("e", "topic/0"),
        ("e", "topic/1"),
        ("e", "t/2"),
    }


def test_a_parked_row_comes_back_as_it_was_written() -> None:
    row = replace(
        parked(("a", 7), value={"b": b"\x00\xff", "n": None, "s": "a\x00b"}),
        attempts=3,
        by="ann",
        reason="looked",
        schema="c2NoZW1h",
    )
    assert ParkedRow.load(row.dump()) == row
    assert ParkedRow.load(row.dump()).dump() == row.dump()


# --- resolving ------------------------------------------------------------------------------------


@pytest.mark.rows("S21")
@pytest.mark.parametrize("state", [HELD, REJECTED])
@pytest.mark.parametrize(
    ("decision", "blocks"),
    [
        (ParkedState.DELIVERED, False),
        (ParkedState.DISCARDED, False),
        (ParkedState.RESEND, True),
    ],
)
def test_what_a_person_decides_is_recorded_with_who_and_why(
    world: LedgerWorld,
    hand: PartitionClaim,
    state: ParkedState,
    decision: ParkedState,
    blocks: bool,
) -> None:
    park(hand, parked(1, state=state))
    at = parked_key("pay", SINK, parked(1))
    done = resolve_parked(world.client, SINK, at, decision, "ann", "saw the receipt")
    assert (done.state, done.by, done.reason) == (decision, "ann", "saw the receipt")
    assert done.blocks == blocks
    assert ParkedRow.load(world.store.contents()[at]) == done


def test_resolving_moves_the_head_so_that_nobody_parks_behind_unseen(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    at = parked_key("pay", SINK, parked(1))
    resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "ann", "x")
    after = read_heads(world.client, SINK)
    assert after["e", "e"][0].version == heads["e", "e"][0].version + 1


def test_resending_a_dead_letter_that_blocked_nobody_makes_a_head(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1, state=REJECTED, blocks=False))
    at = parked_key("pay", SINK, parked(1))
    resolve_parked(world.client, SINK, at, ParkedState.RESEND, "ann", "mended")
    assert ("e", "e") in read_heads(world.client, SINK)


def test_resolving_twice_the_same_way_changes_nothing_more(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1))
    at = parked_key("pay", SINK, parked(1))
    first = resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "ann", "x")
    before = world.store.contents()
    assert resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "bob", "y") == first
    assert world.store.contents() == before


def test_a_decision_is_not_changed_by_another_one(world: LedgerWorld, hand: PartitionClaim) -> None:
    park(hand, parked(1))
    at = parked_key("pay", SINK, parked(1))
    resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "ann", "x")
    before = world.store.contents()
    with pytest.raises(ConfigurationError, match="event 1 of 'e' is delivered"):
        resolve_parked(world.client, SINK, at, ParkedState.RESEND, "bob", "y")
    assert world.store.contents() == before


def test_a_reason_cannot_look_like_that_of_a_minibatch_that_comes_anew(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    """Else `find` would look past the decision, and take the settled span for a delivery."""
    park(hand, parked(1, state=REJECTED))
    at = parked_key("pay", SINK, parked(1))
    with pytest.raises(ConfigurationError, match="must not begin with 'as-replayed: '"):
        resolve_parked(world.client, SINK, at, ParkedState.DISCARDED, "ann", "as-replayed: by hand")
    assert state_of(world, parked(1)) is REJECTED


def test_of_two_decisions_at_once_the_first_stands(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1))
    other = world.another()
    at = parked_key("pay", SINK, parked(1))
    world.store.let_in(
        lambda: resolve_parked(other.client, SINK, at, ParkedState.DELIVERED, "ann", "first")
    )
    with pytest.raises(ConfigurationError, match="is delivered"):
        resolve_parked(world.client, SINK, at, ParkedState.DISCARDED, "bob", "second")
    assert state_of(world, parked(1)) is ParkedState.DELIVERED


def test_an_event_that_is_not_parked_cannot_be_resolved(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    at = parked_key("pay", SINK, parked(404))
    with pytest.raises(ConfigurationError, match=r"nothing is parked at pay/charge/e/"):
        resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "ann", "x")


@pytest.mark.parametrize(
    "state",
    sorted(set(ParkedState) - {HELD, REJECTED, ParkedState.RESEND, ParkedState.DELIVERED}),
)
def test_only_what_is_held_or_rejected_waits_for_a_decision(
    world: LedgerWorld, hand: PartitionClaim, state: ParkedState
) -> None:
    park(hand, parked(1, state=state))
    at = parked_key("pay", SINK, parked(1))
    with pytest.raises(ConfigurationError, match="only held or rejected events wait"):
        resolve_parked(world.client, SINK, at, ParkedState.DELIVERED, "ann", "x")


@pytest.mark.parametrize("decision", [ParkedState.DELIVERED, ParkedState.DISCARDED])
def test_a_resend_is_taken_back_until_somebody_has_begun_it(
    world: LedgerWorld, hand: PartitionClaim, decision: ParkedState
) -> None:
    park(hand, parked(1))
    at = parked_key("pay", SINK, parked(1))
    asked = resolve_parked(world.client, SINK, at, ParkedState.RESEND, "ann", "x")
    taken_back = resolve_parked(world.client, SINK, at, decision, "ann", "it was there after all")
    assert (asked.state, taken_back.state, taken_back.blocks) == (
        ParkedState.RESEND,
        decision,
        False,
    )
    sender = Resends(world.client, SINK, ELSEWHERE)
    assert sender.claim(at, asked, asked.dump()) is None, "who saw the resend comes too late"


def test_an_event_whose_payload_has_not_come_again_may_be_released_and_taken_back(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    row = replace(parked(1), value=None)
    park(hand, row)
    at = parked_key("pay", SINK, row)
    released = resolve_parked(world.client, SINK, at, ParkedState.RESEND, "ann", "x")
    assert (released.state, released.blocks) == (ParkedState.RESEND, True)
    assert resolve_parked(world.client, SINK, at, ParkedState.DISCARDED, "ann", "x").state.final


# --- sending again --------------------------------------------------------------------------------


def resend(world: LedgerWorld, *rows: ParkedRow) -> Resends:
    for row in rows:
        at = parked_key("pay", SINK, row)
        resolve_parked(world.client, SINK, at, ParkedState.RESEND, "ann", "x")
    return Resends(world.client, SINK, ELSEWHERE)


@pytest.mark.rows("S19")
def test_a_parked_event_is_in_one_pair_of_hands(world: LedgerWorld, hand: PartitionClaim) -> None:
    park(hand, parked(1))
    resends = resend(world, parked(1))
    [item] = read_parked(world.client, SINK)
    claimed = resends.claim(*item)
    assert claimed is not None
    assert state_of(world, parked(1)) is ParkedState.SENDING
    assert Resends(world.client, SINK, ELSEWHERE).claim(*item) is None
    resends.settle(claimed, ParkedState.DELIVERED, "sent", blocks=False)
    assert state_of(world, parked(1)) is ParkedState.DELIVERED
    slot = resends.slot()
    assert slot is not None
    assert slot.current is None


@pytest.mark.rows("S19")
def test_a_sender_that_was_replaced_cannot_say_what_became_of_it(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1))
    resends = resend(world, parked(1))
    [item] = read_parked(world.client, SINK)
    first = resends.claim(*item)
    [item] = read_parked(world.client, SINK)
    second = resends.claim(*item)
    assert first is not None
    assert second is not None
    assert (second.first, second.token) == (first.token, first.token + 1)
    assert not resends.still_mine(first)
    before = world.store.contents()
    with pytest.raises(Fenced, match="taken over by a later sender"):
        resends.settle(first, ParkedState.DELIVERED, "sent", blocks=False)
    assert world.store.contents() == before


def test_while_one_event_is_being_sent_no_other_of_the_sink_is(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    park(hand, parked(1), parked(1, entity="f"))
    resends = resend(world, parked(1), parked(1, entity="f"))
    first, second = read_parked(world.client, SINK)
    assert resends.claim(*first) is not None
    assert resends.claim(*second) is None


def test_an_entity_is_not_unblocked_when_somebody_parked_behind_it_meanwhile(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    seen = heads["e", "e"][1]
    resends = Resends(world.client, SINK, ELSEWHERE)
    park(hand, parked(2, state=WAITING), heads=heads)
    assert not resends.unblock(("e", "e"), seen)
    assert ("e", "e") in read_heads(world.client, SINK)
    assert resends.unblock(("e", "e"), heads["e", "e"][1])
    assert read_heads(world.client, SINK) == {}


def test_a_lost_request_to_unblock_is_not_taken_for_a_success(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    heads = park(hand, parked(1))
    seen = heads["e", "e"][1]
    other = world.another()
    world.store.lose_requests()
    world.store.let_in(lambda: None)
    world.store.let_in(
        lambda: other.client.commit(
            [Equals(head_key("pay", SINK, ("e", "e")), seen)],
            list(plan_parking("pay", SINK, [parked(2, state=WAITING)], heads).updates),
        )
    )
    assert not Resends(world.client, SINK, ELSEWHERE).unblock(("e", "e"), seen)
    assert ("e", "e") in read_heads(world.client, SINK)


def test_a_settled_span_and_what_it_parks_stand_in_one_commit(
    world: LedgerWorld, hand: PartitionClaim
) -> None:
    world.store.forget()
    parks = plan_parking("pay", SINK, [parked(1)], {})
    hand.write(settled=settled(span(0, 0, 3)), parks=parks)
    assert len(world.store.asked) == 1
    assert state_of(world, parked(1)) is HELD
