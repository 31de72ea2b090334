"""The checker finds what was planted: one world for each thing that must not happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from semel.events import Attempt, Event, Minibatch
from semel.ledger.rows import ParkedRow
from semel.protocol import OnDoubt, OnReject, ParkedState
from semel.sinks import Target
from semel.verify.simulator.cases import Case, Variant
from semel.verify.simulator.checker import Category, Evidence, Verdict, judge
from semel.verify.simulator.destinations import NUMBER, RecordedEffect, SimulatedDestination
from semel.verify.simulator.inputs import Fact, Identities, feed
from semel.verify.simulator.scheduler import Hub

FEED = feed(Identities.INCREASING, 1, 12, 6)
CASE = Case(Variant.OPAQUE, identities=Identities.INCREASING)
FACTS = {fact.number: fact for fact in FEED.facts}
SAME = [fact.number for fact in FEED.facts if fact.entity == FEED.facts[0].entity]


def effect(number: int, **changes: object) -> RecordedEffect:
    fact = FACTS[number]
    made = RecordedEffect(
        number, fact.entity, number, number, Minibatch(1, 0), Attempt(1, 1), fact.partition, 100.0
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def parked(number: int, state: ParkedState, *, doubted: bool = False) -> ParkedRow:
    fact: Fact = FACTS[number]
    return ParkedRow(
        entity=fact.entity,
        scope=fact.entity,
        event=number,
        minibatch=Minibatch(1, 0),
        partition=fact.partition,
        position=number,
        osn=number,
        state=state,
        why="planted",
        at=0.0,
        blocks=False,
        doubted=doubted,
    )


def all_but(*numbers: int) -> list[RecordedEffect]:
    return [effect(fact.number) for fact in FEED.facts if fact.number not in numbers]


def evidence(effects: list[RecordedEffect], *rows: ParkedRow, **changes: object) -> Evidence:
    made = Evidence(CASE, FEED, effects, rows)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_world_in_which_all_is_well_is_valid() -> None:
    judgement = judge(evidence(all_but()))
    assert judgement.verdict is Verdict.VALID
    assert judgement.counts == {Category.DELIVERED: 12}


TWICE = [*all_but(), effect(3)]
SKIPS = replace(CASE, on_doubt=OnDoubt.SKIP)
RESENDS = replace(CASE, on_doubt=OnDoubt.RESEND)
PROBES = replace(CASE, variant=Variant.PROBING)
EXACT = replace(CASE, variant=Variant.TRANSACTIONAL)
LOG = replace(CASE, variant=Variant.SEQUENCED)
HELD, DISCARDED = ParkedState.HELD, ParkedState.DISCARDED
LATE = [*all_but(), effect(3, late=True)]
SWAPPED = [effect(SAME[1]), effect(SAME[0]), *all_but(SAME[0], SAME[1])]

PLANTED: dict[str, tuple[Category, Callable[[], Evidence]]] = {
    "an event is missing": (Category.LOST, lambda: evidence(all_but(3))),
    "an event is missing, and a person said delivered": (
        Category.LOST,
        lambda: evidence(all_but(3), parked(3, ParkedState.DELIVERED)),
    ),
    "an event is called rejected, and nobody refused it": (
        Category.LOST,
        lambda: evidence(all_but(3), parked(3, ParkedState.REJECTED)),
    ),
    "an event was skipped under another policy": (
        Category.LOST,
        lambda: evidence(all_but(3), parked(3, ParkedState.SKIPPED), disturbances=1),
    ),
    "an event was to be sent again, and never was": (
        Category.LOST,
        lambda: evidence(
            all_but(3), parked(3, ParkedState.RESENT, doubted=True), case=RESENDS, disturbances=1
        ),
    ),
    "an event is there twice": (Category.DUPLICATED, lambda: evidence(TWICE)),
    "an event was in doubt, and was sent again under hold": (
        Category.DUPLICATED,
        lambda: evidence(TWICE, parked(3, HELD, doubted=True), disturbances=1),
    ),
    "an event was sent again under resend, and was never in doubt": (
        Category.DUPLICATED,
        lambda: evidence(TWICE, case=RESENDS),
    ),
    "a late call repeats an event at a database": (
        Category.DUPLICATED,
        lambda: evidence(LATE, case=EXACT),
    ),
    "a call in time repeats an event that can be asked for": (
        Category.DUPLICATED,
        lambda: evidence(TWICE, case=PROBES),
    ),
    "an entity's events are swapped": (Category.REORDERED, lambda: evidence(SWAPPED)),
    "an event is not of this world": (
        Category.UNEXPECTED,
        lambda: evidence([*all_but(), replace(effect(3), number=99, event=99, osn=99)]),
    ),
    "an event was sent under another id": (
        Category.UNEXPECTED,
        lambda: evidence([*all_but(3), effect(3, event=4)]),
    ),
    "two events share an output sequence number": (
        Category.UNEXPECTED,
        lambda: evidence([*all_but(12), effect(12, osn=11)]),
    ),
    "two events share an output sequence number after a rescale": (
        Category.UNEXPECTED,
        lambda: evidence(
            [*all_but(11, 12), effect(11, osn=1, scale=1), effect(12, osn=1, scale=1)]
        ),
    ),
    "numbers fall in a log": (
        Category.UNEXPECTED,
        lambda: evidence([effect(2), effect(1), *all_but(1, 2)], case=LOG),
    ),
    "a discarded event arrived": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), parked(3, DISCARDED)),
    ),
    "a rejected event arrived": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), parked(3, ParkedState.REJECTED), refused=frozenset({3})),
    ),
    "an event waits that has arrived": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), parked(3, ParkedState.WAITING)),
    ),
    "something is parked that never was": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), replace(parked(3, HELD), event=99)),
    ),
    "a database leaves something in doubt": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), parked(3, HELD, doubted=True), case=EXACT, disturbances=1),
    ),
    "more is in doubt than a window": (
        Category.UNEXPECTED,
        lambda: evidence(
            all_but(), *(parked(n, HELD, doubted=True) for n in (1, 2, 3, 4)), disturbances=1
        ),
    ),
    "the pipeline stopped for no reason": (
        Category.UNEXPECTED,
        lambda: evidence(all_but(), notes=("Diverged",)),
    ),
}


def test_what_a_sink_gets_of_before_it_was_added_has_no_order_when_it_is_read_again() -> None:
    owed = frozenset(FACTS) - {SAME[0]}
    assert judge(evidence(SWAPPED, required=owed, generations=2)).verdict is Verdict.VALID
    for wrong in ({"generations": 2}, {"required": owed}):
        assert judge(evidence(SWAPPED, **wrong)).counts[Category.REORDERED] == 1


def sent(into: SimulatedDestination, number: int, osn: int, minibatch: Minibatch) -> None:
    fact = FACTS[number]
    event = Event(fact.entity, number, osn, "key", {NUMBER: number})
    target = Target("world", "witness", minibatch, fact.partition, Attempt(1, 1))
    into.accept(event, target, 0.0)


def shared_numbers(into: SimulatedDestination) -> list[str]:
    found = judge(evidence(into.seen(), ended=False)).violations
    return [each.message for each in found if "OSN" in each.message]


def test_a_zombie_from_before_a_rescale_keeps_its_number() -> None:
    into = SimulatedDestination(Hub())
    before, between, after = Minibatch(1, 0), Minibatch(1, 2), Minibatch(1, 3)
    into.rescaled += [before, between]  # there and back: the partitions are called as before
    sent(into, 10, 1, after)
    sent(into, 2, 1, before)
    assert shared_numbers(into) == []
    sent(into, 3, 1, before)
    sent(into, 11, 1, after)
    assert shared_numbers(into) == [
        "events 2 and 3 were both sent as OSN 1",
        "events 10 and 11 were both sent as OSN 1",
    ]


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found(planted: str) -> None:
    category, made = PLANTED[planted]
    judgement = judge(made())
    assert judgement.verdict is Verdict.INVALID
    assert category in {violation.category for violation in judgement.violations}
    assert judgement.counts[category] > 0


def test_every_category_that_must_not_be_has_a_planted_violation() -> None:
    assert {category for category, _ in PLANTED.values()} == {
        Category.LOST,
        Category.DUPLICATED,
        Category.REORDERED,
        Category.UNEXPECTED,
    }


ALLOWED: dict[str, tuple[Category, Callable[[], Evidence]]] = {
    "held, and not there": (
        Category.IN_DOUBT,
        lambda: evidence(all_but(3), parked(3, HELD, doubted=True), disturbances=1),
    ),
    "held, and there": (
        Category.IN_DOUBT,
        lambda: evidence(all_but(), parked(3, HELD, doubted=True), disturbances=1),
    ),
    "refused, and a dead letter": (
        Category.REJECTED,
        lambda: evidence(all_but(3), parked(3, ParkedState.REJECTED), refused=frozenset({3})),
    ),
    "discarded by a person": (
        Category.DISCARDED,
        lambda: evidence(all_but(3), parked(3, DISCARDED)),
    ),
    "skipped by policy": (
        Category.SLIPPED,
        lambda: evidence(
            all_but(3), parked(3, ParkedState.SKIPPED, doubted=True), case=SKIPS, disturbances=1
        ),
    ),
    "sent again by policy": (
        Category.SLIPPED,
        lambda: evidence(
            TWICE, parked(3, ParkedState.RESENT, doubted=True), case=RESENDS, disturbances=1
        ),
    ),
    "repeated by a call that outlived its deadline": (
        Category.SLIPPED,
        lambda: evidence(LATE, case=PROBES),
    ),
}


@pytest.mark.parametrize("allowed", ALLOWED)
def test_what_a_policy_or_a_person_allows_is_counted_and_no_violation(allowed: str) -> None:
    category, made = ALLOWED[allowed]
    judgement = judge(made())
    assert not judgement.violations
    assert judgement.counts[category] == 1


def test_a_dead_letter_that_is_mended_later_may_come_after_its_followers() -> None:
    late = [*all_but(SAME[0]), effect(SAME[0], resend=True)]
    mended = parked(SAME[0], ParkedState.DELIVERED)
    refused = frozenset({SAME[0]})
    assert not judge(evidence(late, mended, refused=refused)).violations
    blocking = replace(CASE, on_reject=OnReject.BLOCK)
    assert judge(evidence(late, mended, refused=refused, case=blocking)).violations


def test_a_world_that_did_not_come_to_its_end_is_unknown_not_valid() -> None:
    judgement = judge(evidence(all_but(3), ended=False))
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.counts[Category.PENDING] == 1


def test_what_waits_may_have_arrived_only_where_the_ledger_says_so() -> None:
    case = Case(Variant.REPEATABLE, identities=Identities.INCREASING)
    waits = parked(3, ParkedState.WAITING, doubted=True)
    judgement = judge(evidence(all_but(), waits, case=case, gateway=True))
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.counts[Category.PENDING] == 1
    for wrong in (replace(waits, doubted=False), waits):
        gateway = not wrong.doubted  # nothing leaves a doubt where nothing is refused
        assert judge(evidence(all_but(), wrong, case=case, gateway=gateway)).violations


def test_a_slip_that_nobody_reported_is_counted_as_such() -> None:
    assert judge(evidence(LATE, case=PROBES)).unreported == 1
    told = parked(3, ParkedState.LATE)
    assert judge(evidence(LATE, told, case=PROBES)).unreported == 0
