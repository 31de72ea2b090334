"""Every ledger verb may be repeated: it finds its own success, and a late twin changes nothing.

Each verb is done three times in ledgers of its own: in peace; with the reply of each of its commits
lost after the commit; with each request lost before it. All three must end with the same answer and
the same rows. Then a twin of every commit that ever landed arrives late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel.ledger.journal import COUNTERS, Journal, JournalState
from semel.ledger.verbs.parked import (
    NO_PARKS,
    parked_key,
    plan_parking,
    read_heads,
    read_parked,
    resolve_parked,
)
from semel.ledger.verbs.partitions import MERGE_EVERY, PartitionClaim
from semel.ledger.verbs.resends import Resends
from semel.protocol import Found, ParkedState
from support.ledger.one_pipeline import (
    DESCRIPTION,
    ELSEWHERE,
    SINK,
    LedgerWorld,
    claim_of,
    parked,
    report,
    request,
    settled,
    span,
)

Act = Callable[[], Any]


@dataclass(frozen=True)
class Verb:
    """The rows before an act, as a function that makes the act; and its answer."""

    prepare: Callable[[LedgerWorld], Act]
    answer: Any = None


def told(*acts: Act) -> Act:
    """Do all acts in this order, and return every answer."""
    return lambda: tuple(act() for act in acts)


def register(world: LedgerWorld) -> Act:
    world.begin("before")
    return lambda: world.owners.register(DESCRIPTION, ELSEWHERE, "n1")


def register_first(world: LedgerWorld) -> Act:
    return lambda: world.owners.register(DESCRIPTION, ELSEWHERE, "n1")


def register_with_a_further_sink(world: LedgerWorld) -> Act:
    world.begin("before")
    more = {**DESCRIPTION, "sinks": {"mail": {"capability": "opaque"}}}
    return lambda: world.owners.register(more, ELSEWHERE, "n1")


def beat(world: LedgerWorld) -> Act:
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    return lambda: world.owners.beat(run, "n1")


def end(world: LedgerWorld) -> Act:
    run = world.owners.register(DESCRIPTION, ELSEWHERE, "n1")
    return lambda: world.owners.beat(run, "n1", ended=True)


def open_first(world: LedgerWorld) -> Act:
    minibatches = world.begin()
    return lambda: minibatches.open(request(0)).text


def open_next(world: LedgerWorld) -> Act:
    minibatches = world.begin()
    for batch in (0, 1):
        opening = minibatches.open(request(batch))
        claim_of(world, opening, 1).claim(span(0, 0, 3))
        minibatches.complete(opening, [report()], [SINK])
    return lambda: minibatches.open(request(2)).text


def open_a_generation(world: LedgerWorld) -> Act:
    minibatches = world.begin()
    minibatches.complete(minibatches.open(request(0)), [], [SINK])
    return lambda: minibatches.open(request(7, query="another")).text


def hand(world: LedgerWorld) -> PartitionClaim:
    return claim_of(world, world.begin().open(request(0)), 1)


def claimed(world: LedgerWorld) -> PartitionClaim:
    made = hand(world)
    assert made.claim(span(0, 0, 3)) is Found.NEW
    return made


def claim(world: LedgerWorld) -> Act:
    made = hand(world)
    return lambda: made.claim(span(0, 0, 3), location="there")


def claim_and_park(world: LedgerWorld) -> Act:
    made = hand(world)
    parks = plan_parking("pay", SINK, [parked(1)], {})
    return lambda: made.claim(span(0, 0, 3), parks)


def take_over(world: LedgerWorld) -> Act:
    opening = claimed(world).opening
    later = claim_of(world, opening, 2)
    return told(lambda: later.claim(span(0, 0, 3)), later.check)


def begin(world: LedgerWorld) -> Act:
    made = claimed(world)
    made.write(settled=settled(span(0, 0, 3)))
    return told(lambda: made.write(intended=span(1, 3, 6)), made.check, lambda: made.next_span)


def begin_after_a_take_over(world: LedgerWorld) -> Act:
    opening = hand(world).opening
    claim_of(world, opening, 1).claim(None)
    later = claim_of(world, opening, 2)
    later.claim(None)
    return told(lambda: later.write(intended=span(0, 0, 3)), later.check, lambda: later.next_span)


def settle(world: LedgerWorld) -> Act:
    made = claimed(world)
    return told(lambda: made.write(settled=settled(span(0, 0, 3))), lambda: made.next_span)


def settle_and_begin(world: LedgerWorld) -> Act:
    made = claimed(world)
    return told(
        lambda: made.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6)),
        lambda: made.write(settled=settled(span(1, 3, 6)), intended=span(2, 6, 9)),
        lambda: made.next_span,
    )


def settle_and_park(world: LedgerWorld) -> Act:
    made = claimed(world)
    parks = plan_parking("pay", SINK, [parked(1)], {})
    return lambda: made.write(settled=settled(span(0, 0, 3)), parks=parks)


def park(world: LedgerWorld) -> Act:
    made = claimed(world)
    parks = plan_parking("pay", SINK, [parked(1), parked(2, state=ParkedState.WAITING)], {})
    return lambda: made.write(parks=parks)


def withdraw(world: LedgerWorld) -> Act:
    made = claimed(world)
    return told(lambda: made.write(withdrawn=True), lambda: made.next_span)


def withdraw_a_later_span(world: LedgerWorld) -> Act:
    made = claimed(world)
    made.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
    return told(lambda: made.write(withdrawn=True), lambda: made.next_span)


def withdraw_and_park(world: LedgerWorld) -> Act:
    made = claimed(world)
    parks = plan_parking("pay", SINK, [parked(1)], {})
    return told(lambda: made.write(withdrawn=True, parks=parks), lambda: made.next_span)


def withdraw_and_begin(world: LedgerWorld) -> Act:
    made = claimed(world)
    return told(lambda: made.write(withdrawn=True, intended=span(1, 0, 2)), lambda: made.next_span)


def merge(world: LedgerWorld) -> Act:
    made = claimed(world)
    for at in range(MERGE_EVERY):
        now, then = span(at, 3 * at, 3 * at + 3), span(at + 1, 3 * at + 3, 3 * at + 6)
        made.write(settled=settled(now), intended=then)
    last = span(MERGE_EVERY, 3 * MERGE_EVERY, 3 * MERGE_EVERY + 3)
    return told(lambda: made.write(settled=settled(last)), made.spans)


def reopen(world: LedgerWorld) -> Act:
    minibatches = world.begin()
    opening = minibatches.open(request(0))
    claim_of(world, opening, 1).claim(span(0, 0, 3))
    minibatches.complete(opening, [report()], [SINK])
    later = claim_of(world, world.begin("n2").open(request(0)), 1)
    assert later.claim(None) is Found.COMPLETE
    return told(lambda: later.reopen(3), later.check)


def complete(world: LedgerWorld) -> Act:
    minibatches = world.begin()
    opening = minibatches.open(request(0))
    for partition in ("0", "1"):
        made = claim_of(world, opening, 1, partition=partition, spark_task=int(partition))
        made.claim(span(0, 0, 3), location="there")
    entry = Journal(world.client).entry(COUNTERS, "0", opening.row.serial, JournalState(), {"a": 3})
    reports = [report(entries=(entry,)), report(partition="1")]
    return lambda: minibatches.complete(opening, reports, [SINK])


def resolved(world: LedgerWorld, decision: ParkedState) -> Act:
    made = claimed(world)
    made.write(parks=plan_parking("pay", SINK, [parked(1)], {}))
    at = parked_key("pay", SINK, parked(1))
    return lambda: resolve_parked(world.client, SINK, at, decision, "ann", "looked").state


def resending(world: LedgerWorld) -> Resends:
    resolved(world, ParkedState.RESEND)()
    return Resends(world.client, SINK, ELSEWHERE)


def claim_a_resend(world: LedgerWorld) -> Act:
    resends = resending(world)
    [item] = read_parked(world.client, SINK)

    def act() -> object:
        taken = resends.claim(*item)
        assert taken is not None
        return taken.token, resends.still_mine(taken)

    return act


def settle_a_resend(world: LedgerWorld) -> Act:
    resends = resending(world)
    [item] = read_parked(world.client, SINK)
    taken = resends.claim(*item)
    assert taken is not None
    return lambda: resends.settle(taken, ParkedState.DELIVERED, "sent", blocks=False)


def unblock(world: LedgerWorld) -> Act:
    claimed(world).write(parks=plan_parking("pay", SINK, [parked(1)], {}))
    [(_, text)] = read_heads(world.client, SINK).values()
    return lambda: Resends(world.client, SINK, ELSEWHERE).unblock(("e", "e"), text)


VERBS: dict[str, Verb] = {
    "register the first run": Verb(register_first, 1),
    "register a run": Verb(register, 2),
    "register a run with a further sink": Verb(register_with_a_further_sink, 2),
    "beat": Verb(beat),
    "end": Verb(end),
    "open the first minibatch": Verb(open_first),
    "open the next minibatch": Verb(open_next),
    "open a generation": Verb(open_a_generation),
    "claim": Verb(claim, Found.NEW),
    "claim and park": Verb(claim_and_park, Found.NEW),
    "take over": Verb(take_over, (Found.PENDING, None)),
    "begin": Verb(begin, (None, None, 2)),
    "begin after a take-over": Verb(begin_after_a_take_over, (None, None, 1)),
    "settle": Verb(settle, (None, 1)),
    "settle and begin": Verb(settle_and_begin, (None, None, 3)),
    "settle and park": Verb(settle_and_park),
    "park": Verb(park),
    "withdraw": Verb(withdraw, (None, 0)),
    "withdraw a later span": Verb(withdraw_a_later_span, (None, 1)),
    "withdraw and park": Verb(withdraw_and_park, (None, 0)),
    "withdraw and begin": Verb(withdraw_and_begin, (None, 2)),
    "merge": Verb(merge),
    "reopen": Verb(reopen, (None, None)),
    "complete": Verb(complete),
    "resolve as delivered": Verb(
        lambda world: resolved(world, ParkedState.DELIVERED), ParkedState.DELIVERED
    ),
    "resolve as resend": Verb(
        lambda world: resolved(world, ParkedState.RESEND), ParkedState.RESEND
    ),
    "claim a resend": Verb(claim_a_resend, (1, True)),
    "settle a resend": Verb(settle_a_resend),
    "unblock": Verb(unblock, True),
}


@dataclass
class Done:
    """A verb done in a ledger of its own."""

    world: LedgerWorld
    answer: Any
    contents: dict[Any, str]


def done(path: Path, verb: Verb, trouble: Callable[[LedgerWorld], None]) -> Done:
    """Do a verb under trouble that begins just before it."""
    world = LedgerWorld(path)
    act = verb.prepare(world)
    trouble(world)
    answer = act()
    return Done(world, answer, world.store.contents())


def in_peace(world: LedgerWorld) -> None:
    del world


def with_each_reply_lost(world: LedgerWorld) -> None:
    world.store.lose_replies(8)


def with_each_request_lost(world: LedgerWorld) -> None:
    for _ in range(8):
        world.store.lose_requests(2)
        world.store.pass_one()


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_whose_reply_was_lost_finds_its_own_success(name: str, tmp_path: Path) -> None:
    verb = VERBS[name]
    peace = done(tmp_path / "peace.db", verb, in_peace)
    lossy = done(tmp_path / "lossy.db", verb, with_each_reply_lost)
    assert lossy.world.clock.slept, "no reply was lost"
    assert lossy.answer == peace.answer
    assert lossy.contents == peace.contents
    assert len(lossy.world.store.landed) == len(peace.world.store.landed)
    if verb.answer is not None:
        assert peace.answer == verb.answer


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_whose_request_was_lost_is_done_once(name: str, tmp_path: Path) -> None:
    peace = done(tmp_path / "peace.db", VERBS[name], in_peace)
    lossy = done(tmp_path / "lossy.db", VERBS[name], with_each_request_lost)
    assert lossy.world.clock.slept, "no request was lost"
    assert lossy.answer == peace.answer
    assert lossy.contents == peace.contents


@pytest.mark.parametrize("name", VERBS)
def test_a_late_twin_of_a_verb_changes_nothing(name: str, tmp_path: Path) -> None:
    peace = done(tmp_path / "peace.db", VERBS[name], in_peace)
    assert peace.world.store.landed
    assert peace.world.store.late_twins() == []
    assert peace.world.store.contents() == peace.contents


def test_a_withdrawal_that_another_attempt_made_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    from semel.errors import Fenced

    world = LedgerWorld(tmp_path / "ledger.db")
    other = world.another()
    made = claimed(world)

    def replaced() -> None:
        later = claim_of(other, made.opening, 2)
        later.claim(None)
        later.spans()
        later.write(withdrawn=True)

    world.store.lose_requests()
    world.store.let_in(lambda: None)
    world.store.let_in(replaced)
    with pytest.raises(Fenced, match="another attempt has it"):
        made.write(withdrawn=True, parks=NO_PARKS)


def test_every_commit_of_a_long_history_is_harmless_when_it_comes_late(tmp_path: Path) -> None:
    world = LedgerWorld(tmp_path / "ledger.db")
    batch = 0
    for run in range(1, 6):
        minibatches = world.begin(f"n{run}")
        for _ in range(4):
            opening = minibatches.open(request(batch))
            made = claim_of(world, opening, 1)
            found = made.claim(span(0, 0, 3))
            if found is Found.NEW:
                made.write(settled=settled(span(0, 0, 3)), intended=span(1, 3, 6))
            osn = opening.standing(SINK, "0").osn + 3
            minibatches.complete(opening, [report(1, run=run, osn=osn)], [SINK])
            world.owners.beat(run, f"n{run}")
            batch += 1
        batch -= run % 2  # the next run repeats the last minibatch, or goes on
    before = world.store.contents()
    assert len(world.store.landed) > 60
    assert world.store.late_twins() == []
    assert world.store.contents() == before
