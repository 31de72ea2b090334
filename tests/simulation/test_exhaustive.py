"""Not sampled: every crash point, pair of them and zombie, for every capability and policy.

Each case is one partition of ten events in four chunks and a second minibatch after it. `explore`
plays one world for each point and judges it: no event twice, none lost, order per entity kept, no
doubt that is not recorded, and no more doubts than a window for each crash.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.protocol import Capability, OnDoubt, OnReject
from semel.verify.simulator.cases import Case, Variant
from semel.verify.simulator.faults import CallFault, FaultyWire, Kind
from semel.verify.simulator.inputs import Identities
from support.explore import (
    DRIVERS,
    FIRST,
    TASKS,
    Explored,
    Explorer,
    FaultScript,
    ScriptedWorld,
    explore,
)

WINDOW = 3

EXACT = [
    pytest.param(Case(Variant.TRANSACTIONAL, identities=Identities.POSITION), id="transactional"),
    pytest.param(Case(Variant.SCRIPT, identities=Identities.GIVEN), id="one script"),
    pytest.param(Case(Variant.SEQUENCED, identities=Identities.COUNTER), id="sequenced"),
    pytest.param(Case(Variant.LAST_OPENER, identities=Identities.GIVEN), id="last opener wins"),
    pytest.param(
        Case(Variant.REPEATABLE, identities=Identities.ORDERED_POSITION), id="repeatable by event"
    ),
    pytest.param(
        Case(Variant.REPEATABLE_CHUNKS, identities=Identities.INCREASING), id="repeatable by chunk"
    ),
    pytest.param(Case(Variant.PLACES, identities=Identities.GIVEN), id="whole places"),
]

OPAQUE = {
    OnDoubt.HOLD: Case(Variant.OPAQUE, identities=Identities.INCREASING),
    OnDoubt.RESEND: Case(Variant.OPAQUE, identities=Identities.GIVEN),
    OnDoubt.SKIP: Case(Variant.OPAQUE, identities=Identities.COUNTER),
    OnDoubt.STOP: Case(Variant.OPAQUE, identities=Identities.ORDERED_POSITION),
    OnDoubt.PROBE: Case(Variant.OPAQUE, identities=Identities.GIVEN),
}


def shown(explored: Explored) -> Explored:
    print(explored.describe())  # noqa: T201 - how many worlds were explored
    assert not explored.violations, explored.describe()
    return explored


def test_the_explored_partition_has_ten_events_in_at_least_three_chunks() -> None:
    assert FIRST >= 10
    assert FIRST / WINDOW > 3


@pytest.mark.rows("S10", "S15", "S19", "A9", "A10", "A17", "O9", "O10", "O11", "O23")
@pytest.mark.parametrize("case", EXACT)
def test_wherever_it_crashes_an_exact_destination_gets_every_event_once(case: Case) -> None:
    explored = shown(explore(case))
    assert explored.worlds > 500
    assert explored.doubted_most == 0
    assert explored.slipped == 0


@pytest.mark.rows("A13", "A14", "S19")
def test_a_destination_that_can_be_asked_gets_every_event_once_but_for_calls_in_flight() -> None:
    explored = shown(explore(Case(Variant.PROBING, identities=Identities.INCREASING)))
    assert explored.doubted_most == 0


@pytest.mark.rows("A13", "A14")
def test_without_a_zombie_a_destination_that_can_be_asked_lets_nothing_slip() -> None:
    explorer = Explorer(Case(Variant.PROBING, identities=Identities.GIVEN))
    explorer.others()
    explorer.crashes(TASKS)
    explorer.crashes(DRIVERS)
    assert shown(explorer.explored).slipped == 0


@pytest.mark.rows("S10", "S11", "S19", "S21")
@pytest.mark.parametrize("policy", OnDoubt)
def test_an_opaque_destination_leaves_at_most_a_window_in_doubt_for_each_crash(
    policy: OnDoubt,
) -> None:
    case = replace(OPAQUE[policy], on_doubt=policy, window=WINDOW)
    explored = shown(explore(case))
    assert explored.worlds > 1000
    assert explored.doubted_most <= 2 * WINDOW
    if policy in (OnDoubt.HOLD, OnDoubt.STOP):
        assert explored.slipped == 0


@pytest.mark.rows("S11", "S21")
def test_one_crash_leaves_at_most_one_window_in_doubt() -> None:
    explorer = Explorer(Case(Variant.OPAQUE_BATCHES, window=WINDOW))
    for at in range(60):
        if not explorer.play(FaultScript(((at, CallFault.CRASH),))).struck:
            break
    assert 0 < shown(explorer.explored).doubted_most <= WINDOW


@pytest.mark.rows("S21")
def test_a_call_for_many_events_has_one_outcome_for_all_of_them() -> None:
    explorer = Explorer(Case(Variant.OPAQUE_BATCHES, window=WINDOW))
    explorer.others()
    explorer.crashes(TASKS)
    shown(explorer.explored)


@pytest.mark.rows("S21")
@pytest.mark.parametrize("policy", OnDoubt)
@pytest.mark.parametrize("variant", [each for each in Variant if each is not Variant.OPAQUE])
def test_a_policy_of_doubt_changes_nothing_where_there_is_no_doubt(
    variant: Variant, policy: OnDoubt
) -> None:
    explorer = Explorer(Case(variant, policy))
    at = 0
    while explorer.play(FaultScript(((at, CallFault.CRASH),), only=TASKS)).struck:
        at += 1
    explored = shown(explorer.explored)
    if variant.capability is not Capability.OPAQUE:
        assert explored.doubted_most == 0


@pytest.mark.parametrize("on_reject", OnReject)
@pytest.mark.parametrize(
    "variant", [each for each in Variant if each not in (Variant.PLACES, Variant.OPAQUE_BATCHES)]
)
def test_a_rejected_event_is_parked_before_anything_passes_it(
    variant: Variant, on_reject: OnReject
) -> None:
    case = Case(variant, on_reject=on_reject, identities=Identities.INCREASING)
    explorer = Explorer(case, refused=frozenset({2, 8}))
    explorer.others()
    at = 0
    while explorer.play(FaultScript(((at, CallFault.CRASH),))).struck:
        at += 1
    shown(explorer.explored)


@pytest.mark.rows("S21")
@pytest.mark.parametrize("shut_s", [3.0, 900.0])
@pytest.mark.parametrize("variant", [Variant.REPEATABLE, Variant.REPEATABLE_CHUNKS])
def test_what_a_gateway_refuses_after_a_lost_reply_is_held_and_never_sent_under_another_key(
    variant: Variant, shut_s: float
) -> None:
    """Every lost reply and every crash, and then the gateway refuses what is repeated."""
    explorer = Explorer(Case(variant, identities=Identities.GIVEN), shut_s=shut_s)
    explorer.others()
    at = 0
    while explorer.play(FaultScript(((at, CallFault.CRASH),))).struck:
        at += 1
    assert shown(explorer.explored).doubted_most > 0


@pytest.mark.rows("A12")
def test_a_place_holds_one_success_whatever_was_left_there() -> None:
    explorer = Explorer(Case(Variant.PLACES, identities=Identities.INCREASING))
    explorer.crashes(TASKS)
    shown(explorer.explored)


class CutAndLate(FaultScript):
    """The input of the first attempt ends early, and what it puts lands after it was replaced."""

    def fault(self, wire: FaultyWire, kind: Kind) -> CallFault | None:
        if self.struck == 0 and kind is Kind.INPUT and wire.calls > 4:
            self.struck = 1
            return CallFault.CUT
        at_the_end = wire.cut and kind is Kind.SEND and "put" in self.next_step
        if self.struck == 1 and at_the_end:
            self.struck = 2
            return CallFault.LATE
        self.next_step = "put" if wire.cut and kind is Kind.LOOK else ""
        return None

    next_step = ""


@pytest.mark.rows("A12")
def test_a_late_put_of_a_cut_input_does_not_stand_over_the_whole_one() -> None:
    world = ScriptedWorld(Case(Variant.PLACES, identities=Identities.INCREASING), CutAndLate())
    judgement = world.run()
    assert world.script.struck == 2
    assert not judgement.violations
